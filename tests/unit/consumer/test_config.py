"""Settings of a consumer: each of kafka-python's exists here with its default, or is refused with a
reason.
"""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from kafka import KafkaConsumer

from segstore.client.consumer.config import ConsumerConfig, deserialize_with
from segstore.errors import ConfigError

KAFKA = KafkaConsumer.DEFAULT_CONFIG
OURS = {field.name for field in fields(ConsumerConfig)}
OTHER_DEFAULTS = {
    "client_id": "segstore",  # kafka-python's is its own name
    "allow_auto_create_topics": False,  # there True
    "default_offset_commit_callback": None,  # there a lambda that does nothing
    "partition_assignment_strategy": ("range", "roundrobin"),  # there their classes
}


@pytest.mark.parametrize("name", sorted(KAFKA))
def test_every_setting_of_kafka_python_is_known(name: str) -> None:
    known = [name in each for each in (OURS, ConsumerConfig.REFUSED, ConsumerConfig.IGNORED)]
    assert known.count(True) == 1
    if name in OURS:
        assert getattr(ConsumerConfig(), name) == OTHER_DEFAULTS.get(name, KAFKA[name])


def test_ours_alone_are_settings_of_java() -> None:
    assert OURS - set(KAFKA) == {"interceptors", "group_protocol", "group_remote_assignor"}


OF_THE_OTHER_PROTOCOL: dict[str, tuple[str, str, object]] = {
    "a session": ("consumer", "session_timeout_ms", 10_000),
    "heartbeats": ("consumer", "heartbeat_interval_ms", 1_000),
    "strategies": ("consumer", "partition_assignment_strategy", ("sticky",)),
    "an assignor of the coordinator": ("classic", "group_remote_assignor", "range"),
}


@pytest.mark.parametrize("case", OF_THE_OTHER_PROTOCOL)
def test_settings_of_the_other_protocol_are_refused(case: str) -> None:
    protocol, name, value = OF_THE_OTHER_PROTOCOL[case]
    with pytest.raises(ConfigError, match=f"^{name}=.*: requires group_protocol=.*, not {protocol!r}$"):
        ConsumerConfig.parse({"group_protocol": protocol, name: value})
    other = "classic" if protocol == "consumer" else "consumer"
    assert getattr(ConsumerConfig.parse({"group_protocol": other, name: value}), name) == value


def test_defaults_may_be_given_with_either_protocol() -> None:
    made = ConsumerConfig.parse({**ConsumerConfig.defaults(), "group_protocol": "consumer"})
    assert made == ConsumerConfig(group_protocol="consumer")


