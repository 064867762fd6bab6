"""segstore.config: Kafka's option names and defaults, which values are accepted and which are refused."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.producer.config import ProducerConfig
from segstore.config import StoreConfig, TopicConfig
from segstore.config.settings import Settings, options
from segstore.coordinator.quotas.quotas import ByteRates
from segstore.errors import ConfigError, InvalidArgumentError, InvalidTypeError

MAX_LONG = (1 << 63) - 1

# Of org.apache.kafka.storage.internals.log.LogConfig, 4.1.0, in its words; retention.ms is our own.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.zstd.level": 3,
    "delete.retention.ms": 86400000,
    "errors.deadletterqueue.group.enable": False,
    "file.delete.delay.ms": 60000,
    "flush.messages": 9223372036854775807,
    "flush.ms": 9223372036854775807,
    "index.interval.bytes": 4096,
    "max.compaction.lag.ms": 9223372036854775807,
    "max.message.bytes": 1048588,
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": 9223372036854775807,
    "message.timestamp.after.max.ms": 3600000,
    "min.cleanable.dirty.ratio": 0.5,
    "min.compaction.lag.ms": 0,
    "min.insync.replicas": 1,
    "preallocate": False,
    "retention.bytes": -1,
    "retention.ms": -1,
    "segment.bytes": 1073741824,
    "segment.index.bytes": 10485760,
    "segment.jitter.ms": 0,
    "segment.ms": 604800000,
    "unclean.leader.election.enable": False,
}

# Of ServerLogConfigs, ReplicationConfigs, KRaftConfigs, 4.1.0, as far as they are about replicas.
KAFKA_STORE_DEFAULTS = {
    "auto.leader.rebalance.enable": True,
    "broker.heartbeat.interval.ms": 2000,
    "broker.session.timeout.ms": 9000,
    "default.replication.factor": 1,
    "leader.imbalance.check.interval.seconds": 300,
    "min.insync.replicas": 1,
    "replica.fetch.backoff.ms": 1000,
    "replica.fetch.max.bytes": 1048576,
    "replica.high.watermark.checkpoint.interval.ms": 5000,
    "replica.lag.time.max.ms": 30000,
    "unclean.leader.election.enable": False,
}


def test_topic_defaults_are_kafkas() -> None:
    assert {row.name: row.default for row in TopicConfig.describe()} == KAFKA_DEFAULTS


def test_a_stores_defaults_for_replicas_are_kafkas() -> None:
    found = {row.name: row.default for row in StoreConfig.describe()}
    assert {name: found[name] for name in KAFKA_STORE_DEFAULTS} == KAFKA_STORE_DEFAULTS


@pytest.mark.parametrize("kind", [TopicConfig, StoreConfig])
def test_defaults_are_attributes_and_allowed(kind: type[TopicConfig] | type[StoreConfig]) -> None:
    rows = list(kind.describe())
    config = kind.parse({row.name: row.default for row in rows})
    for row in rows:
        judged = options(kind)[row.name].read(row.default)  # which no settings do again
        assert (judged, type(judged)) == (row.default, type(row.default))
        assert getattr(kind(), row.name.replace(".", "_")) == row.default
        assert type(getattr(config, row.name.replace(".", "_"))) is type(row.default)
        assert row.kind == type(row.default).__name__
        assert row.doc
        assert row.allowed
    assert config.explicit == {row.name for row in rows}


@pytest.mark.parametrize("kind", [ProducerConfig, ConsumerConfig, ByteRates])
def test_defaults_of_clients_are_as_they_are_judged(kind: type[Settings]) -> None:
    for name, option in options(kind).items():
        judged = option.read(option.default)  # which no settings do again
        assert (judged, type(judged)) == (option.default, type(option.default)), name


TAKEN = {
    "int": ("segment.bytes", 14, 14),
    "int as str": ("segment.bytes", " 2147483647 ", 2147483647),
    "signed str": ("retention.ms", "-1", -1),
    "integral float": ("segment.bytes", 100.0, 100),
    "numpy int": ("segment.bytes", np.int64(100), 100),
    "largest long": ("flush.ms", MAX_LONG, MAX_LONG),
    "largest long as str": ("flush.ms", str(MAX_LONG), MAX_LONG),
    "special value": ("compression.gzip.level", -1, -1),
    "negative level": ("compression.zstd.level", "-131072", -131072),
    "float": ("min.cleanable.dirty.ratio", 0.25, 0.25),
    "float as str": ("min.cleanable.dirty.ratio", "2.5e-1", 0.25),
    "int for float": ("min.cleanable.dirty.ratio", 1, 1.0),
    "word": ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
    "synonym": ("compression.type", "none", "uncompressed"),
    "list": ("cleanup.policy", "compact, delete,compact", "compact,delete"),
    "empty list": ("cleanup.policy", " ", ""),
    "off": ("preallocate", False, False),
    "off as str": ("preallocate", "False", False),
    "switched on": ("unclean.leader.election.enable", True, True),
    "switched on as str": ("unclean.leader.election.enable", " TRUE ", True),
    "switched off as str": ("unclean.leader.election.enable", "false", False),
    "replicas": ("min.insync.replicas", "2", 2),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    key, value, expected = TAKEN[name]
    config = TopicConfig.parse({key: value})
    got = getattr(config, key.replace(".", "_"))
    assert got == expected
    assert type(got) is type(expected)
    assert config.to_mapping() == {key: expected}


REFUSED = {
    "below": ("segment.bytes", 13, "14 to 2147483647"),
    "above": ("segment.bytes", 1 << 31, "14 to 2147483647 (bytes)"),
    "above as str": ("flush.ms", str(MAX_LONG + 1), "0 to 9223372036854775807 (ms)"),
    "above as float": ("flush.ms", float(MAX_LONG + 1), "(ms)"),
    "huge": ("segment.bytes", 10**5000, "14 to"),
    "huge str": ("segment.bytes", "9" * 5000, "14 to"),
    "zero level of gzip": ("compression.gzip.level", 0, "1 to 9, or -1"),
    "between special and least": ("retention.ms", -2, "or -1"),
    "bool for int": ("segment.bytes", True, "an integer"),
    "numpy bool for int": ("segment.bytes", np.bool_(True), "an integer"),
    "fraction": ("segment.bytes", 100.5, "an integer"),
    "fraction as str": ("segment.bytes", "100.0", "an integer"),
    "underscore": ("segment.bytes", "1_000", "an integer"),
    "digits of another script": ("segment.bytes", "١٠٠", "an integer"),
    "nan for int": ("segment.bytes", math.nan, "an integer"),
    "inf for int": ("segment.bytes", math.inf, "an integer"),
    "empty str": ("segment.bytes", "", "an integer"),
    "none": ("segment.bytes", None, "an integer"),
    "bytes": ("segment.bytes", b"100", "an integer"),
    "list": ("segment.bytes", [100], "an integer"),
    "nan": ("min.cleanable.dirty.ratio", math.nan, "0 to 1"),
    "nan as str": ("min.cleanable.dirty.ratio", "nan", "0 to 1"),
    "inf as str": ("min.cleanable.dirty.ratio", "1e999", "0 to 1"),
    "bool for float": ("min.cleanable.dirty.ratio", True, "0 to 1"),
    "above one": ("min.cleanable.dirty.ratio", 1.01, "0 to 1"),
    "unknown word": ("compression.type", "brotli", "zstd"),
    "wrong case": ("message.timestamp.type", "createtime", "CreateTime"),
    "word of the wrong type": ("compression.type", 4, "zstd"),
    "a policy without a name": ("cleanup.policy", "delete,", "delete, compact"),
    "unknown policy": ("cleanup.policy", "delete,shred", "delete, compact"),
    "preallocate": ("preallocate", True, "false"),
    "int for a switch": ("unclean.leader.election.enable", 1, "true or false"),
    "word for a switch": ("unclean.leader.election.enable", "yes", "true or false"),
    "no replicas": ("min.insync.replicas", 0, "1 to 2147483647 (replicas)"),
    "preallocate as str": ("preallocate", "true", "false"),
    "preallocate as int": ("preallocate", 0, "false"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_key_value_and_what_is_allowed(name: str) -> None:
    key, value, allowed = REFUSED[name]
    with pytest.raises(ConfigError) as error:
        TopicConfig.parse({key: value})
    message = str(error.value)
    assert message.startswith(f"{key}=")
    assert allowed in message
    assert len(message) < 300
    if name != "huge":
        assert repr(value)[:20] in message


COUNTED = {
    "days": ({"retention.ms": "7d"}, "; 7d is 604800000"),
    "mebibytes": ({"segment.bytes": "64 MiB"}, "; 64 MiB is 67108864"),
    "an unknown unit": ({"retention.ms": "7y"}, ""),
    "a size for a time": ({"retention.ms": "7MB"}, ""),
    "a setting without a unit": ({"flush.messages": "7d"}, ""),
}


@pytest.mark.parametrize("case", COUNTED)
def test_a_value_with_a_unit_is_told_as_a_number(case: str) -> None:
    """Units are the command line's; the number that is meant stands in the error of a program."""
    config, told = COUNTED[case]
    with pytest.raises(ConfigError) as error:
        TopicConfig.parse(config)
    assert str(error.value).rpartition(")")[2] == told or not told
    assert (" is " in str(error.value)) == bool(told)


