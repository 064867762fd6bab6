"""Promise: a server answers requests of administration with the codes of a real broker of Kafka 4.4."""

from __future__ import annotations

from typing import Any

import pytest
from kafka_broker import Broker
from kafka_tools import classpath, why_not
from waiting import until
from wire_client import WireClient

import segstore
from segstore.protocol.codec import Struct, structs
from segstore.protocol.error_codes import Code

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
    pytest.mark.kind("Java's clients"),
]
ID = b"x" * 16
Asked = structs("MetadataRequest").MetadataRequestTopic
Cursor = structs("DescribeTopicPartitionsRequest").Cursor
Named = structs("DescribeTopicPartitionsRequest").TopicRequest
New = structs("CreateTopicsRequest").CreatableTopic
Config = structs("CreateTopicsRequest").CreatableTopicConfig
Place = structs("CreateTopicsRequest").CreatableReplicaAssignment
State = structs("DeleteTopicsRequest").DeleteTopicState
Grown = structs("CreatePartitionsRequest").CreatePartitionsTopic
Placed = structs("CreatePartitionsRequest").CreatePartitionsAssignment
Resource = structs("DescribeConfigsRequest").DescribeConfigsResource
INCREMENTAL, WHOLE = structs("IncrementalAlterConfigsRequest"), structs("AlterConfigsRequest")
TRIM, QUOTAS = structs("DeleteRecordsRequest"), structs("AlterClientQuotasRequest")
Component = structs("DescribeClientQuotasRequest").ComponentData
Committed = structs("OffsetCommitRequest").OffsetCommitRequestTopic
Fetched = structs("OffsetFetchRequest").OffsetFetchRequestGroup
Committed1 = structs("OffsetCommitRequest").OffsetCommitRequestPartition
Elected = structs("ElectLeadersRequest").TopicPartitions


def new(name: str, partitions: int = 1, factor: int = 1, places: Any = (), **config: Any) -> Any:
    return New(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[Place(partition_index=number, broker_ids=nodes) for number, nodes in places],
        configs=[Config(name=key.replace("_", "."), value=value) for key, value in config.items()],
    )


def settings(kind: int, name: str) -> dict[str, Any]:
    return {"resources": [Resource(resource_type=kind, resource_name=name, configuration_keys=["x"])]}


def alter(*operations: Any, kind: int = 2, name: str = "t") -> dict[str, Any]:
    configs = [
        INCREMENTAL.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in operations
    ]
    made = INCREMENTAL.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return {"resources": [made]}