@pytest.mark.parametrize("name", sorted(ConsumerConfig.IGNORED))
def test_what_is_of_the_network_has_no_effect(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert ConsumerConfig.parse({name: KAFKA.get(name)}) == ConsumerConfig()
    assert [record.getMessage() for record in caplog.records] == [
        f"settings without an effect on a store: {name}"
    ]


@pytest.mark.parametrize("name", sorted(ConsumerConfig.REFUSED))
def test_what_makes_no_sense_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is refused: \w+.*[^.]$"):
        ConsumerConfig.parse({name: object()})


THEIRS = KAFKA["partition_assignment_strategy"]
GOOD = {
    "a number as text": ("max_poll_records", "7", 7),
    "a whole float": ("fetch_max_bytes", 1e6, 1_000_000),
    "the old name of earliest": ("auto_offset_reset", "smallest", "earliest"),
    "the old name of latest": ("auto_offset_reset", "largest", "latest"),
    "no reset": ("auto_offset_reset", "none", "none"),
    "an iteration without end": ("consumer_timeout_ms", math.inf, math.inf),
    "the older way to say so": ("consumer_timeout_ms", -1, math.inf),
    "no wait": ("consumer_timeout_ms", 0, 0.0),
    "a fraction of a ms": ("fetch_max_wait_ms", 0.5, 0.5),
    "no group": ("group_id", None, None),
    "a group": ("group_id", "g", "g"),
    "one strategy": ("partition_assignment_strategy", "sticky", ("sticky",)),
    "kafka-python's": ("partition_assignment_strategy", THEIRS, THEIRS),
    "no deserializer": ("value_deserializer", None, None),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_value_is_read(case: str) -> None:
    name, given, read = GOOD[case]
    assert getattr(ConsumerConfig.parse({name: given}), name) == read


BAD = {
    "unknown, close to one": (
        "auto_ofset_reset",
        "x",
        "no setting 'auto_ofset_reset'; did you mean auto_offset_reset",
    ),
    "unknown": ("zzz", 1, "no setting 'zzz'; there are client_id, "),
    "a group without a name": ("group_id", "", "group_id='': must be a str that is not empty, or None"),
    "a group that is no str": ("group_id", b"g", "group_id=b'g': must be a str"),
    "a member of no group": ("group_instance_id", "i", "group_instance_id='i': requires group_id"),
    "an instance that is no name": (
        "group_instance_id",
        "a/b",
        "group_instance_id='a/b': must be 1 to 249 of",
    ),
    "the directory": ("group_instance_id", "..", r"group_instance_id='\.\.': must be 1 to 249 of"),
    "no strategy": (
        "partition_assignment_strategy",
        [],
        r"partition_assignment_strategy=\[\]: must be a list",
    ),
    "an unknown strategy": (
        "partition_assignment_strategy",
        ["best"],
        "must be a list of range, roundrobin, ",
    ),
    "one strategy twice": ("partition_assignment_strategy", ["range", "range"], "must be a list of range"),
    "a number for a strategy": ("partition_assignment_strategy", 3, "strategy=3: must be a list of range"),
    "no such reset": ("auto_offset_reset", "middle", "auto_offset_reset='middle': must be one of earliest, "),
    "no such isolation": (
        "isolation_level",
        "serializable",
        "isolation_level='serializable': must be one of",
    ),
    "no records": ("max_poll_records", 0, "max_poll_records=0: must be an integer from 1"),
    "half a record": ("max_poll_records", 1.5, "max_poll_records=1.5: must be an integer"),
    "True is no number": ("fetch_max_bytes", True, "fetch_max_bytes=True: must be an integer"),
    "bytes below none": ("fetch_max_bytes", -1, "fetch_max_bytes=-1: must be"),
    "yes": ("check_crcs", "yes", "check_crcs='yes': must be True or False"),
    "1 is no bool": ("check_crcs", 1, "check_crcs=1: must be True or False"),
    "a wait below none": ("fetch_max_wait_ms", -1, "fetch_max_wait_ms=-1: must be a number from 0 on"),
    "a wait that is no number": ("fetch_max_wait_ms", "500", "fetch_max_wait_ms='500': must be"),
    "a wait that is NaN": ("consumer_timeout_ms", math.nan, "consumer_timeout_ms=nan: must be"),
    "a deserializer that can't be called": (
        "value_deserializer",
        3,
        "value_deserializer=3: must be a callable",
    ),
    "an interceptor's class, by name": (
        "interceptors",
        "x.Y",
        "interceptors='x.Y': must be a list of objects",
    ),
    "no interceptor": ("interceptors", [3], r"interceptors=\[3\]: must be a list of objects with on_consume"),
    "no list": ("interceptors", 3, "interceptors=3: must be a list"),
    "no name": ("client_id", "", "client_id='': must be a str of 1 to 32,000 bytes"),
    "a callback that can't be called": ("default_offset_commit_callback", 1, "must be a callable, or None"),
    "no such protocol": (
        "group_protocol",
        "share",
        "group_protocol='share': must be one of classic, consumer",
    ),
    "no such assignor": (
        "group_remote_assignor",
        "sticky",
        "'sticky': must be one of uniform, range, or None",
    ),
    "a long value is cut": ("isolation_level", "x" * 500, r"x{50,80}\.\.\.: must be one of"),
    "heartbeats after the session": (
        "heartbeat_interval_ms",
        45_000,
        "must be below session_timeout_ms=45000",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_value_is_named(case: str) -> None:
    name, given, said = BAD[case]
    with pytest.raises(ConfigError, match=said):
        ConsumerConfig.parse({name: given})


class Three:
    def deserialize(self, topic: str, headers: list, data: bytes) -> object:
        return topic, headers, data


class Two:
    def deserialize(self, topic: str, data: bytes) -> object:
        return topic, data


FORMS = {
    "a callable of bytes": (lambda data: data[::-1], b"cba"),
    "a class": (bytes.decode, "abc"),
    "kafka-python's": (Three(), ("t", [("h", None)], b"abc")),
    "kafka-python's of old": (Two(), ("t", b"abc")),
}


@pytest.mark.parametrize("form", FORMS)
def test_deserializers_of_all_forms(form: str) -> None:
    deserializer, made = FORMS[form]
    deserialize = deserialize_with(ConsumerConfig(value_deserializer=deserializer).value_deserializer)
    assert deserialize is not None
    assert deserialize("t", [("h", None)], b"abc") == made


def test_no_deserializer_stays_none() -> None:
    assert deserialize_with(None) is None


def test_settings_are_asked_for_as_kafka_pythons_are() -> None:
    config = ConsumerConfig.parse({"group_id": "g"})
    assert (config["group_id"], config["max_poll_records"]) == ("g", 500)
    with pytest.raises(ConfigError, match="did you mean group_id"):
        config["group"]
