"""Promise: topics are created, deleted and grown over the wire as by `Store`, each for itself: one that is
refused says why by Kafka's code, and leaves the others alone.
"""

from __future__ import annotations

from typing import Any

import pytest
from calls import call, node_of, versions

import segstore
from segstore.config import TopicConfig
from segstore.names import topic_id_bytes
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api

ZERO = bytes(16)
New = structs("CreateTopicsRequest").CreatableTopic
Config = structs("CreateTopicsRequest").CreatableTopicConfig
Assignment = structs("CreateTopicsRequest").CreatableReplicaAssignment
Grown = structs("CreatePartitionsRequest").CreatePartitionsTopic
Placed = structs("CreatePartitionsRequest").CreatePartitionsAssignment
State = structs("DeleteTopicsRequest").DeleteTopicState


def new(name: str = "t", partitions: int = 1, factor: int = 1, **config: Any) -> Any:
    configs = [Config(name=key.replace("_", "."), value=value) for key, value in config.items()]
    return New(name=name, num_partitions=partitions, replication_factor=factor, configs=configs)


def assigned(*parts: tuple[int, list[int]], partitions: int = -1, factor: int = -1) -> Any:
    made = [Assignment(partition_index=number, broker_ids=nodes) for number, nodes in parts]
    return New(name="t", num_partitions=partitions, replication_factor=factor, assignments=made)


def create(store: segstore.Store, *topics: Any, version: int = 7, **fields: Any) -> list[Any]:
    settings = fields.pop("settings", {})
    body = call(node_of(store, **settings), Api.CREATE_TOPICS, version, topics=list(topics), **fields)
    return list(body.topics)


# --- CreateTopics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.CREATE_TOPICS))
def test_every_version_creates(store: segstore.Store, version: int) -> None:
    (made,) = create(store, new("t", 3, retention_ms="1000"), version=version)
    info = store.topics()["t"]
    assert (info.partitions, info.config) == (3, {"retention.ms": 1000})
    assert (made.name, made.error_code, made.error_message) == ("t", 0, None)
    assert made.topic_id == (topic_id_bytes(info.topic_id) if version >= 7 else ZERO)
    if version >= 5:
        assert (made.num_partitions, made.replication_factor, made.topic_config_error_code) == (3, 1, 0)
        told = {each.name: (each.value, each.config_source) for each in made.configs}
        assert set(told) == {row.name for row in TopicConfig.describe()}
        assert (told["retention.ms"], told["preallocate"]) == (("1000", 1), ("false", 5))
        assert not any(each.read_only or each.is_sensitive for each in made.configs)


@pytest.mark.parametrize("version", versions(Api.CREATE_TOPICS))
def test_nothing_is_made_where_it_is_only_judged(store: segstore.Store, version: int) -> None:
    judged, refused = create(
        store, new("t", 2), new("u", 1, retention_ms="soon"), version=version, validate_only=True
    )
    assert (judged.error_code, refused.error_code) == (0, Code.INVALID_CONFIG)
    assert judged.topic_id == ZERO
    assert not store.topics()


def test_minus_one_stands_for_the_defaults(store: segstore.Store) -> None:
    (made,) = create(store, new("t", -1, -1), settings={"num_partitions": 4})
    assert (made.num_partitions, made.replication_factor) == (4, 1)
    assert store.topics()["t"].partitions == 4


def test_replicas_are_assigned_to_the_one_node(store: segstore.Store) -> None:
    (made,) = create(store, assigned((1, [1]), (0, [1])))
    assert (made.error_code, made.num_partitions, store.topics()["t"].partitions) == (0, 2, 2)


