"""Settings of share groups: what is refused, and what holds of those of a group and of its store."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from groups import Unsynced

import segstore
from segstore.config import GroupConfig, StoreConfig, TopicConfig
from segstore.config.groups import AutoReset, parse_reset
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.share.core.values import Limits
from segstore.coordinator.share_settings import DeadLetterRules, ShareTiming
from segstore.errors import ConfigError

LOCK, LIMIT, WINDOW = (
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
)
SESSION, HEARTBEAT, INTERVAL = (
    "share.session.timeout.ms",
    "share.heartbeat.interval.ms",
    "share.assignment.interval.ms",
)
DEAD_LETTERS, COPY = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"

RESETS: dict[str, AutoReset | None] = {
    "latest": AutoReset("latest"),
    "earliest": AutoReset("earliest"),
    "by_duration:P1DT2H3M4.5S": AutoReset("by_duration", 93_784_500),
    "by_duration:PT0S": AutoReset("by_duration", 0),
    "by_duration:PT1M": AutoReset("by_duration", 60_000),
    "by_duration:PT0.0019S": AutoReset("by_duration", 1),
    "by_duration:P2D": AutoReset("by_duration", 172_800_000),
    "by_duration:PT": None,
    "by_duration:P": None,
    "by_duration:": None,
    "by_duration": None,
    "by_duration:P1DT": None,
    "by_duration:-PT1S": None,
    "by_duration:PT-1S": None,
    "by_duration:1S": None,
    "by_duration:P1M": None,
    f"by_duration:P{'9' * 30}D": None,
    "none": None,
    "LATEST": None,
    "": None,
}


@pytest.mark.parametrize("text", RESETS)
def test_q13_a_reset_is_a_strategy_or_a_duration(text: str) -> None:
    wanted = RESETS[text]
    if wanted is None:
        with pytest.raises(ConfigError, match=r"share\.auto\.offset\.reset="):
            GroupConfig.parse({"share.auto.offset.reset": text})
    else:
        made = GroupConfig.parse({"share.auto.offset.reset": text})
        assert parse_reset(made.share_auto_offset_reset) == wanted


# Tried with Kafka 4.4: a broker's default bounds.
OUT_OF_BOUNDS: dict[str, tuple[dict[str, Any], str]] = {
    "lock too short": ({LOCK: 999}, "must be an integer from 1000"),
    "lock below the bound": ({LOCK: 14_999}, "must be in the range 15000 to 60000 inclusive"),
    "lock above the bound": ({LOCK: 60_001}, "must be in the range 15000 to 60000 inclusive"),
    "one delivery": ({LIMIT: 1}, "must be an integer from 2"),
    "many deliveries": ({LIMIT: 11}, "must be in the range 2 to 10 inclusive"),
    "small window": ({WINDOW: 99}, "must be an integer from 100"),
    "large window": ({WINDOW: 4_001}, "must be in the range 100 to 4000 inclusive"),
    "short session": ({SESSION: 44_999}, "must be in the range 45000 to 60000 inclusive"),
    "short interval": ({HEARTBEAT: 4_999}, "must be in the range 5000 to 15000 inclusive"),
    "long assignment interval": ({INTERVAL: 15_001}, "must be in the range 0 to 15000 inclusive"),
    "isolation": ({"share.isolation.level": "serializable"}, "must be one of read_uncommitted"),
    "internal topic": ({DEAD_LETTERS: "__dead"}, "does not begin with __"),
    "unknown": ({"share.max.size": 1}, "no setting 'share.max.size'"),
    "one of two": ({LOCK: 20_000, LIMIT: 11}, "must be in the range 2 to 10 inclusive"),
}


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_q101_a_value_out_of_bounds_is_refused_and_nothing_changes(store_dir: Path, name: str) -> None:
    changes, message = OUT_OF_BOUNDS[name]
    with segstore.open(store_dir, files=Unsynced()) as store:
        settings = group_settings(store)
        with pytest.raises(ConfigError, match=message):
            settings.alter("g", changes)
        assert settings.groups() == []
        assert settings.share_limits("g") == Limits()


AGAINST_EACH_OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "below the least": (
        {"group.share.record.lock.duration.ms": 10_000},
        r"group\.share\.record\.lock\.duration\.ms=10000: must be from 15000 to 60000",
    ),
    "above the most": (
        {"group.share.session.timeout.ms": 70_000},
        r"group\.share\.session\.timeout\.ms=70000: must be from 45000 to 60000",
    ),
    "session and heartbeat": (
        {
            "group.share.session.timeout.ms": 5_000,
            "group.share.min.session.timeout.ms": 5_000,
        },
        r"must be greater than group\.share\.heartbeat\.interval\.ms=5000",
    ),
    "more members than sessions": (
        {"group.share.max.size": 200, "group.share.max.share.sessions": 199},
        r"must be at most group\.share\.max\.share\.sessions=199",
    ),
}


@pytest.mark.parametrize("name", AGAINST_EACH_OTHER)
def test_a_store_s_settings_may_not_contradict_each_other(name: str) -> None:
    given, message = AGAINST_EACH_OTHER[name]
    with pytest.raises(ConfigError, match=message):
        StoreConfig.parse(given)


def test_a_group_has_its_store_s_settings_unless_it_has_its_own(store_dir: Path) -> None:
    config = {"group.share.delivery.count.limit": 7, "errors.deadletterqueue.topic.name.prefix": "dead."}
    with segstore.open(store_dir, config=config, files=Unsynced()) as store:
        settings = group_settings(store)
        assert settings.share_limits("g") == Limits(2000, 7, 30_000, False, True)
        assert settings.share_timing("g") == ShareTiming(45_000, 5_000, 1_000)
        assert (settings.share_isolation("g"), settings.share_reset("g")) == (
            "read_uncommitted",
            AutoReset("latest"),
        )
        settings.alter("g", {LIMIT: 3, LOCK: "20000", WINDOW: 100, "share.renew.acknowledge.enable": "false"})
        settings.alter("g", {DEAD_LETTERS: "dead.g", COPY: True, "share.isolation.level": "read_committed"})
        settings.alter("g", {SESSION: 60_000, INTERVAL: 0, "share.auto.offset.reset": "earliest"})
        assert settings.share_limits("g") == Limits(100, 3, 20_000, True, False)
        assert settings.share_timing("g") == ShareTiming(60_000, 5_000, 0)
        assert settings.share_isolation("g") == "read_committed"
        assert settings.share_reset("g") == AutoReset("earliest")
        assert settings.dead_letters("g") == DeadLetterRules("dead.g", True, "dead.", False)
        assert settings.share_limits("h") == Limits(2000, 7, 30_000, False, True)
        settings.alter("g", {LIMIT: None})
        assert settings.share_limits("g").deliveries == 7
    with segstore.open(store_dir, files=Unsynced()) as store:
        assert group_settings(store).share_limits("g") == Limits(100, 5, 20_000, True, False)


ENABLE = {"errors.deadletterqueue.group.enable": True}
DEAD_LETTER_TOPICS: dict[str, tuple[DeadLetterRules, TopicConfig | None, str | None]] = {
    "enabled": (DeadLetterRules("dlq.g", False, "dlq.", False), TopicConfig.parse(ENABLE), None),
    "not enabled": (DeadLetterRules("dlq.g", False, "dlq.", True), TopicConfig(), "group.enable is false"),
    "missing": (DeadLetterRules("dlq.g", False, "dlq.", False), None, "no such topic"),
    "missing, and made": (DeadLetterRules("dlq.g", False, "dlq.", True), None, None),
    "another prefix": (DeadLetterRules("dead.g", False, "dlq.", True), None, "must begin with 'dlq.'"),
    "any prefix": (DeadLetterRules("dead.g", False, "", False), TopicConfig.parse(ENABLE), None),
}


@pytest.mark.parametrize("name", DEAD_LETTER_TOPICS)
def test_q67_a_topic_for_dead_letters_must_be_one(name: str) -> None:
    rules, found, wanted = DEAD_LETTER_TOPICS[name]
    told = rules.fault(found)
    assert (told is None) == (wanted is None)
    assert (wanted or "") in (told or "")


def test_q66_without_the_feature_no_group_has_dead_letters(store_dir: Path) -> None:
    with segstore.open(store_dir, files=Unsynced()) as store:
        settings = group_settings(store)
        settings.alter("g", {DEAD_LETTERS: "dlq.g"})
        for level, wanted in ((1, False), (2, True)):
            settings.set_share_version(level)
            assert settings.share_limits("g").dead_letters is wanted
            assert bool(settings.dead_letters("g").topic) is wanted


def test_q101_a_value_that_left_the_bounds_is_clamped_with_a_warning(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with segstore.open(store_dir, files=Unsynced()) as store:
        group_settings(store).alter("g", {LIMIT: 10, WINDOW: 4_000})
    config = {"group.share.max.delivery.count.limit": 6, "group.share.max.partition.max.record.locks": 3_000}
    with (
        caplog.at_level(logging.WARNING, "segstore"),
        segstore.open(store_dir, config=config, files=Unsynced()) as store,
    ):
        settings = group_settings(store)
        for _ in range(3):
            limits = settings.share_limits("g")
            assert (limits.deliveries, limits.window) == (6, 3_000)
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 2  # once each, not at each use
        assert "share.delivery.count.limit=10 lies outside of the store's bounds, from 2 to 6" in told[0]
        assert settings.made("g").share_delivery_count_limit == 10  # it counts again if the bounds do
