"""Calls of Kafka's tools that ask for what is not served, or is served otherwise, and how they end
(docs/serve.md tells each). They are made as those of tool_cases.
"""

from __future__ import annotations

from typing import NamedTuple

from tool_cases import CONFIGS, FEATURES, QUORUM, REASSIGN, STREAMS, TXN


class Refused(NamedTuple):
    """A call of what is not served, or otherwise: how it ends, and a regular expression of what it prints."""

    tool: str
    arguments: str
    code: int
    message: str


UNSUPPORTED = "does not support "
READ_ONLY = "InvalidRequestException: the broker's settings are read-only"
UNKNOWN = r"InvalidConfigurationException: no setting '{}'".format
REFUSED: dict[str, Refused] = {
    "set for a broker": Refused(
        CONFIGS, "--alter --broker 1 --add-config log.cleaner.threads=2", 1, READ_ONLY
    ),
    "set for all brokers": Refused(
        CONFIGS, "--alter --broker-defaults --add-config message.max.bytes=2000000", 1, READ_ONLY
    ),
    "limit requests": Refused(
        CONFIGS, "--alter --client c --add-config request_percentage=50", 1,
        "InvalidRequestException: no setting 'request_percentage'; there are producer_byte_rate",
    ),
    "limit an address": Refused(
        CONFIGS, "--alter --ip 1.2.3.4 --add-config connection_creation_rate=10", 1,
        "InvalidRequestException: an entity of ip",
    ),
    **{
        f"set {name.partition('=')[0]} for a group": Refused(
            CONFIGS, f"--alter --group g --add-config {name}", 1, UNKNOWN(name.partition("=")[0])
        )
        for name in (
            "consumer.assignment.interval.ms=100", "consumer.assignor.offload.enable=false",
            "streams.num.standby.replicas=1",
        )
    },
    "set metrics": Refused(
        CONFIGS, "--alter --client-metrics m --add-config interval.ms=1000", 1,
        "InvalidRequestException: resource type 16",
    ),
    "alter metrics": Refused(
        "ClientMetricsCommand", "--alter --name m --metrics org.apache. --interval 1000", 1,
        "client metrics command : resource type 16",
    ),
    "describe a streams group": Refused(
        STREAMS, "--describe --group s", 1, f"{UNSUPPORTED}STREAMS_GROUP_DESCRIBE"
    ),
    "reset a streams group": Refused(
        STREAMS, "--reset-offsets --group s --all-input-topics --to-earliest --dry-run", 1,
        f"{UNSUPPORTED}STREAMS_GROUP_DESCRIBE",
    ),
    "abort a transaction": Refused(
        TXN, "--bootstrap-server AT abort --topic txn --partition 0 --producer-id 1 --producer-epoch 0 "
        "--coordinator-epoch 0", 1, f"{UNSUPPORTED}WRITE_TXN_MARKERS",
    ),
    "upgrade a feature": Refused(
        FEATURES, "--bootstrap-server AT upgrade --feature group.version=1", 1,
        f"{UNSUPPORTED}UPDATE_FEATURES",
    ),
    "upgrade to a release": Refused(
        FEATURES, "--bootstrap-server AT upgrade --release-version 4.4", 1, f"{UNSUPPORTED}UPDATE_FEATURES"
    ),
    "disable a feature": Refused(
        FEATURES, "--bootstrap-server AT disable --feature group.version", 1, f"{UNSUPPORTED}UPDATE_FEATURES"
    ),
    "remove a voter": Refused(
        QUORUM, "--bootstrap-server AT remove-controller --controller-id 5 --controller-directory-id "
        "AAAAAAAAAAAAAAAAAAAAAA", 1, f"{UNSUPPORTED}REMOVE_RAFT_VOTER",
    ),
    "throttle a reassignment": Refused(
        REASSIGN, "--execute --reassignment-json-file FILES/here.json --throttle 1000000", 1,
        UNKNOWN("leader.replication.throttled.replicas"),
    ),
    "remove acls": Refused(
        "AclCommand", "--remove --force --allow-principal User:a --operation Read --topic one", 1,
        f"{UNSUPPORTED}DELETE_ACLS",
    ),
    "describe tokens": Refused(
        "DelegationTokenCommand", "--describe --command-config FILES/empty.properties", 1,
        f"{UNSUPPORTED}DESCRIBE_DELEGATION_TOKEN",
    ),
    "create a token": Refused(
        "DelegationTokenCommand",
        "--create --max-life-time-period -1 --command-config FILES/empty.properties", 1,
        f"{UNSUPPORTED}CREATE_DELEGATION_TOKEN",
    ),
}  # fmt: skip
"""By name: calls that end with an error here, and do something on a broker."""