REFUSED: dict[str, tuple[Any, Code, str]] = {
    "a name": (new("a b"), Code.INVALID_TOPIC_EXCEPTION, "'a b'"),
    "an internal topic": (new("__consumer_offsets"), Code.INVALID_TOPIC_EXCEPTION, "internal"),
    "one that is there": (new("there"), Code.TOPIC_ALREADY_EXISTS, "'there'"),
    "no partitions": (new("t", 0), Code.INVALID_PARTITIONS, "0 partitions"),
    "too many partitions": (new("t", 100_001), Code.INVALID_PARTITIONS, "100001 partitions"),
    "no replicas": (new("t", 1, 0), Code.INVALID_REPLICATION_FACTOR, "replication factor 0"),
    "more replicas than nodes": (new("t", 1, 3), Code.INVALID_REPLICATION_FACTOR, "one node"),
    "a setting's value": (new(retention_ms="soon"), Code.INVALID_CONFIG, "retention.ms='soon'"),
    "a setting's name": (new(retenton_ms="1"), Code.INVALID_CONFIG, "retention.ms"),
    "a setting of brokers with tiers": (new(remote_storage_enable="true"), Code.INVALID_CONFIG, "there are"),
    "null as a value": (new(retention_ms=None), Code.INVALID_CONFIG, "retention.ms"),
    "settings in conflict": (
        new(min_compaction_lag_ms="2", max_compaction_lag_ms="1"),
        Code.INVALID_CONFIG,
        "min.compaction.lag.ms=2",
    ),
    "assigned, with a number": (assigned((0, [1]), partitions=1), Code.INVALID_REQUEST, "partitions"),
    "assigned, with a factor": (assigned((0, [1]), factor=1), Code.INVALID_REQUEST, "replication factor"),
    "another node": (assigned((0, [2])), Code.INVALID_REPLICA_ASSIGNMENT, "[2]"),
    "two nodes": (assigned((0, [1, 2])), Code.INVALID_REPLICA_ASSIGNMENT, "[1, 2]"),
    "no node": (assigned((0, [])), Code.INVALID_REPLICA_ASSIGNMENT, "[]"),
    "a gap": (assigned((0, [1]), (2, [1])), Code.INVALID_REPLICA_ASSIGNMENT, "[0, 2]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why_and_leaves_the_rest(store: segstore.Store, name: str) -> None:
    wanted, code, told = REFUSED[name]
    store.create_topic("there")
    refused, made = create(store, wanted, new("good"))
    assert (refused.name, refused.error_code, made.error_code) == (wanted.name, code, 0)
    assert told in refused.error_message
    assert set(store.topics()) == {"there", "good"}


def test_a_topic_that_is_there_twice_in_a_request_is_refused(store: segstore.Store) -> None:
    refused, made = create(store, new("t"), new("u"), new("t"))
    assert (refused.name, refused.error_code) == ("t", Code.INVALID_REQUEST)
    assert (made.name, made.error_code, list(store.topics())) == ("u", 0, ["u"])


def test_a_store_that_is_open_for_reading_refuses(store_dir: Any) -> None:
    segstore.open(store_dir).close()
    with segstore.open(store_dir, "r") as store:
        (refused,) = create(store, new())
        assert (refused.error_code, bool(refused.error_message)) == (Code.POLICY_VIOLATION, True)


# --- DeleteTopics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.DELETE_TOPICS))
def test_every_version_deletes(store: segstore.Store, version: int) -> None:
    store.create_topic("t")
    store.create_topic("stays")
    names = ["t", "missing"]
    by_name = {"topics": [State(name=name) for name in names]} if version >= 6 else {"topic_names": names}
    deleted, missing = call(node_of(store), Api.DELETE_TOPICS, version, **by_name).responses
    assert (deleted.name, deleted.error_code, deleted.error_message) == ("t", 0, None)
    assert (missing.name, missing.error_code) == ("missing", Code.UNKNOWN_TOPIC_OR_PARTITION)
    assert list(store.topics()) == ["stays"]


def test_a_topic_is_deleted_by_its_id(store: segstore.Store) -> None:
    topic_id = topic_id_bytes(store.create_topic("t").topic_id)
    wanted = [State(topic_id=topic_id), State(topic_id=b"x" * 16)]
    deleted, missing = call(node_of(store), Api.DELETE_TOPICS, 6, topics=wanted).responses
    assert (deleted.name, deleted.topic_id, deleted.error_code) == ("t", topic_id, 0)
    assert (missing.name, missing.topic_id) == (None, b"x" * 16)
    assert missing.error_code == Code.UNKNOWN_TOPIC_ID
    assert not store.topics()


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ([State()], Code.INVALID_REQUEST),
        ([State(name="t", topic_id=b"x" * 16)], Code.INVALID_REQUEST),
        ([State(name="t"), State(name="t")], Code.INVALID_REQUEST),
        ([State(name="__consumer_offsets")], Code.INVALID_TOPIC_EXCEPTION),
    ],
    ids=["nothing", "both", "twice", "internal"],
)
def test_what_is_not_deleted_says_why(store: segstore.Store, wanted: Any, code: Code) -> None:
    store.create_topic("t")
    store._create_topic("__consumer_offsets", 2, {"cleanup.policy": "compact"})
    (refused,) = call(node_of(store), Api.DELETE_TOPICS, 6, topics=wanted).responses
    assert (refused.error_code, bool(refused.error_message)) == (code, True)
    assert set(store.topics()) == {"t", "__consumer_offsets"}


