"""The producer's settings: kafka-python's names and defaults, and those that are refused."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

import segstore
from segstore.client.producer.config import ProducerConfig
from segstore.errors import ConfigError

REFUSED, IGNORED = ProducerConfig.REFUSED, ProducerConfig.IGNORED
# Ours is another default, and why.
OTHERWISE = {
    "client_id": "a name of ours",
    "partitioner": "None stands for murmur2 and sticky, KIP-794",
    "allow_auto_create_topics": "topics are made by Store.create_topic",
}


def theirs() -> dict[str, Any]:
    return pytest.importorskip("kafka").KafkaProducer.DEFAULT_CONFIG


def test_every_setting_of_kafka_python_is_known() -> None:
    ours = {field.name for field in fields(ProducerConfig)}
    assert set(theirs()) - ours - set(REFUSED) - set(IGNORED) == set()
    assert ours & set(REFUSED) == ours & set(IGNORED) == set(REFUSED) & set(IGNORED) == set()
    # The Java producer's, which kafka-python left behind or never had.
    assert ours - set(theirs()) == {"buffer_memory", "interceptors"}


def test_defaults_are_those_of_kafka_python() -> None:
    ours, defaults = ProducerConfig(), theirs()
    shared = {field.name for field in fields(ProducerConfig)} & set(defaults) - set(OTHERWISE)
    assert {name: getattr(ours, name) for name in shared} == {name: defaults[name] for name in shared}


def test_a_program_finds_the_defaults_where_kafka_python_has_them() -> None:
    defaults = segstore.Producer.DEFAULT_CONFIG
    assert ProducerConfig.parse(defaults) == ProducerConfig()
    assert set(defaults) - set(theirs()) == {"buffer_memory", "interceptors"}
    assert not set(defaults) & {*REFUSED, *IGNORED}


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_a_setting_of_the_network_has_no_effect(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert ProducerConfig.parse({"client_id": "c", name: object()}) == ProducerConfig.parse(
        {"client_id": "c"}
    )
    assert [record.getMessage() for record in caplog.records] == [
        f"settings without an effect on a store: {name}"
    ]


def test_a_producer_of_kafka_python_is_warned_once_of_all(
    caplog: pytest.LogCaptureFixture, store: segstore.Store
) -> None:
    given: dict[str, Any] = {
        "request_timeout_ms": 5000,
        "max_in_flight_requests_per_connection": 1,
        "metadata_max_age_ms": 10,
        "api_version": (2, 8),
        "security_protocol": "PLAINTEXT",
        "acks": "all",
    }
    with segstore.Producer(store, **given) as producer:
        assert producer.config.acks == -1
    (record,) = caplog.records
    assert record.getMessage() == (
        "settings without an effect on a store: api_version, max_in_flight_requests_per_connection, "
        "metadata_max_age_ms, request_timeout_ms, security_protocol"
    )


def test_what_is_refused_is_named_all_at_once(caplog: pytest.LogCaptureFixture) -> None:
    given = {
        "bootstrap_servers": "kafka:9092",
        "security_protocol": "SASL_SSL",
        "sasl_plain_username": "u",
        "api_version": (2, 8),
    }
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.parse(given)
    told = str(caught.value)
    assert all(name in told for name in ("bootstrap_servers", "security_protocol", "sasl_plain_username"))
    assert "api_version" not in told
    assert not caplog.records


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_setting_without_sense_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is refused: .+"):
        ProducerConfig.parse({name: None})


def test_what_is_not_available_may_be_off() -> None:
    with pytest.raises(ConfigError, match=r"Store\.create_topic"):
        ProducerConfig.parse({"allow_auto_create_topics": True})
    off = {"transactional_id": None, "allow_auto_create_topics": False}
    assert ProducerConfig.parse({"client_id": "c", **off}) == ProducerConfig.parse({"client_id": "c"})


IDEMPOTENCE: dict[str, tuple[dict[str, Any], bool]] = {
    "by default": ({}, True),
    "asked for": ({"enable_idempotence": True}, True),
    "not wanted": ({"enable_idempotence": False}, False),
    "acks=all": ({"acks": "all"}, True),
    "acks=1": ({"acks": 1}, False),
    "acks=0": ({"acks": 0}, False),
    "no retries": ({"retries": 0}, False),
    "few retries": ({"retries": 1}, True),
    "transactions": ({"transactional_id": "a"}, True),
}


@pytest.mark.parametrize(("settings", "expected"), IDEMPOTENCE.values(), ids=IDEMPOTENCE)
def test_idempotence_is_on_unless_other_settings_are_against_it(settings: dict, expected: bool) -> None:
    assert ProducerConfig.parse(settings).enable_idempotence is expected


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"linger": 5}, "no setting 'linger'; did you mean linger_ms"),
    "unknown and like nothing": ({"xyzzy": 5}, "there are client_id, key_serializer"),
    "Kafka's dotted name": ({"linger.ms": 5}, "did you mean linger_ms"),
    "acks": ({"acks": 2}, r"acks=2: must be 0, 1, \"all\" or -1"),
    "acks True": ({"acks": True}, "acks=True"),
    "acks in str": ({"acks": "1"}, "acks='1'"),
    "compression": ({"compression_type": "brotli"}, "compression_type='brotli': must be None or one of none"),
    "negative linger": ({"linger_ms": -1}, "linger_ms=-1: must be a number from 0"),
    "NaN": ({"linger_ms": math.nan}, "linger_ms=nan"),
    "endless": ({"max_block_ms": math.inf}, "max_block_ms=inf"),
    "batch size": ({"batch_size": -1}, "batch_size=-1: must be an integer from 0"),
    "no memory": ({"buffer_memory": 0}, "buffer_memory=0"),
    "half a retry": ({"retries": 0.5}, "retries=0.5"),
    "serializer": ({"key_serializer": 5}, "key_serializer=5: must be None, a callable"),
    "partitioner": ({"partitioner": "murmur2"}, "partitioner='murmur2': must be None, a callable"),
    "interceptors": ({"interceptors": print}, "interceptors=.*must be a list of objects with on_send or"),
    "no interceptor": ({"interceptors": [5]}, r"interceptors=\[5\]"),
    "client": ({"client_id": 5}, "client_id=5"),
    "metrics": ({"metrics_enabled": 1}, "metrics_enabled=1: must be True or False"),
    "idempotence and acks": ({"enable_idempotence": True, "acks": 1}, "in conflict with acks=1"),
    "idempotence without retries": ({"enable_idempotence": True, "retries": 0}, "conflict with retries=0"),
    "transactions and acks": ({"transactional_id": "a", "acks": 0}, "in conflict with acks=0"),
    "transactions without idempotence": (
        {"transactional_id": "a", "enable_idempotence": False},
        "transactional_id='a' needs enable_idempotence",
    ),
    "idempotence": ({"enable_idempotence": 1}, "enable_idempotence=1: must be True or False"),
    "an empty transactional id": ({"transactional_id": ""}, "transactional_id='': must be None, or a str"),
    "no transactional id": ({"transactional_id": b"a"}, "transactional_id=b'a'"),
    "a long transactional id": ({"transactional_id": "\u00e9" * 16_384}, "a str of 1 to 32767"),
    "no time": ({"transaction_timeout_ms": 0}, "transaction_timeout_ms=0: must be an integer from 1"),
    "delivery before linger": ({"linger_ms": 100, "delivery_timeout_ms": 50}, "at least linger_ms=100"),
}


@pytest.mark.parametrize(("settings", "match"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_is_named(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ProducerConfig.parse(settings)


def test_each_producer_has_a_name_of_its_own() -> None:
    names = {ProducerConfig.parse({}).client_id for _ in range(10)}
    assert len(names) == 10
    assert ProducerConfig.parse({"client_id": "mine"}).client_id == "mine"


def test_all_stands_for_minus_one() -> None:
    assert ProducerConfig.parse({"acks": "all"}).acks == -1
