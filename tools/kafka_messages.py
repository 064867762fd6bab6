"""Make segstore/protocol/messages.json.gz from the definitions in Kafka's own jars.

usage: python tools/kafka_messages.py JAR...

The jars are those of Maven Central that JARS names, in one version (Apache License 2.0). The file has a line
for each message, so that one can be read without the others: its name, a space, and its definition as JSON,
of which only those parts are kept on which its bytes depend.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "segstore" / "protocol" / "messages.json.gz"
JARS = (
    "kafka-clients",
    "kafka-group-coordinator",
    "kafka-metadata",
    "kafka-share-coordinator",
    "kafka-transaction-coordinator",
)
"""Requests, responses and the consumer protocol; the records of `__consumer_offsets`, of the metadata log, of
`__share_group_state` and of `__transaction_state`.
"""
VERSION = "4.4.0"
FOLDERS = ("common/message/", "common/metadata/")
KINDS = ("request", "response", "header", "coordinator-key", "coordinator-value", "metadata", "data")
LEFT_OUT = re.compile(
    r"Streams|Telemetry|DelegationToken|Raft|Snapshot(?!Key|Value)"
    r"|Registration|Controller|Broker|Vote|QuorumEpoch|Envelope|UpdateMetadata|LeaderAndIsr|StopReplica"
    r"|AssignRep|AllocateProducer|AlterPartition(?!Reassign)|UpdateFeatures|DefaultPrincipal|LeaderChange"
    r"|CreateAcls|DeleteAcls|EndTxnMarker|WriteTxnMarkers|PushTel|ControlledShutdown|AbortedTxn|ControlRecordType"
)
KEPT = re.compile(
    r"(BrokerRegistration|BeginQuorumEpoch|UnregisterBroker)(Request|Response)"
    r"|(RegisterBroker|UnregisterBroker|BrokerRegistrationChange)Record"
)
"""What a standby and its primary tell each other, and records of brokers, of what is left out else."""
MESSAGE_KEYS = ("apiKey", "type", "name", "validVersions", "flexibleVersions", "latestVersionUnstable")
FIELD_KEYS = ("name", "type", "versions", "nullableVersions", "taggedVersions", "tag", "default")

OWN_FIELDS: dict[str, list[dict[str, Any]]] = {
    "TransactionLogValue": [
        {"name": "Remote", "type": "int8", "versions": "1+", "taggedVersions": "1+", "tag": 10_000}
    ]
}
"""Fields that segstore adds to Kafka's, which passes over tags that it does not know. Remote: whether the
producer is in another process.
"""
OWN_MESSAGES: list[dict[str, Any]] = [
    {
        "type": "data",
        "name": "StickyAssignorUserData",
        "validVersions": "0-1",
        "fields": [
            {
                "name": "PreviousAssignment",
                "type": "[]TopicAssignment",
                "versions": "0+",
                "fields": [
                    {"name": "Topic", "type": "string", "versions": "0+"},
                    {"name": "Partitions", "type": "[]int32", "versions": "0+"},
                ],
            },
            {"name": "Generation", "type": "int32", "versions": "1+", "default": "-1"},
        ],
    }
]
"""Schemas that Kafka has in its code (StickyAssignor.STICKY_ASSIGNOR_USER_DATA_V0 and _V1)."""


def definitions(jars: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the stripped definitions of the messages that are wanted, by name."""
    found = [_message(held) for jar in jars for held in _held(jar) if held["type"] in KINDS]
    return sorted([*found, *OWN_MESSAGES], key=lambda message: str(message["name"]))


def _held(jar: Path) -> Iterable[dict[str, Any]]:
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            folder, short = name[: name.rfind("/") + 1], Path(name).stem
            if folder not in FOLDERS or not name.endswith(".json"):
                continue
            if KEPT.fullmatch(short) or not LEFT_OUT.search(short):
                yield uncommented(archive.read(name).decode())


def uncommented(text: str) -> Any:
    """Return what a definition says, which is JSON with comments."""
    return json.loads(re.sub(r"(?m)^\s*//.*$", "", text))


def _message(message: dict[str, Any]) -> dict[str, Any]:
    kept = {key: message[key] for key in MESSAGE_KEYS if key in message}
    own = OWN_FIELDS.get(message["name"], [])
    kept["fields"] = [_field(field) for field in message.get("fields", [])] + own
    structs = message.get("commonStructs", [])
    if structs:
        kept["commonStructs"] = [
            {"name": each["name"], "fields": [_field(field) for field in each["fields"]]} for each in structs
        ]
    return kept


def _field(field: dict[str, Any]) -> dict[str, Any]:
    kept = {key: field[key] for key in FIELD_KEYS if key in field}
    if "fields" in field:
        kept["fields"] = [_field(each) for each in field["fields"]]
    return kept


def packed(messages: list[dict[str, Any]]) -> bytes:
    """Return the bytes of the data file; equal definitions give equal bytes."""
    lines = (f"{each['name']} {json.dumps(each, separators=(',', ':'), sort_keys=True)}" for each in messages)
    return gzip.compress("\n".join(lines).encode(), mtime=0)


if __name__ == "__main__":
    if len(sys.argv) != len(JARS) + 1:
        sys.exit(__doc__)
    made = definitions(map(Path, sys.argv[1:]))
    TARGET.write_bytes(packed(made))
    sys.stdout.write(f"{len(made)} messages, {TARGET.stat().st_size} bytes: {TARGET}\n")