# --- CreatePartitions -----------------------------------------------------------------------------


def grow(store: segstore.Store, *topics: Any, version: int = 3, **fields: Any) -> list[Any]:
    body = call(node_of(store), Api.CREATE_PARTITIONS, version, topics=list(topics), **fields)
    return [(each.name, each.error_code, bool(each.error_message)) for each in body.results]


@pytest.mark.parametrize("version", versions(Api.CREATE_PARTITIONS))
def test_every_version_grows(store: segstore.Store, version: int) -> None:
    store.create_topic("t")
    wanted = Grown(name="t", count=3, assignments=None)
    assert grow(store, wanted, version=version, validate_only=True) == [("t", 0, False)]
    assert store.topics()["t"].partitions == 1
    assert grow(store, wanted, version=version) == [("t", 0, False)]
    assert store.topics()["t"].partitions == 3


NOT_GROWN: dict[str, tuple[Any, Code]] = {
    "missing": (Grown(name="missing", count=3, assignments=None), Code.UNKNOWN_TOPIC_OR_PARTITION),
    "as many": (Grown(name="t", count=2, assignments=None), Code.INVALID_PARTITIONS),
    "fewer": (Grown(name="t", count=1, assignments=None), Code.INVALID_PARTITIONS),
    "too many": (Grown(name="t", count=100_001, assignments=None), Code.INVALID_PARTITIONS),
    "internal": (Grown(name="__consumer_offsets", count=3, assignments=None), Code.INVALID_TOPIC_EXCEPTION),
    "too few places": (
        Grown(name="t", count=4, assignments=[Placed(broker_ids=[1])]),
        Code.INVALID_REPLICA_ASSIGNMENT,
    ),
    "another node": (
        Grown(name="t", count=3, assignments=[Placed(broker_ids=[2])]),
        Code.INVALID_REPLICA_ASSIGNMENT,
    ),
}


@pytest.mark.parametrize("name", NOT_GROWN)
def test_what_is_not_grown_says_why_and_leaves_the_rest(store: segstore.Store, name: str) -> None:
    wanted, code = NOT_GROWN[name]
    store.create_topic("t", 2)
    store.create_topic("u")
    store._create_topic("__consumer_offsets", 2, {"cleanup.policy": "compact"})
    good = Grown(name="u", count=2, assignments=[Placed(broker_ids=[1])])
    assert grow(store, wanted, good) == [(wanted.name, code, True), ("u", 0, False)]
    assert {each: info.partitions for each, info in store.topics().items()} == {
        "t": 2, "u": 2, "__consumer_offsets": 2,
    }  # fmt: skip


def test_a_topic_that_is_to_grow_twice_is_refused(store: segstore.Store) -> None:
    store.create_topic("t")
    twice = [Grown(name="t", count=count, assignments=None) for count in (2, 3)]
    assert grow(store, *twice) == [("t", Code.INVALID_REQUEST, True)]
    assert store.topics()["t"].partitions == 1
