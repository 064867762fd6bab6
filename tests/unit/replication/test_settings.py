"""segstore.replication.settings: a topic's own settings go before the store's."""

from __future__ import annotations

import pytest

from segstore.config import StoreConfig
from segstore.config.options import Value
from segstore.replication.core.config import ControllerConfig, ReplicaConfig, TopicSettings
from segstore.replication.settings import ReplicationConfig
from segstore.storage.meta.topics import new_topic

MIN_ISR, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"

Given = dict[str, Value]
HELD: dict[str, tuple[Given, Given, TopicSettings]] = {
    "defaults": ({}, {}, TopicSettings(1, False)),
    "the store's": ({MIN_ISR: 2, UNCLEAN: True}, {}, TopicSettings(2, True)),
    "the topic's": ({}, {MIN_ISR: 3, UNCLEAN: True}, TopicSettings(3, True)),
    "the topic's before the store's": ({MIN_ISR: 2}, {MIN_ISR: 3}, TopicSettings(3, False)),
    "a default that was given": (
        {MIN_ISR: 2, UNCLEAN: True}, {MIN_ISR: 1, UNCLEAN: False}, TopicSettings(1, False)),
    "one of both": ({MIN_ISR: 2, UNCLEAN: True}, {UNCLEAN: False}, TopicSettings(2, False)),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_what_holds_for_a_topic(name: str) -> None:
    store, topic, expected = HELD[name]
    config = ReplicationConfig.of(StoreConfig.parse({"replica.lag.time.max.ms": 500, **store}))
    info = new_topic("t", 1, topic)
    assert config.topic_settings(info) == expected
    assert config.replica_config(info) == ReplicaConfig(expected.min_insync_replicas, 500)


def test_each_setting_of_a_store_has_its_place() -> None:
    given: Given = {
        "default.replication.factor": 2,
        "min.insync.replicas": 3,
        "unclean.leader.election.enable": True,
        "replica.lag.time.max.ms": 4,
        "replica.fetch.max.bytes": 5,
        "replica.fetch.backoff.ms": 6,
        "replica.high.watermark.checkpoint.interval.ms": 7,
        "auto.leader.rebalance.enable": False,
        "leader.imbalance.check.interval.seconds": 8,
        "broker.heartbeat.interval.ms": 9,
        "broker.session.timeout.ms": 10,
    }
    config = ReplicationConfig.of(StoreConfig.parse(given))
    assert config == ReplicationConfig(2, 3, True, 4, 5, 6, 7, False, 8, 9, 10)
    assert config.controller == ControllerConfig(3, True, 10)


def test_defaults_are_those_of_the_core() -> None:
    config = ReplicationConfig.of(StoreConfig())
    assert config.controller == ControllerConfig()
    assert config.replica_config(new_topic("t", 1, {})) == ReplicaConfig()


def test_the_replication_factor_of_new_topics() -> None:
    config = ReplicationConfig.of(StoreConfig.parse({"default.replication.factor": 2}))
    assert config.factor_of("t", 5) == 2
    assert [config.factor_of("__consumer_offsets", directories) for directories in (1, 2, 3, 5)] == [
        1,
        2,
        3,
        3,
    ]
