"""Settings of single groups (KIP-848): told and changed as Kafka's, by the wire and in the process; they go
before the store's, hold from the next heartbeat on, and survive a restart, in a replicated store, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import call, node_of
from groups import Monotonic, Unsynced, coordinator
from parked import BEAT, JOIN, ask

import segstore
from segstore import AdminClient, ConfigResource
from segstore.config import GroupConfig
from segstore.coordinator.group_settings import HEARTBEAT, SESSION, group_settings
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node

GROUP, BROKER, OF_BROKER, DEFAULT, OF_GROUP = 32, 4, 4, 5, 8
SET, DELETE, APPEND = range(3)
OF_STORE = {"offsets.topic.num.partitions": 1, "group.consumer.heartbeat.interval.ms": 6_000}
INCREMENTAL, WHOLE = structs("IncrementalAlterConfigsRequest"), structs("AlterConfigsRequest")
DESCRIBED = structs("DescribeConfigsRequest").DescribeConfigsResource


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=OF_STORE, files=Unsynced()) as store:
        store.create_topic("t")
        yield store


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def node(store: segstore.Store, clock: Monotonic) -> Node:
    coordinator(store, clock)
    return node_of(store, group_initial_rebalance_delay_ms=0)


def described(node: Node, group: str = "g", **fields: Any) -> dict[str, tuple[str, int]]:
    """The settings of consumer groups; those of share groups have the same form."""
    resource = DESCRIBED(resource_type=GROUP, resource_name=group, configuration_keys=None)
    (result,) = call(node, Api.DESCRIBE_CONFIGS, 4, resources=[resource], **fields).results
    assert (result.error_code, result.resource_type, result.resource_name) == (Code.NONE, GROUP, group)
    assert not any(entry.read_only for entry in result.configs)
    assert {entry.name for entry in result.configs} == {row.name for row in GroupConfig.describe()}
    found = {entry.name: (entry.value, entry.config_source) for entry in result.configs}
    return {name: found[name] for name in (HEARTBEAT, SESSION)}


def alter(node: Node, *changes: tuple[str, int, str | None], group: str = "g", **fields: Any) -> int:
    made = INCREMENTAL.AlterConfigsResource
    configs = [
        INCREMENTAL.AlterableConfig(name=name, config_operation=operation, value=value)
        for name, operation, value in changes
    ]
    resource = made(resource_type=GROUP, resource_name=group, configs=configs)
    answer = call(node, Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], **fields)
    (result,) = answer.responses
    assert bool(result.error_message) == bool(result.error_code)
    return int(result.error_code)


def listed(node: Node) -> list[str]:
    answer = call(node, Api.LIST_CONFIG_RESOURCES, 1, resource_types=[GROUP])
    return [each.resource_name for each in answer.config_resources]


def test_settings_of_a_group_have_the_broker_s_behind_them(node: Node) -> None:
    """By the broker's names, and with the default that the broker has."""
    assert alter(node, (SESSION, SET, "50000"), (HEARTBEAT, SET, "7000")) == Code.NONE
    resource = DESCRIBED(resource_type=GROUP, resource_name="g", configuration_keys=None)
    answer = call(node, Api.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True)
    (result,) = answer.results
    assert {
        entry.name: [(each.name, each.value, each.source) for each in entry.synonyms]
        for entry in result.configs
        if entry.name.startswith("consumer.")
    } == {
        SESSION: [(SESSION, "50000", OF_GROUP), (f"group.{SESSION}", "45000", DEFAULT)],
        HEARTBEAT: [
            (HEARTBEAT, "7000", OF_GROUP),
            (f"group.{HEARTBEAT}", "6000", OF_BROKER),
            (f"group.{HEARTBEAT}", "5000", DEFAULT),
        ],
    }


def test_a_group_has_the_store_s_settings_until_it_has_its_own(node: Node) -> None:
    assert described(node) == {HEARTBEAT: ("6000", OF_BROKER), SESSION: ("45000", DEFAULT)}
    assert listed(node) == []
    assert alter(node, (SESSION, SET, "50000")) == Code.NONE
    assert described(node) == {HEARTBEAT: ("6000", OF_BROKER), SESSION: ("50000", OF_GROUP)}
    assert described(node, "h")[SESSION] == ("45000", DEFAULT)
    assert listed(node) == ["g"]
    assert alter(node, (SESSION, DELETE, None)) == Code.NONE
    assert (described(node)[SESSION], listed(node)) == (("45000", DEFAULT), [])


def test_all_settings_are_replaced(node: Node) -> None:
    assert alter(node, (SESSION, SET, "50000")) == Code.NONE
    made = WHOLE.AlterConfigsResource
    configs = [WHOLE.AlterableConfig(name=HEARTBEAT, value="7000")]
    resource = made(resource_type=GROUP, resource_name="g", configs=configs)
    (result,) = call(node, Api.ALTER_CONFIGS, 2, resources=[resource]).responses
    assert result.error_code == Code.NONE
    assert described(node) == {HEARTBEAT: ("7000", OF_GROUP), SESSION: ("45000", DEFAULT)}


