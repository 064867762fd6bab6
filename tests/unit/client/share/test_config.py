"""The settings of a share consumer: those of Kafka's ShareConsumerConfig, and those that it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from segstore import ShareConsumer
from segstore.client.share.config import ShareConsumerConfig
from segstore.errors import ConfigError

REFUSED = (
    *("auto_offset_reset", "enable_auto_commit", "group_instance_id", "isolation_level"),
    *("partition_assignment_strategy", "interceptor_classes", "interceptors", "session_timeout_ms"),
    *("heartbeat_interval_ms", "group_protocol", "group_remote_assignor", "bootstrap_servers"),
)


@pytest.mark.parametrize("name", REFUSED)
def test_q10_settings_that_a_share_consumer_refuses(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is refused: ."):
        ShareConsumerConfig.parse({"group_id": "g", name: "x"})


@pytest.mark.parametrize("name", sorted(ShareConsumerConfig.IGNORED))
def test_settings_without_an_effect_are_taken(name: str) -> None:
    assert ShareConsumerConfig.parse({"group_id": "g", name: 1}) == ShareConsumerConfig(group_id="g")


GIVEN: dict[str, tuple[dict[str, Any], Any]] = {
    "share_acknowledgement_mode": ({"share_acknowledgement_mode": "explicit"}, "explicit"),
    "share_acquire_mode": ({"share_acquire_mode": "record_limit"}, "record_limit"),
    "max_poll_records": ({"max_poll_records": 7}, 7),
    "fetch_max_wait_ms": ({"fetch_max_wait_ms": 1.5}, 1.5),
}


@pytest.mark.parametrize(("given", "value"), GIVEN.values(), ids=GIVEN)
def test_settings_are_taken(given: dict[str, Any], value: Any) -> None:
    ((name, _),) = given.items()
    assert ShareConsumerConfig.parse({"group_id": "g", **given})[name] == value


WRONG: dict[str, Any] = {
    "share_acknowledgement_mode": "IMPLICIT",
    "share_acquire_mode": "records",
    "max_poll_records": 0,
    "fetch_max_bytes": 0,
    "group_id": 7,
    "allow_auto_create_topics": True,
}


@pytest.mark.parametrize("name", WRONG)
def test_values_are_judged(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}={WRONG[name]!r}"):
        ShareConsumerConfig.parse({"group_id": "g", name: WRONG[name]})


def test_defaults_are_kafka_s() -> None:
    made = ShareConsumerConfig(group_id="g")
    assert (made.share_acknowledgement_mode, made.share_acquire_mode) == ("implicit", "batch_optimized")
    assert (made.max_poll_records, made.fetch_max_bytes, made.max_poll_interval_ms) == (
        500,
        50 << 20,
        300_000,
    )
    assert not made.is_explicit
    assert not made.is_strict
    assert ShareConsumer.DEFAULT_CONFIG["max_poll_records"] == 500
