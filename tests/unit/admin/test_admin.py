"""`AdminClient`: kafka-python's calls over a store, with kafka-python's own request objects too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kafka.admin
import pytest
from kafka import KafkaAdminClient
from replicated_stores import Directories

import segstore
from segstore import AdminClient, ConfigResource, NewPartitions, NewTopic, TopicPartition, errors
from segstore.client.admin.client import AdminConfig

CONFIG = {"retention.ms": "7"}
CREATED: Mapping[str, tuple[Any, int, dict[str, Any]]] = {
    "a name": (["t"], 1, {}),
    "a NewTopic": ([NewTopic("t", 3, 1, topic_configs=CONFIG)], 3, {"retention.ms": 7}),
    "kafka-python's NewTopic": (
        [kafka.admin.NewTopic("t", 2, 1, topic_configs=CONFIG)],
        2,
        {"retention.ms": 7},
    ),
    "a dict": ({"t": {"num_partitions": 2, "configs": CONFIG}}, 2, {"retention.ms": 7}),
    "a dict without options": ({"t": {}}, 1, {}),
    "assignments": ([NewTopic("t", replica_assignments={0: [0], 1: [0]})], 2, {}),
}
REFUSED: Mapping[str, tuple[Callable[[AdminClient], Any], type[Exception]]] = {
    "a topic that exists": (lambda a: a.create_topics(["there"]), errors.TopicAlreadyExistsError),
    "a setting that is unknown": (
        lambda a: a.create_topics([NewTopic("t", topic_configs={"retention": 1})]),
        errors.ConfigError,
    ),
    "replicas where there are none": (
        lambda a: a.create_topics([NewTopic("t", 1, 3)]),
        errors.InvalidArgumentError,
    ),
    "a topic twice": (lambda a: a.create_topics(["t", "t"]), errors.InvalidArgumentError),
    "no topic": (lambda a: a.create_topics([]), errors.InvalidArgumentError),
    "a text for a list": (lambda a: a.create_topics("t"), errors.InvalidTypeError),
    "a number for a topic": (lambda a: a.create_topics([7]), errors.InvalidTypeError),
    "an option that is unknown": (lambda a: a.create_topics({"t": {"size": 1}}), errors.InvalidArgumentError),
    "an internal topic": (lambda a: a.create_topics(["__consumer_offsets"]), errors.InvalidTopicError),
    "only tried, and exists": (
        lambda a: a.create_topics(["there"], validate_only=True),
        errors.TopicAlreadyExistsError,
    ),
    "a topic to delete that is not there": (
        lambda a: a.delete_topics(["no"]),
        errors.UnknownTopicOrPartitionError,
    ),
    "fewer partitions": (lambda a: a.create_partitions({"there": 1}), errors.InvalidArgumentError),
    "fewer partitions, only tried": (
        lambda a: a.create_partitions({"there": 1}, validate_only=True),
        errors.InvalidArgumentError,
    ),
    "partitions with replicas": (
        lambda a: a.create_partitions({"there": NewPartitions(3, [[0]])}),
        errors.InvalidArgumentError,
    ),
    "an unknown topic's settings": (
        lambda a: a.describe_configs([ConfigResource("topic", "no")]),
        errors.UnknownTopicOrPartitionError,
    ),
    "a filter that is unknown": (
        lambda a: a.describe_configs([], config_filter="some"),
        errors.InvalidArgumentError,
    ),
    "a resource that is unknown": (lambda a: ConfigResource("user", "u"), errors.InvalidArgumentError),
    "no resource": (lambda a: a.alter_configs(["there"]), errors.InvalidTypeError),
    "settings without values": (
        lambda a: a.alter_configs([ConfigResource("topic", "there", ["retention.ms"])]),
        errors.InvalidTypeError,
    ),
    "the store's settings": (
        lambda a: a.alter_configs([ConfigResource("broker", "0", {"x": 1})]),
        errors.InvalidArgumentError,
    ),
    "a value that is not allowed, only tried": (
        lambda a: a.alter_configs(
            [ConfigResource("topic", "there", {"retention.ms": "x"})], validate_only=True
        ),
        errors.ConfigError,
    ),
    "a group that is not there": (lambda a: a.describe_groups(["no"]), errors.GroupNotFoundError),
    "records of a partition that is not there": (
        lambda a: a.delete_records({TopicPartition("there", 9): 0}),
        errors.UnknownTopicOrPartitionError,
    ),
    "records behind the end": (
        lambda a: a.delete_records({TopicPartition("there", 0): 9}),
        errors.OffsetOutOfRangeError,
    ),
}


@pytest.fixture
def admin(store: segstore.Store) -> AdminClient:
    return segstore.KafkaAdminClient(store)


@pytest.mark.parametrize(("given", "partitions", "config"), CREATED.values(), ids=CREATED)
def test_topics_are_created(
    admin: AdminClient, store: segstore.Store, given: Any, partitions: int, config: dict[str, Any]
) -> None:
    assert admin.create_topics(given, validate_only=True)["topics"][0]["error_code"] == 0
    assert admin.list_topics() == []
    (result,) = admin.create_topics(given, timeout_ms=1000)["topics"]
    assert (result["name"], result["error_code"], result["num_partitions"]) == ("t", 0, partitions)
    info = store.topics()["t"]
    assert (info.partitions, info.config) == (partitions, config)
    (described,) = admin.describe_topics()
    assert [part["partition_index"] for part in described["partitions"]] == list(range(partitions))
    assert described["topic_id"] == info.topic_id


@pytest.mark.parametrize(("call", "error"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_changes_nothing(
    admin: AdminClient, store: segstore.Store, call: Callable[[AdminClient], Any], error: type[Exception]
) -> None:
    store.create_topic("there", 2, CONFIG)
    before = store.topics()
    with pytest.raises(error):
        call(admin)
    assert store.topics() == before


def test_each_topic_succeeds_or_fails_alone(admin: AdminClient) -> None:
    admin.create_topics(["a"])
    results = admin.create_topics(["a", "b", "bad name"], raise_errors=False)["topics"]
    assert [(each["name"], each["error_code"]) for each in results] == [("a", 36), ("b", 0), ("bad name", 17)]
    assert results[0]["error_message"] == "topic 'a' is there already"
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics(["b", "c"])
    assert admin.list_topics() == ["a", "b", "c"]
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics(["no", "a"])
    assert [each["error_code"] for each in admin.delete_topics(["a", "b"], raise_errors=False)["topics"]] == [
        3,
        0,
    ]
    assert admin.list_topics() == ["c"]


def test_partitions_settings_and_records(admin: AdminClient, store: segstore.Store) -> None:
    admin.create_topics([NewTopic("t", 1, topic_configs=CONFIG)])
    assert admin.create_partitions({"t": NewPartitions(2)})["results"][0]["error_code"] == 0
    admin.create_partitions({"t": 4}, validate_only=True)
    admin.create_partitions({"t": {"count": 3}})
    assert store.topics()["t"].partitions == 3

    theirs = kafka.admin.ConfigResource("topic", "t")
    for resource in (theirs, ConfigResource("TOPIC", "t")):
        made = admin.describe_configs([resource])["topic"]["t"]
        assert {name: each["value"] for name, each in made.items()} == {"retention.ms": "7"}
    full = admin.describe_configs([theirs], config_filter="all")["topic"]["t"]
    assert full["cleanup.policy"]["is_default"]
    named = admin.describe_configs([ConfigResource("topic", "t", ["segment.bytes"])])["topic"]["t"]
    assert list(named) == ["segment.bytes"]
    assert (
        "max.open.files"
        in admin.describe_configs([ConfigResource("broker", "0")], config_filter="all")["broker"]["0"]
    )

    change = {"retention.ms": None, "segment.bytes": 5000}
    admin.alter_configs([ConfigResource("topic", "t", change)], validate_only=True)
    assert store.topics()["t"].config == {"retention.ms": 7}
    assert admin.alter_configs([ConfigResource("topic", "t", change)]) == {"topic": {"t": None}}
    assert store.topics()["t"].config == {"segment.bytes": 5000}

    store.partition("t", 1).append_batch([b"v"] * 5)
    tp = TopicPartition("t", 1)
    assert admin.delete_records({tp: 2}) == {tp: {"low_watermark": 2, "error_code": 0}}
    assert admin.delete_records({tp: -1})[tp]["low_watermark"] == 5


def test_groups(admin: AdminClient, store: segstore.Store) -> None:
    store.create_topic("t")
    store.partition("t").append_batch([b"v"] * 5)
    consumer = segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest")
    tp, got = TopicPartition("t", 0), 0
    while not got:
        got = sum(map(len, consumer.poll(1000, max_records=2).values()))
    consumer.commit()
    assert admin.list_consumer_groups() == [("g", "consumer")]
    assert admin.list_groups()[0]["group_state"] == "Stable"
    (described,) = admin.describe_consumer_groups(["g"])
    assert (len(described.members), described.lag) == (1, 3)
    assert admin.list_consumer_group_offsets("g")[tp].offset == 2
    assert admin.list_consumer_group_offsets("g", [TopicPartition("u", 0)]) == {}
    ((_, error),) = admin.delete_consumer_groups(["g"])
    assert isinstance(error, errors.NonEmptyGroupError)
    consumer.close()
    assert admin.delete_consumer_groups(["g"]) == [("g", None)]
    assert admin.list_consumer_groups() == []


def test_settings_of_the_network_have_no_effect(
    store: segstore.Store, caplog: pytest.LogCaptureFixture
) -> None:
    known = set(KafkaAdminClient.DEFAULT_CONFIG)
    assert known - set(AdminConfig.IGNORED) - set(AdminConfig.REFUSED) == {"client_id"}
    with segstore.KafkaAdminClient(
        store, client_id="me", request_timeout_ms=5, metadata_max_age_ms=7
    ) as admin:
        assert admin.config.client_id == "me"
    assert len(caplog.records) == 1
    with pytest.raises(errors.ConfigError):
        AdminClient(store, bootstrap_servers="kafka:9092")
    with pytest.raises(errors.InvalidTypeError):
        AdminClient("path")  # type: ignore[arg-type]


def test_after_close_it_takes_no_call_and_the_store_stays_open(store: segstore.Store) -> None:
    with AdminClient(store) as admin:
        admin.create_topics(["t"])
    for call in (admin.list_topics, admin.list_groups, lambda: admin.create_topics(["u"])):
        with pytest.raises(errors.ClientClosedError):
            call()
    assert list(store.topics()) == ["t"]


def test_a_reader_lists_and_may_change_nothing(store: segstore.Store) -> None:
    store.create_topic("t")
    with segstore.open(store.path, "r") as reader:
        admin = AdminClient(reader)
        assert admin.list_topics() == ["t"]
        assert admin.describe_configs([ConfigResource("topic", "t")]) == {"topic": {"t": {}}}
        with pytest.raises(errors.ReadOnlyError):
            admin.create_topics(["u"])


def test_replicas_are_described(tmp_path: Path) -> None:
    directories = Directories(tmp_path, 2)
    try:
        with directories.open() as store:
            admin = AdminClient(store)
            admin.create_topics([NewTopic("t", 1, 2), NewTopic("u", replica_assignments={0: [1]})])
            described = {each["name"]: each["partitions"][0] for each in admin.describe_topics()}
            assert sorted(described["t"]["replica_nodes"]) == [0, 1]
            assert described["u"]["leader_id"] == 1
    finally:
        directories.close()