def quota(
    *entity: tuple[str, str | None], key: str = "producer_byte_rate", value: float = 9
) -> dict[str, Any]:
    parts = [QUOTAS.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    ops = [QUOTAS.OpData(key=key, value=value)]
    return {"entries": [QUOTAS.EntryData(entity=parts, ops=ops)], "validate_only": True}


def match(*components: tuple[str, int, str | None]) -> dict[str, Any]:
    return {
        "components": [
            Component(entity_type=kind, match_type=how, match=text) for kind, how, text in components
        ]
    }


def trim(topic: str, partition: int, offset: int) -> dict[str, Any]:
    part = TRIM.DeleteRecordsPartition(partition_index=partition, offset=offset)
    return {"topics": [TRIM.DeleteRecordsTopic(name=topic, partitions=[part])], "timeout_ms": 10_000}


def grow(name: str, count: int, places: Any = None) -> dict[str, Any]:
    made = None if places is None else [Placed(broker_ids=nodes) for nodes in places]
    return {"topics": [Grown(name=name, count=count, assignments=made)], "timeout_ms": 10_000}


def ask(*topics: Any, **fields: Any) -> dict[str, Any]:
    return {"topics": list(topics), "allow_auto_topic_creation": False, **fields}


HERE = "the cluster that is asked"
Sought = structs("ListOffsetsRequest").ListOffsetsTopic
Sought1 = structs("ListOffsetsRequest").ListOffsetsPartition
CLIENT: dict[str, Any] = {"client_software_name": "tests", "client_software_version": "1"}
SETUP = [new("t", 2), new("compacted", 1, cleanup_policy="compact")]
VOTED = structs("DescribeQuorumRequest")


def quorum(topic: str, number: int = 0) -> dict[str, Any]:
    part = VOTED.PartitionData(partition_index=number)
    return {"topics": [VOTED.TopicData(topic_name=topic, partitions=[part])]}


PROBES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "features": ("ApiVersions", 4, CLIENT),
    "features above 0": ("ApiVersions", 3, CLIENT),
    "features of any node": ("ApiVersions", 5, CLIENT),
    "features of this node": ("ApiVersions", 5, CLIENT | {"cluster_id": HERE, "node_id": 1}),
    "features of another node": ("ApiVersions", 5, CLIENT | {"cluster_id": HERE, "node_id": 2}),
    "features of another cluster": ("ApiVersions", 5, CLIENT | {"cluster_id": "other", "node_id": 1}),
    "features of a cluster": ("ApiVersions", 5, CLIENT | {"cluster_id": HERE}),
    "features of a node": ("ApiVersions", 5, CLIENT | {"node_id": 1}),
    **{
        f"features for {name!r} {software!r}": ("ApiVersions", version, {
            "client_software_name": name, "client_software_version": software
        })
        for version, name, software in (
            (3, "", "1"), (3, "a b", "1"), (3, "-a", "1"), (3, "a-", "1"), (3, "a", ""), (4, "a", "1."),
            (3, "a_b", "1"), (5, "\u00e4", "1"), (3, "a.b-c", "1.0-rc.1"), (3, "a\n", "1"),
        )
    },
    "features for no name, of another node": ("ApiVersions", 5, {"cluster_id": HERE, "node_id": 2}),
    "a quorum": ("DescribeQuorum", 2, quorum("__cluster_metadata")),
    "an old quorum": ("DescribeQuorum", 0, quorum("__cluster_metadata")),
    "a quorum of no partition": ("DescribeQuorum", 2, quorum("__cluster_metadata", 1)),
    "a quorum of no topic": ("DescribeQuorum", 1, quorum("t")),
    "no quorum": ("DescribeQuorum", 2, {"topics": []}),
    "metadata of all": ("Metadata", 12, {"topics": None}),
    "metadata of none": ("Metadata", 12, {"topics": []}),
    "metadata of a missing one": ("Metadata", 12, ask(Asked(name="missing"))),
    "metadata of no name": ("Metadata", 12, ask(Asked(name="a b"), Asked(name="t"))),
    "metadata of an unknown id": ("Metadata", 12, ask(Asked(name=None, topic_id=ID))),
    "metadata by an id too early": ("Metadata", 11, ask(Asked(name="t", topic_id=ID))),
    "operations": ("Metadata", 10, ask(
        Asked(name="t"),
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )),
    "the cluster": ("DescribeCluster", 2, {"include_cluster_authorized_operations": True}),
    "the cluster's controllers": ("DescribeCluster", 1, {"endpoint_type": 2}),
    "a cluster of no kind": ("DescribeCluster", 1, {"endpoint_type": 9}),
    "a page": ("DescribeTopicPartitions", 0, {"response_partition_limit": 2}),
    "a page of one": ("DescribeTopicPartitions", 0, {"response_partition_limit": 1}),
    "the next page": ("DescribeTopicPartitions", 0, {"cursor": Cursor(topic_name="t", partition_index=1)}),
    "pages of named ones": (
        "DescribeTopicPartitions", 0, {"topics": [Named(name=n) for n in ("t", "missing", "a b")]}
    ),
    "a cursor below 0": ("DescribeTopicPartitions", 0, {
        "topics": [Named(name="t")], "cursor": Cursor(topic_name="t", partition_index=-1)
    }),
    **{
        f"to create {name}": ("CreateTopics", 7, {"topics": [topic], "validate_only": True})
        for name, topic in {
            "one": new("u", 3),
            "one by defaults": new("u", -1, -1),
            "one that is there": new("t"),
            "no name": new("a b"),
            "no partitions": new("u", 0),
            "no replicas": new("u", 1, 0),
            "three replicas": new("u", 1, 3),
            "a value": new("u", retention_ms="soon"),
            "a name of no setting": new("u", retenton_ms="1"),
            "null": new("u", retention_ms=None),
            "both": new("u", 1, -1, places=[(0, [1])]),
            "both, by factor": new("u", -1, 1, places=[(0, [1])]),
            "places": new("u", -1, -1, places=[(0, [1]), (1, [1])]),
            "another node": new("u", -1, -1, places=[(0, [2])]),
            "a node twice": new("u", -1, -1, places=[(0, [1, 1])]),
            "no node": new("u", -1, -1, places=[(0, [])]),
            "a gap": new("u", -1, -1, places=[(0, [1]), (2, [1])]),
        }.items()
    },
    "to create one twice": ("CreateTopics", 7, {"topics": [new("u"), new("u")], "validate_only": True}),
    "to delete a missing one": ("DeleteTopics", 6, {"topics": [State(name="missing")], "timeout_ms": 10_000}),
    "to delete an unknown id": ("DeleteTopics", 6, {"topics": [State(topic_id=ID)], "timeout_ms": 10_000}),
    "to delete nothing": ("DeleteTopics", 6, {"topics": [State()], "timeout_ms": 10_000}),
    "to delete by both": ("DeleteTopics", 6, {"topics": [State(name="t", topic_id=ID)], "timeout_ms": 9_999}),
    "to grow": ("CreatePartitions", 3, {**grow("t", 3), "validate_only": True}),
    "to grow to as many": ("CreatePartitions", 3, grow("t", 2)),
    "to grow to fewer": ("CreatePartitions", 3, grow("t", 1)),
    "to grow a missing one": ("CreatePartitions", 3, grow("missing", 2)),
    "to grow elsewhere": ("CreatePartitions", 3, grow("t", 3, [[2]])),
    "to grow in too few places": ("CreatePartitions", 3, grow("t", 4, [[1]])),
    "settings of a missing topic": (
        "DescribeConfigs", 4, settings(2, "missing")
    ),
    "settings of no topic": (
        "DescribeConfigs", 4, settings(2, "a b")
    ),
    "settings of another broker": (
        "DescribeConfigs", 4, settings(4, "2")
    ),
    "settings of no broker": (
        "DescribeConfigs", 4, settings(4, "one")
    ),
    "to set": ("IncrementalAlterConfigs", 1, {**alter(("flush.ms", 0, "5")), "validate_only": True}),
    "to set wrongly": ("IncrementalAlterConfigs", 1, alter(("flush.ms", 0, "soon"))),
    "to set what is not there": ("IncrementalAlterConfigs", 1, alter(("foo", 0, "1"))),
    "to set null": ("IncrementalAlterConfigs", 1, alter(("flush.ms", 0, None))),
    "to set twice": ("IncrementalAlterConfigs", 1, alter(("flush.ms", 0, "1"), ("flush.ms", 0, "2"))),
    "to append to no list": ("IncrementalAlterConfigs", 1, alter(("flush.ms", 2, "1"))),
    "to set for a missing topic": ("IncrementalAlterConfigs", 1, alter(("flush.ms", 0, "1"), name="missing")),
    "to set what is read-only": ("IncrementalAlterConfigs", 1, alter(("node.id", 0, "2"), kind=4, name="1")),
    "to delete what is not there": (
        "IncrementalAlterConfigs", 1, alter(("foo", 1, None), ("flush.ms", 1, ""))
    ),
    "to delete of a group": ("IncrementalAlterConfigs", 1, alter(("foo", 1, None), kind=32, name="g")),
    **{
        f"to delete {names} of broker {broker!r}": ("IncrementalAlterConfigs", 1, alter(
            *((name, 1, None) for name in names), kind=4, name=broker
        ))
        for broker in ("1", "", "2", "x")
        for names in ((), ("leader.replication.throttled.rate", "foo", "node.id"))
    },
    **{
        f"to change {operations} of loggers of {broker!r}": ("IncrementalAlterConfigs", 1, alter(
            *operations, kind=8, name=broker
        ))
        for broker in ("1", "", "2")
        for operations in ((), (("none.such", 0, "INFO"),), (("none.such", 1, None),))
    },
    "loggers": ("DescribeConfigs", 4, settings(8, "1")),
    "loggers of another broker": ("DescribeConfigs", 4, settings(8, "2")),
    "loggers of all brokers": ("DescribeConfigs", 4, settings(8, "")),
    "to replace wrongly": ("AlterConfigs", 2, {"resources": [WHOLE.AlterConfigsResource(
        resource_type=2, resource_name="t", configs=[WHOLE.AlterableConfig(name="flush.ms", value="soon")]
    )]}),
    "to replace by null": ("AlterConfigs", 2, {"resources": [WHOLE.AlterConfigsResource(
        resource_type=2, resource_name="t", configs=[WHOLE.AlterableConfig(name="flush.ms", value=None)]
    )]}),
    "to trim": ("DeleteRecords", 2, trim("t", 0, 0)),
    "to trim all": ("DeleteRecords", 2, trim("t", 0, -1)),
    "to trim beyond": ("DeleteRecords", 2, trim("t", 0, 5)),
    "to trim below": ("DeleteRecords", 2, trim("t", 0, -2)),
    "to trim nothing": ("DeleteRecords", 2, trim("t", 9, 0)),
    "to trim a missing one": ("DeleteRecords", 2, trim("missing", 0, 0)),
    "to trim a compacted one": ("DeleteRecords", 2, trim("compacted", 0, 0)),
    "to elect all": ("ElectLeaders", 2, {"topic_partitions": None, "timeout_ms": 10_000}),
    "to elect": ("ElectLeaders", 2, {
        "topic_partitions": [Elected(topic="t", partitions=[0, 9]), Elected(topic="missing", partitions=[0])],
        "timeout_ms": 10_000,
    }),
    "places in a log": ("ListOffsets", 11, {"replica_id": -1, "topics": [
        Sought(name=name, partitions=[Sought1(partition_index=0, timestamp=place)])
        for name, place in (("t", -6), ("compacted", -7))
    ]}),
    "an older place": ("ListOffsets", 10, {"replica_id": -1, "topics": [
        Sought(name="t", partitions=[Sought1(partition_index=0, timestamp=-6)])
    ]}),
    "directories": ("DescribeLogDirs", 5, {"topics": [
        structs("DescribeLogDirsRequest").DescribableLogDirTopic(topic="t", partitions=[0, 1])
    ]}),
    "reassignments": ("ListPartitionReassignments", 0, {"topics": None}),
    "to limit a client": ("AlterClientQuotas", 1, quota(("client-id", "c"))),
    "to limit all": ("AlterClientQuotas", 1, quota(("client-id", None))),
    "to limit an empty name": ("AlterClientQuotas", 1, quota(("client-id", ""))),
    "to limit nothing": ("AlterClientQuotas", 1, quota()),
    "to limit by another rate": ("AlterClientQuotas", 1, quota(("client-id", "c"), key="foo")),
    "to limit by half a byte": ("AlterClientQuotas", 1, quota(("client-id", "c"), value=0.5)),
    "limits": ("DescribeClientQuotas", 1, match()),
    "limits of one": ("DescribeClientQuotas", 1, match(("client-id", 0, "c"))),
    "limits of a user": ("DescribeClientQuotas", 1, match(("user", 2, None))),
    "limits twice": ("DescribeClientQuotas", 1, match(("client-id", 2, None), ("client-id", 2, None))),
    "limits of no type": ("DescribeClientQuotas", 1, match(("", 2, None))),
    "limits of teams": ("DescribeClientQuotas", 1, match(("team", 2, None))),
    "limits of exactly nothing": ("DescribeClientQuotas", 1, match(("client-id", 0, None))),
    "limits of a named default": ("DescribeClientQuotas", 1, match(("client-id", 1, "c"))),
    "limits of addresses and users": ("DescribeClientQuotas", 1, match(("ip", 2, None), ("user", 2, None))),
    "limits matched in no way": ("DescribeClientQuotas", 1, match(("client-id", 3, None))),
    "acls": ("DescribeAcls", 3, {
        **dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter")),
        **dict.fromkeys(("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1),
    }),
}  # fmt: skip
OF_GROUPS: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{
        f"to commit in a missing group by {version}": (
            "OffsetCommit",
            version,
            {
                "group_id": "missing",
                "generation_id_or_member_epoch": 1,
                "topics": [
                    Committed(
                        name="t",
                        partitions=[Committed1(partition_index=0, committed_offset=1, committed_metadata="")],
                    )
                ],
            },
        )
        for version in (5, 8, 9)
    },
    "to commit a negative offset": (
        "OffsetCommit",
        9,
        {
            "group_id": "negative",
            "topics": [
                Committed(
                    name="t",
                    partitions=[Committed1(partition_index=0, committed_offset=-2, committed_metadata="")],
                )
            ],
        },
    ),
    "a negative offset": ("OffsetFetch", 9, {"groups": [Fetched(group_id="negative", topics=None)]}),
    **{f"a coordinator by {v}": ("FindCoordinator", v, {"key": "g"}) for v in (1, 2, 3)},
    **{f"coordinators by {v}": ("FindCoordinator", v, {"coordinator_keys": ["g"]}) for v in (4, 5, 6)},
    "groups that are there": ("ListGroups", 5, {}),
    "to delete groups": ("DeleteGroups", 3, {"groups_names": ["missing", "", "missing"]}),
}
"""Asked after the others, with the topic of groups there."""
SYNONYMS = "synonyms"
TEXTS = frozenset(
    {
        *("error_message", "host", "port", "cluster_id", "topic_id", "configs", "throttle_time_ms"),
        *("api_keys", "finalized_features_epoch"),
        *("log_dir", "usable_bytes"),
        *("high_watermark", "log_end_offset", "last_fetch_timestamp", "last_caught_up_timestamp"),
    }
)
"""What two servers may say differently: words, addresses, ids, which settings and APIs there are, and how
long the log of a quorum is.
"""
UNSERVED = frozenset({"share.version", "streams.version"})
"""Features of a broker whose APIs are not served."""


def told(value: Any) -> Any:
    """Return what an answer says, without TEXTS; lists are in order of what they say. An error's words may
    differ, but not those for no error.
    """
    if isinstance(value, Struct):
        kept = {"error_message"} if getattr(value, "error_code", None) == 0 else set()
        return {
            name: told(getattr(value, name)) for name in value.__slots__ if name not in TEXTS or name in kept
        }
    if not isinstance(value, list):
        return value
    return sorted((told(each) for each in value if getattr(each, "name", None) not in UNSERVED), key=str)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """What a broker and a server answer to each of the PROBES, then OF_GROUPS."""
    base = tmp_path_factory.mktemp("both")
    broker = Broker(classpath(), base / "broker")
    with broker.running(), segstore.open(base / "store") as store, segstore.serve(store, port=0) as server:
        found = [_asked("127.0.0.1", broker.port), _asked(server.host, server.port)]
    assert segstore.check(base / "store") == []
    return {name: (each, found[1][name]) for name, each in found[0].items()}


def _asked(host: str, port: int) -> dict[str, Any]:
    with WireClient(host, port) as wire:
        wire.ask("CreateTopics", 7, topics=SETUP, timeout_ms=30_000)
        wire.ask("Metadata", 12, **ask(Asked(name="t"), Asked(name="compacted")))  # which opens our logs
        here = wire.ask("DescribeCluster", 0).cluster_id
        found = {name: _answer(host, port, here, *probe) for name, probe in PROBES.items()}
        found[SYNONYMS] = _synonyms(wire)
        until(lambda: _has_groups(wire))
    return found | {name: _answer(host, port, here, *probe) for name, probe in OF_GROUPS.items()}


def _synonyms(wire: WireClient) -> dict[str, list[tuple[str, int]]]:
    """Return where the values of a topic's settings come from. That of `retention.ms` is another one here."""
    fields = {"include_synonyms": True, "resources": [Resource(resource_type=2, resource_name="compacted")]}
    (result,) = wire.ask("DescribeConfigs", 4, **fields).results
    return {
        each.name: [(synonym.name, synonym.source) for synonym in each.synonyms]
        for each in result.configs
        if each.name != "retention.ms"
    }


def _has_groups(wire: WireClient) -> bool:
    """Have the topic of groups made, and return whether its coordinator answers yet."""
    wire.ask("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
    (found,) = wire.ask("DeleteGroups", 2, groups_names=["g"]).results
    return found.error_code not in (
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
    )


def _answer(host: str, port: int, here: str, api: str, version: int, fields: dict[str, Any]) -> Any:
    """Return what is answered; None where the connection is closed instead."""
    if fields.get("cluster_id") == HERE:
        fields = fields | {"cluster_id": here}
    with WireClient(host, port) as wire:
        try:
            return told(wire.ask(api, version, **fields))
        except ConnectionError:
            return None


@pytest.mark.parametrize("name", [*PROBES, *OF_GROUPS])
def test_a_server_answers_what_a_broker_does(answers: dict[str, tuple[Any, Any]], name: str) -> None:
    theirs, ours = answers[name]
    assert ours == theirs


def test_values_of_a_topic_come_from_the_settings_of_a_broker(answers: dict[str, tuple[Any, Any]]) -> None:
    """A broker has some settings that we don't have."""
    theirs, ours = answers[SYNONYMS]
    assert ours == {name: theirs[name] for name in ours}