def test_a_setting_can_conflict_with_another() -> None:
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms=6: must be at most .*=5"):
        TopicConfig.parse({"min.compaction.lag.ms": 6, "max.compaction.lag.ms": 5})
    assert TopicConfig.parse({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 5})


UNKNOWN = {
    "near": ("segment.byte", "did you mean segment.bytes"),
    "underscores": ("segment_bytes", "did you mean segment.bytes"),
    "far": ("colour", "there are cleanup.policy, compression.type"),
    "an attribute": ("explicit", "there are"),
    "of a store": ("max.open.files", "no setting"),
    "of a broker": ("log.retention.hours", "it is a broker's setting, which a topic has as retention.ms"),
    "of a broker, in bytes": ("message.max.bytes", "which a topic has as max.message.bytes"),
    "of a broker, an argument": ("num.partitions", "a topic is made with partitions= (--partitions)"),
    "no str": (7, "no setting 7"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_settings_are_named(name: str) -> None:
    key, hint = UNKNOWN[name]
    for change in (TopicConfig.parse, TopicConfig().replace):
        with pytest.raises(ConfigError) as error:
            change({key: 1})
        assert hint in str(error.value)


@pytest.mark.parametrize("mapping", [None, "segment.bytes", [("segment.bytes", 1)], 5])
def test_settings_are_a_mapping(mapping: object) -> None:
    with pytest.raises(InvalidTypeError, match="mapping"):
        TopicConfig.parse(mapping)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="mapping"):
        TopicConfig().replace(mapping)  # type: ignore[arg-type]


def test_only_what_was_made_is_kept() -> None:
    config = TopicConfig.parse({"segment.bytes": 1 << 30, "retention.ms": "5"})
    assert config.to_mapping() == {"retention.ms": 5, "segment.bytes": 1 << 30}
    assert TopicConfig.parse(config.to_mapping()) == config
    assert hash(TopicConfig.parse(config.to_mapping())) == hash(config)
    assert TopicConfig().to_mapping() == {}


def test_replace_changes_some_and_resets_with_none() -> None:
    config = TopicConfig.parse({"segment.bytes": 100, "retention.ms": 5})
    changed = config.replace({"retention.ms": None, "flush.messages": "1", "segment.ms": None})
    assert changed.to_mapping() == {"flush.messages": 1, "segment.bytes": 100}
    assert changed.retention_ms == -1
    assert config.to_mapping() == {"retention.ms": 5, "segment.bytes": 100}
    with pytest.raises(ConfigError, match=r"segment\.bytes=1:"):
        config.replace({"segment.bytes": 1})


def test_made_by_attributes_it_is_judged_too() -> None:
    assert TopicConfig(segment_bytes=100).to_mapping() == {"segment.bytes": 100}
    assert dataclasses.replace(TopicConfig(), segment_bytes=100).to_mapping() == {"segment.bytes": 100}
    with pytest.raises(InvalidArgumentError, match=r"segment\.bytes=1:"):
        TopicConfig(segment_bytes=1)


def test_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TopicConfig().segment_bytes = 5  # type: ignore[misc]


STORE = {
    "few files": ("max.open.files", 15, None),
    "least files": ("max.open.files", 16, 16),
    "half of the limit": ("max.open.files", "-1", -1),
    "no checkpoints": ("log.flush.offset.checkpoint.interval.ms", 0, None),
    "factor of zero": ("log.cleaner.io.buffer.load.factor", 0, None),
    "factor of one": ("log.cleaner.io.buffer.load.factor", 1, 1.0),
    "no bytes a second": ("log.cleaner.io.max.bytes.per.second", 0.0, None),
    "some bytes a second": ("log.cleaner.io.max.bytes.per.second", "1e6", 1e6),
    "no time for offsets": ("offsets.retention.minutes", 0, None),
    "a topic's": ("segment.bytes", 100, None),
    "no factor": ("default.replication.factor", 0, None),
    "a factor": ("default.replication.factor", "3", 3),
    "no lag": ("replica.lag.time.max.ms", 0, None),
    "no rebalance": ("auto.leader.rebalance.enable", "false", False),
}


@pytest.mark.parametrize("name", STORE)
def test_store_settings(name: str) -> None:
    key, value, expected = STORE[name]
    if expected is None:
        with pytest.raises(ConfigError, match=key):
            StoreConfig.parse({key: value})
    else:
        assert StoreConfig.parse({key: value}).to_mapping() == {key: expected}