REFUSED: dict[str, tuple[tuple[str, int, str | None], Code]] = {
    "a session below the least": ((SESSION, SET, "44999"), Code.INVALID_CONFIG),
    "a session above the most": ((SESSION, SET, "60001"), Code.INVALID_CONFIG),
    "an interval below the least": ((HEARTBEAT, SET, "4999"), Code.INVALID_CONFIG),
    "an interval above the most": ((HEARTBEAT, SET, "15001"), Code.INVALID_CONFIG),
    "no number": ((SESSION, SET, "long"), Code.INVALID_CONFIG),
    "an unknown setting": (("session.timeout.ms", SET, "50000"), Code.INVALID_CONFIG),
    "a setting of topics": (("retention.ms", SET, "1"), Code.INVALID_CONFIG),
    "no list": ((SESSION, APPEND, "50000"), Code.INVALID_CONFIG),
    "an unknown operation": ((SESSION, 9, "50000"), Code.INVALID_REQUEST),
    "null": ((SESSION, SET, None), Code.INVALID_REQUEST),
}


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing(node: Node, name: str, validate_only: bool) -> None:
    change, code = REFUSED[name]
    assert alter(node, change, validate_only=validate_only) == code
    assert alter(node, (SESSION, SET, "50000"), change, validate_only=validate_only) in (
        code,
        Code.INVALID_REQUEST,  # a setting that is there twice
    )
    assert listed(node) == []


def test_a_group_must_be_named(node: Node) -> None:
    assert alter(node, (SESSION, SET, "50000"), group="") == Code.INVALID_REQUEST
    resource = DESCRIBED(resource_type=GROUP, resource_name="", configuration_keys=None)
    (result,) = call(node, Api.DESCRIBE_CONFIGS, 4, resources=[resource]).results
    assert result.error_code == Code.INVALID_REQUEST


def test_a_session_is_longer_than_an_interval(store_dir: Path) -> None:
    bounds = {"group.consumer.min.session.timeout.ms": 1, "group.consumer.min.heartbeat.interval.ms": 1}
    with segstore.open(store_dir, config=bounds) as store:
        settings = group_settings(store)
        with pytest.raises(
            segstore.ConfigError, match=r"must be greater than consumer.heartbeat.interval.ms"
        ):
            settings.alter("g", {SESSION: 5_000})
        settings.alter("g", {SESSION: 5_000, HEARTBEAT: 4_999})
        assert settings.timing("g") == (5_000, 4_999)


def test_what_is_only_judged_changes_nothing(node: Node) -> None:
    assert alter(node, (SESSION, SET, "50000"), validate_only=True) == Code.NONE
    assert listed(node) == []


def test_members_hear_of_it_at_their_next_heartbeat(node: Node, clock: Monotonic) -> None:
    """The interval is told, and the session lasts as long as the group's setting says."""
    beat = Api.CONSUMER_GROUP_HEARTBEAT
    assert ask(node, beat, 1, **JOIN).heartbeat_interval_ms == 6_000
    assert alter(node, (HEARTBEAT, SET, "9000"), (SESSION, SET, "60000")) == Code.NONE
    assert ask(node, beat, 1, **BEAT).heartbeat_interval_ms == 9_000
    clock.now += 59_000
    assert ask(node, beat, 1, **BEAT).error_code == Code.NONE
    clock.now += 61_000
    assert ask(node, beat, 1, **BEAT).error_code == Code.UNKNOWN_MEMBER_ID


def test_they_survive_a_restart(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        group_settings(store).alter("g", {SESSION: "50000"})
        group_settings(store).alter("h", {HEARTBEAT: 7_000})
    for mode in ("r", "rw"):
        with segstore.open(store_dir, mode=mode) as store:
            settings = group_settings(store)
            assert (settings.groups(), settings.timing("g")) == (["g", "h"], (50_000, 5_000))


def test_an_admin_client_in_the_process(store: segstore.Store) -> None:
    with AdminClient(store) as admin:
        admin.alter_configs([ConfigResource("GROUP", "g", {SESSION: 50_000})])
        found = admin.describe_configs([ConfigResource("GROUP", "g")])["group"]["g"]
        assert found[SESSION]["value"] == "50000"
        admin.alter_configs([ConfigResource("GROUP", "g", {SESSION: None})], validate_only=True)
        admin.alter_configs([ConfigResource("GROUP", "g", {SESSION: None})])
    assert group_settings(store).groups() == []


def test_a_replicated_store_keeps_them_in_its_metadata(tmp_path: Path) -> None:
    """As Kafka does, so that a directory that comes back late has no older ones; and a plain store takes them
    along, both ways.
    """
    paths = [tmp_path / name for name in ("a", "b", "c")]
    with segstore.open(paths[0]) as plain:
        plain.create_topic("g", 1)  # a topic of the group's name keeps its settings apart
        group_settings(plain).alter("kept", {HEARTBEAT: 8_000})
    with segstore.open_replicated(paths, adopt=True) as store:
        store.reassign({("g", 0): [0, 1, 2]})
        group_settings(store).alter("g", {SESSION: 50_000})
        group_settings(store).alter("g", {HEARTBEAT: 6_000, SESSION: None})
    with segstore.open_replicated(paths) as store:
        settings = group_settings(store)
        assert settings.groups() == ["g", "kept"]
        assert (settings.timing("g"), settings.timing("kept")) == ((45_000, 6_000), (45_000, 8_000))
        assert store.topics()["g"].config == {}
        while store.reassignments():
            store.replicated.manager.news.wait(store.engine.publications, 0.05)
    segstore.unreplicate(paths, 1)
    with segstore.open(paths[1]) as plain:
        assert group_settings(plain).groups() == ["g", "kept"]
