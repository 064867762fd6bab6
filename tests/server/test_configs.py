"""Promise: over the wire every setting is told with where it comes from, and a topic's are changed as by
`Store.alter_topic`: wrong ones are refused by name, and nothing is changed then.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from calls import call, node_of, versions

import segstore
from segstore.config import StoreConfig, TopicConfig
from segstore.coordinator import config_entries
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.settings import ServerConfig

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
OF_TOPIC, OF_ALL_BROKERS, OF_BROKER, DEFAULT = 1, 3, 4, 5
SET, DELETE, APPEND, SUBTRACT = range(4)
Described = structs("DescribeConfigsRequest").DescribeConfigsResource
INCREMENTAL = structs("IncrementalAlterConfigsRequest")
WHOLE = structs("AlterConfigsRequest")


def describe(store: segstore.Store, *resources: Any, version: int = 4, **fields: Any) -> list[Any]:
    settings = fields.pop("settings", {})
    wanted = [
        Described(resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name, keys in resources
    ]
    body = call(node_of(store, **settings), Api.DESCRIBE_CONFIGS, version, resources=wanted, **fields)
    return list(body.results)


# --- DescribeConfigs ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_CONFIGS))
def test_a_topic_s_settings_are_told_with_their_sources(store: segstore.Store, version: int) -> None:
    store.create_topic("t", config={"retention.ms": 1000, "cleanup.policy": "compact,delete"})
    fields = {"include_synonyms": True, "include_documentation": version >= 3}
    (result,) = describe(store, (TOPIC, "t", None), version=version, **fields)
    assert (result.error_code, result.error_message, result.resource_name) == (0, None, "t")
    entries = {each.name: each for each in result.configs}
    assert list(entries) == [row.name for row in TopicConfig.describe()]
    changed, kept = entries["retention.ms"], entries["min.cleanable.dirty.ratio"]
    assert (changed.value, changed.config_source, changed.read_only) == ("1000", OF_TOPIC, False)
    assert [(each.value, each.source) for each in changed.synonyms] == [("1000", OF_TOPIC), ("-1", DEFAULT)]
    assert (kept.value, kept.config_source) == ("0.5", DEFAULT)
    assert [(each.value, each.source) for each in kept.synonyms] == [("0.5", DEFAULT)]
    assert entries["cleanup.policy"].value == "compact,delete"
    if version >= 3:
        kinds = {"retention.ms": 5, "cleanup.policy": 7, "preallocate": 1, "segment.bytes": 3}
        kinds |= {"compression.type": 2, "min.cleanable.dirty.ratio": 6}
        assert {name: entries[name].config_type for name in kinds} == kinds
        assert "delete segments that are older" in changed.documentation


@pytest.mark.parametrize("keys", [["retention.ms", "nothing"], None, []], ids=["some", "null", "empty"])
def test_settings_are_told_by_name(store: segstore.Store, keys: list[str] | None) -> None:
    store.create_topic("t")
    (result,) = describe(store, (TOPIC, "t", keys))
    names = [each.name for each in result.configs]
    assert names == (["retention.ms"] if keys else [row.name for row in TopicConfig.describe()])
    assert all(each.synonyms == [] and each.documentation is None for each in result.configs)


def test_the_broker_s_settings_are_the_server_s_and_the_store_s(store: segstore.Store) -> None:
    settings = {"num_partitions": 4, "group_initial_rebalance_delay_ms": 7}
    (result,) = describe(store, (BROKER, "1", None), settings=settings)
    entries = {each.name: (each.value, each.config_source) for each in result.configs}
    own = {row.name.replace("_", ".") for row in ServerConfig.describe()}
    assert set(entries) == own | {row.name for row in StoreConfig.describe()} | {"advertised.listeners"}
    assert all(each.read_only for each in result.configs)
    assert entries["num.partitions"] == ("4", OF_BROKER)
    assert entries["group.initial.rebalance.delay.ms"] == ("7", OF_BROKER)  # the store's is another one
    assert entries["auto.create.topics.enable"] == ("true", DEFAULT)
    assert entries["offsets.topic.num.partitions"] == ("2", OF_BROKER)


def test_the_broker_tells_where_it_listens(store: segstore.Store) -> None:
    (broker,) = describe(store, (BROKER, "1", ["advertised.listeners"]))
    (entry,) = broker.configs
    assert (entry.value, entry.read_only) == ("PLAINTEXT://broker.test:9092", True)
    assert config_entries.of_listeners("SASL_SSL", "::1", 9093).value == "SASL_SSL://[::1]:9093"


LISTED: dict[str, tuple[int, list[int], list[tuple[int, str]]]] = {
    "all": (1, [], [(4, "1"), (2, "t"), (2, "u")]),
    "topics": (1, [2], [(2, "t"), (2, "u")]),
    "what has none here": (1, [8, 16, 32], []),
    "client metrics, by an old client": (0, [], []),
}


@pytest.mark.parametrize("name", LISTED)
def test_what_has_settings_is_listed(store: segstore.Store, name: str) -> None:
    store.create_topic("t")
    store.create_topic("u")
    version, types, wanted = LISTED[name]
    body = call(node_of(store), Api.LIST_CONFIG_RESOURCES, version, resource_types=types)
    found = [(each.resource_type, each.resource_name) for each in body.config_resources]
    assert (body.error_code, found) == (0, wanted)


def test_what_can_not_have_settings_is_not_listed(store: segstore.Store) -> None:
    body = call(node_of(store), Api.LIST_CONFIG_RESOURCES, 1, resource_types=[2, 3])
    assert (body.error_code, body.config_resources) == (Code.UNSUPPORTED_VERSION, [])


@pytest.mark.parametrize("made", [None, 2])
def test_all_brokers_together_have_one_setting(store_dir: Path, made: int | None) -> None:
    """By it a controller knows who is an eligible leader replica; topics have it from there."""
    config = {} if made is None else {"min.insync.replicas": made}
    with segstore.open(store_dir, config=config) as store:
        store.create_topic("t")
        store.create_topic("u", config={"min.insync.replicas": 3})
        resources = ((BROKER, ""), (BROKER, "1"), (TOPIC, "t"), (TOPIC, "u"))
        keys = ["min.insync.replicas"]
        results = describe(store, *((*each, keys) for each in resources), include_synonyms=True)
        assert [result.error_code for result in results] == [0] * 4
        found = [(each.value, each.config_source) for result in results for each in result.configs]
        assert found == [(str(made or 1), OF_ALL_BROKERS)] * 3 + [("3", OF_TOPIC)]
        synonyms = [[(each.value, each.source) for each in result.configs[0].synonyms] for result in results]
        of_all, default = (str(made or 1), OF_ALL_BROKERS), ("1", DEFAULT)
        assert synonyms == [[of_all], *[[of_all, default]] * 2, [("3", OF_TOPIC), of_all, default]]
        (whole,) = describe(store, (BROKER, "", None))
        assert [each.name for each in whole.configs] == keys


def test_a_topic_has_what_its_store_makes_for_all(store_dir: Path) -> None:
    keys = ["unclean.leader.election.enable"]
    with segstore.open(store_dir, config={keys[0]: True}) as store:
        store.create_topic("t")
        store.create_topic("u", config={keys[0]: False})
        results = describe(store, (TOPIC, "t", keys), (TOPIC, "u", keys))
        found = [(each.value, each.config_source) for result in results for each in result.configs]
        assert found == [("true", OF_BROKER), ("false", OF_TOPIC)]


UNKNOWN = {
    "a topic": ((TOPIC, "missing", None), Code.UNKNOWN_TOPIC_OR_PARTITION),
    "a topic's name": ((TOPIC, "a b", None), Code.INVALID_TOPIC_EXCEPTION),
    "a broker": ((BROKER, "2", None), Code.INVALID_REQUEST),
    "a broker's name": ((BROKER, "one", None), Code.INVALID_REQUEST),
    "a group without a name": ((GROUP, "", None), Code.INVALID_REQUEST),
    "loggers of another broker": ((LOGGER, "2", None), Code.INVALID_REQUEST),
    "loggers of all brokers": ((LOGGER, "", None), Code.INVALID_REQUEST),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_there_says_so(store: segstore.Store, name: str) -> None:
    resource, code = UNKNOWN[name]
    store.create_topic("t")
    refused, told = describe(store, resource, (TOPIC, "t", None))
    assert (refused.error_code, refused.configs, bool(refused.error_message)) == (code, [], True)
    assert (told.error_code, bool(told.configs)) == (0, True)


# --- AlterConfigs, IncrementalAlterConfigs --------------------------------------------------------


def replace(store: segstore.Store, *resources: Any, version: int = 2, **fields: Any) -> list[Any]:
    wanted = [
        WHOLE.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[WHOLE.AlterableConfig(name=key, value=value) for key, value in configs],
        )
        for kind, name, configs in resources
    ]
    return list(call(node_of(store), Api.ALTER_CONFIGS, version, resources=wanted, **fields).responses)


def change(store: segstore.Store, *resources: Any, version: int = 1, **fields: Any) -> list[Any]:
    wanted = [
        INCREMENTAL.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                INCREMENTAL.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in configs
            ],
        )
        for kind, name, configs in resources
    ]
    node = node_of(store)
    return list(call(node, Api.INCREMENTAL_ALTER_CONFIGS, version, resources=wanted, **fields).responses)


@pytest.mark.parametrize("version", versions(Api.ALTER_CONFIGS))
def test_a_topic_gets_just_the_settings_that_are_given(store: segstore.Store, version: int) -> None:
    store.create_topic("t", config={"retention.ms": 1000, "flush.ms": 5})
    wanted = (TOPIC, "t", [("flush.ms", "6"), ("segment.bytes", "1000")])
    (judged,) = replace(store, wanted, version=version, validate_only=True)
    assert (judged.error_code, store.topics()["t"].config) == (0, {"retention.ms": 1000, "flush.ms": 5})
    (done,) = replace(store, wanted, version=version)
    assert (done.error_code, done.error_message, done.resource_type, done.resource_name) == (0, None, 2, "t")
    assert store.topics()["t"].config == {"flush.ms": 6, "segment.bytes": 1000}


@pytest.mark.parametrize("version", versions(Api.INCREMENTAL_ALTER_CONFIGS))
def test_settings_are_changed_one_by_one(store: segstore.Store, version: int) -> None:
    store.create_topic("t", config={"retention.ms": 1000, "flush.ms": 5})
    wanted = (TOPIC, "t", [("flush.ms", DELETE, None), ("segment.bytes", SET, "1000")])
    (judged,) = change(store, wanted, version=version, validate_only=True)
    assert (judged.error_code, store.topics()["t"].config) == (0, {"retention.ms": 1000, "flush.ms": 5})
    (done,) = change(store, wanted, version=version)
    assert (done.error_code, done.error_message, done.resource_type, done.resource_name) == (0, None, 2, "t")
    assert store.topics()["t"].config == {"retention.ms": 1000, "segment.bytes": 1000}


NOTHING_TO_DO = {
    "of a topic": (TOPIC, "t", [("foo", DELETE, None), ("flush.ms", DELETE, None)]),
    "of a group": (GROUP, "g", [("foo", DELETE, None)]),
    "of the broker": (BROKER, "1", [("leader.replication.throttled.rate", DELETE, None)]),
    "of all brokers": (BROKER, "", [("node.id", DELETE, None), ("foo", DELETE, None)]),
    "of loggers, none": (LOGGER, "1", []),
}


@pytest.mark.parametrize("name", NOTHING_TO_DO)
def test_what_is_not_set_may_be_deleted(store: segstore.Store, name: str) -> None:
    """As tools do that only want it to be gone, such as `kafka-reassign-partitions --verify`."""
    store.create_topic("t", config={"retention.ms": 1000})
    (done,) = change(store, NOTHING_TO_DO[name])
    assert (done.error_code, done.error_message) == (0, None)
    assert store.topics()["t"].config == {"retention.ms": 1000}


def test_a_logger_is_not_there_to_be_changed(store: segstore.Store) -> None:
    (refused,) = change(store, (LOGGER, "1", [("root", SET, "INFO")]))
    assert (refused.error_code, "'root'" in refused.error_message) == (Code.INVALID_CONFIG, True)
    (told,) = describe(store, (LOGGER, "1", None))
    assert (told.error_code, told.configs) == (0, [])


NUMBERS = {
    0.5: "0.5",
    0.0: "0.0",
    1e7: "1.0E7",
    1.25e-4: "1.25E-4",
    sys.float_info.max: "1.7976931348623157E308",
}


@pytest.mark.parametrize("number", NUMBERS)
def test_fractions_are_told_as_java_writes_them(number: float) -> None:
    assert config_entries.text(number) == NUMBERS[number]


def test_null_is_no_default(store: segstore.Store) -> None:
    """Also if it is that of a password."""
    keys = ["super.users", "ssl.keystore.location", "ssl.keystore.key", "advertised.listeners"]
    (told,) = describe(store, (BROKER, "1", keys), include_synonyms=True)
    assert {each.name: [s.source for s in each.synonyms] for each in told.configs} == {
        "super.users": [DEFAULT],
        "ssl.keystore.location": [],
        "ssl.keystore.key": [],
        "advertised.listeners": [OF_BROKER],
    }


def test_defaults_of_a_topic_have_the_names_of_a_broker_s_settings(store: segstore.Store) -> None:
    store.create_topic("t", config={"cleanup.policy": "compact", "segment.ms": 7})
    keys = ["cleanup.policy", "segment.ms", "segment.bytes", "flush.ms", "compression.type"]
    (told,) = describe(store, (TOPIC, "t", keys), include_synonyms=True)
    assert {each.name: [(s.name, s.value) for s in each.synonyms] for each in told.configs} == {
        "cleanup.policy": [("cleanup.policy", "compact"), ("log.cleanup.policy", "delete")],
        "segment.ms": [("segment.ms", "7")],
        "segment.bytes": [("log.segment.bytes", str(1 << 30))],
        "flush.ms": [],
        "compression.type": [("compression.type", "producer")],
    }


@pytest.mark.parametrize(
    ("before", "operation", "given", "after"),
    [
        ("delete", APPEND, "compact", "delete,compact"),
        ("delete", APPEND, "delete", "delete"),
        ("compact", APPEND, "delete, compact", "compact,delete"),
        ("compact,delete", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "compact", ""),
        ("", APPEND, "compact", "compact"),
    ],
)
def test_lists_are_edited(store: segstore.Store, before: str, operation: int, given: str, after: str) -> None:
    store.create_topic("t", config={"cleanup.policy": before})
    (done,) = change(store, (TOPIC, "t", [("cleanup.policy", operation, given)]))
    assert (done.error_code, store.topics()["t"].config) == (0, {"cleanup.policy": after})


def test_a_default_is_appended_to(store: segstore.Store) -> None:
    store.create_topic("t")
    change(store, (TOPIC, "t", [("cleanup.policy", APPEND, "compact")]))
    assert store.topics()["t"].config == {"cleanup.policy": "delete,compact"}


REFUSED: dict[str, tuple[str, list[tuple[str, int, str | None]], Code, str]] = {
    "a value": ("t", [("retention.ms", SET, "soon")], Code.INVALID_CONFIG, "retention.ms='soon'"),
    "a name": ("t", [("retenton.ms", SET, "1")], Code.INVALID_CONFIG, "retention.ms"),
    "one of two": ("t", [("flush.ms", SET, "1"), ("foo", SET, "1")], Code.INVALID_CONFIG, "'foo'"),
    "null": ("t", [("flush.ms", SET, None)], Code.INVALID_REQUEST, "flush.ms"),
    "twice": ("t", [("flush.ms", SET, "1"), ("flush.ms", SET, "2")], Code.INVALID_REQUEST, "flush.ms"),
    "an operation": ("t", [("flush.ms", 4, "1")], Code.INVALID_REQUEST, "operation 4"),
    "no list": ("t", [("flush.ms", APPEND, "1")], Code.INVALID_CONFIG, "flush.ms is no list"),
    "a topic": ("missing", [("flush.ms", SET, "1")], Code.UNKNOWN_TOPIC_OR_PARTITION, "'missing'"),
    "compaction of an internal topic": (
        "__consumer_offsets",
        [("cleanup.policy", SET, "delete")],
        Code.INVALID_TOPIC_EXCEPTION,
        "internal",
    ),
}  # fmt: skip


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why_and_changes_nothing(
    store: segstore.Store, name: str, validate_only: bool
) -> None:
    topic, configs, code, told = REFUSED[name]
    store.create_topic("t")
    store._create_topic("__consumer_offsets", 2, {"cleanup.policy": "compact"})
    before = {each: info.config for each, info in store.topics().items()}
    (refused,) = change(store, (TOPIC, topic, configs), validate_only=validate_only)
    assert (refused.error_code, told in refused.error_message) == (code, True)
    assert {each: info.config for each, info in store.topics().items()} == before


@pytest.mark.parametrize("name", ["1", ""])
def test_the_broker_s_settings_are_read_only(store: segstore.Store, name: str) -> None:
    (refused,) = change(store, (BROKER, name, [("num.partitions", SET, "2")]))
    assert (refused.error_code, "read-only" in refused.error_message) == (Code.INVALID_REQUEST, True)
    (refused,) = replace(store, (BROKER, name, [("num.partitions", "2")]))
    assert (refused.error_code, "read-only" in refused.error_message) == (Code.INVALID_REQUEST, True)


def test_a_resource_that_is_there_twice_is_refused(store: segstore.Store) -> None:
    store.create_topic("t")
    store.create_topic("u")
    wanted = [(TOPIC, topic, [("flush.ms", SET, "1")]) for topic in ("t", "u", "t")]
    assert [each.error_code for each in change(store, *wanted)] == [42, 0, 42]
    assert [info.config for info in store.topics().values()] == [{}, {"flush.ms": 1}]
