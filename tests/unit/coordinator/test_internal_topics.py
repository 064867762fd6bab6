"""The internal topics: only the engine writes or deletes them, and an invalid record in them makes nothing
else unusable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import waiting
from cli import run
from stores import append_inner

import segstore
from segstore.coordinator.offsets import schema
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.schema import encode_key
from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.errors import ConfigError, InvalidTopicError, StagedFilesError, UnsupportedVersionError
from segstore.files import Files
from segstore.filetree.topic import make_topic
from segstore.spark.sink_store import StagingSink
from segstore.storage.bulk_import import importing
from segstore.storage.inbox import verify
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.inbox.stager import Stager

OFFSETS, STATE, SHARES = "__consumer_offsets", "__transaction_state", "__share_group_state"
T0 = segstore.TopicPartition("t", 0)


@pytest.fixture
def store(store_dir: Path) -> Any:
    """Ten records in `t`, read and committed by group `g`; a transaction of id `x` was committed."""
    config = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}
    with segstore.open(store_dir, config=config) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"%d" % i for i in range(10)])
        consumer = consume(store)
        consumer.poll(1000)
        consumer.commit()
        consumer.close()
        producer = segstore.Producer(store, transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"last")
        producer.commit_transaction()
        producer.close()
        yield store


def consume(store: segstore.Store) -> segstore.Consumer:
    return segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)


REFUSED: dict[str, Callable[[segstore.Store, str], object]] = {
    "append": lambda store, topic: store.partition(topic).append(b"junk", key=b"junk"),
    "append_batch": lambda store, topic: store.partition(topic).append_batch([b"junk"], keys=[b"junk"]),
    "delete_records": lambda store, topic: store.partition(topic).delete_records(-1),
    "delete_topic": lambda store, topic: store.delete_topic(topic),
    "create_topic": lambda store, topic: store.create_topic(topic),
    "add_partitions": lambda store, topic: store.add_partitions(topic, 10),
    "alter_topic": lambda store, topic: store.alter_topic(topic, {"cleanup.policy": "delete"}),
    "alter_topic to the default": lambda store, topic: store.alter_topic(topic, {"cleanup.policy": None}),
    "Producer.send": lambda store, topic: segstore.Producer(store).send(topic, b"junk", key=b"junk"),
    "files": lambda store, topic: make_topic(store, topic, {}),
}


@pytest.mark.parametrize("topic", [OFFSETS, STATE])
@pytest.mark.parametrize("call", REFUSED)
def test_users_do_not_change_an_internal_topic(call: str, topic: str, store: segstore.Store) -> None:
    info = store.topics()[topic]
    ends = [store.partition(topic, p).end_offset for p in info.partition_ids]
    with pytest.raises(InvalidTopicError, match=f"'{topic}' is internal"):
        REFUSED[call](store, topic)
    assert store.topics()[topic] == info
    assert [store.partition(topic, p).end_offset for p in info.partition_ids] == ends


@pytest.mark.parametrize("topic", [OFFSETS, STATE, "__share_group_state", "__cluster_metadata"])
def test_users_make_no_internal_topic(topic: str, store_dir: Path) -> None:
    with (
        segstore.open(store_dir) as store,
        pytest.raises(InvalidTopicError, match="make it when they need it"),
    ):
        store.create_topic(topic)


def test_nothing_is_staged_or_imported_for_an_internal_topic(store: segstore.Store, store_dir: Path) -> None:
    with Stager(store_dir) as stager, pytest.raises(InvalidTopicError, match="is internal"):
        stager.append_batch(OFFSETS, 0, [b"junk"], [b"junk"])
    file = StagedFile("0" * 32, "0.log", OFFSETS, "", 0, 1, 1, 1, 0, "", True)
    with pytest.raises(StagedFilesError, match="takes no staged files"):
        verify.verify(Files(), "0.log", file, store.topics()[OFFSETS].settings, 1)
    store.close()
    with pytest.raises(InvalidTopicError, match="is internal"), importing(str(store_dir), OFFSETS):
        pass
    with pytest.raises(ConfigError, match="option topic: topic '__consumer_offsets' is internal"):
        StagingSink(str(store_dir), OFFSETS, 1000).check(["key", "value"])


def test_the_commands_refuse_an_internal_topic(store: segstore.Store, store_dir: Path) -> None:
    store.close()
    for args in (("produce", OFFSETS), ("delete", OFFSETS, "--yes"), ("create", OFFSETS)):
        done = run(*args, "-s", store_dir, stdin="junk\n")
        assert done.exit_code == 1
        assert f"'{OFFSETS}' is internal" in done.stderr


def test_internal_topics_are_read_and_their_settings_altered(store: segstore.Store) -> None:
    """`flush.messages=1` makes each commit durable: that is an operator's choice."""
    assert sum(len(store.partition(OFFSETS, p).read(0)) for p in range(3)) > 0
    info = store.alter_topic(OFFSETS, {"flush.messages": 1, "cleanup.policy": "compact"})
    assert info.settings.flush_messages == 1
    assert segstore.Producer(store).partitions_for(OFFSETS) == {0, 1, 2}
    consumer = consume(store)
    assert consumer.committed(T0) == 10
    consumer.close()


OF_A_BROKER = {
    OFFSETS: {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": 104857600},
    STATE: {"cleanup.policy": "compact", "compression.type": "uncompressed", "segment.bytes": 104857600},
    SHARES: {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "segment.bytes": 104857600,
        "retention.ms": -1,
    },
}
"""As Kafka 4.4 tells them of its own (DescribeConfigs)."""
MONTH_MS = 30 * 24 * 3600 * 1000


def of_a_broker(root: Path, topic: str, lost: bool = False) -> None:
    """Take away the settings of an internal topic, as a broker's directory has none, or damage them."""
    if topic == SHARES:
        (root / f"{SHARES}-0").mkdir()
        (root / f"{SHARES}-0" / "00000000000000000000.log").touch()
    for path in (root / f".segstore/topics/{topic}{end}" for end in (".json", ".copy")):
        path.unlink(missing_ok=True)
        if lost:
            path.write_bytes(b"?")


@pytest.mark.parametrize("lost", [False, True], ids=["there are none", "they are lost"])
@pytest.mark.parametrize("topic", OF_A_BROKER)
def test_a_broker_s_internal_topic_has_the_settings_that_a_broker_gives_it(
    store: segstore.Store, store_dir: Path, topic: str, lost: bool
) -> None:
    """By the defaults of other topics committed offsets would go after a week, and never be compacted."""
    store.close()
    of_a_broker(store_dir, topic, lost)
    expected = OF_A_BROKER[topic]
    with segstore.open(store_dir, "r") as reader:
        found = reader.topics()[topic].config
        assert {name: found[name] for name in expected} == expected
    with segstore.open(store_dir) as again:
        info = again.alter_topic(topic, {"segment.ms": 1000})
        assert {name: info.config[name] for name in expected} == expected
        with pytest.raises(
            InvalidTopicError, match=f"its cleanup.policy is {expected['cleanup.policy']} always"
        ):
            again.alter_topic(topic, {"cleanup.policy": "compact,delete"})
    with segstore.open(store_dir, "r") as reader:
        assert reader.topics()[topic].config == info.config
        assert reader.topics()[topic].ours


def test_a_broker_s_offsets_stay_and_are_compacted(store: segstore.Store, store_dir: Path) -> None:
    consumer = segstore.Consumer(store, group_id="g", enable_auto_commit=False)
    consumer.assign([T0])
    for offset in range(20):
        consumer.commit({T0: segstore.OffsetAndMetadata(offset)})
    consumer.close()
    store.close()
    of_a_broker(store_dir, OFFSETS)
    later = int(time.time() * 1000) + MONTH_MS
    with segstore.open(store_dir, clock=lambda: later) as again:
        again.alter_topic(OFFSETS, {"min.cleanable.dirty.ratio": 0})
        (log,) = (log for p in range(3) if (log := again.partition(OFFSETS, p)).end_offset)
        before = log.end_offset
        log.partition_for_write().roll()
        again.sweep()
        assert (log.start_offset, log.end_offset) == (0, before)
        keys = [record.key for record in log.read(0)]
        assert sorted(set(keys)) == sorted(keys)
        consumer = consume(again)
        assert consumer.committed(T0) == 19
        consumer.close()


def raw_key(group: str) -> bytes:
    return schema.offset_key(group, T0)


def spoil(store: segstore.Store) -> None:
    """In each partition of both topics, what is no record of theirs, some by the keys of `g` and `x`."""
    group = b"\0\2\0\1g"
    junk = [(b"junk", b"junk"), (b"\0\1", b""), (raw_key("g"), b"\0\1junk"), (raw_key("g"), b"junk" * 7)]
    for p in range(3):
        for key, value in [*junk, (group, b"\0\3")]:
            append_inner(store.partition(OFFSETS, p), value, key)
        for key, value in ((b"junk", b"junk"), (encode_key("x"), b"junk"), (encode_key("x"), b"\0\1")):
            append_inner(store.partition(STATE, p), value, key)


def test_junk_in_internal_topics_locks_nobody_out(
    store: segstore.Store, store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = known_transactions(store)
    spoil(store)
    store.close()
    with caplog.at_level(logging.WARNING, "segstore"), segstore.open(store_dir) as store:
        consumer = consume(store)
        assert consumer.committed(T0) == 10
        assert [record.offset for record in consumer.poll(1000)[T0]] == [10]
        consumer.commit()
        consumer.close()
        producer = segstore.Producer(store, transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"more")
        producer.commit_transaction()
        producer.close()
        waiting.told()
    told = sorted(record.getMessage() for record in caplog.records)
    line = "{}: {} records are not readable as a {}'s and passed over; the first is at offset "
    lines = [line.format(f"{OFFSETS}-1", 4, "group")]
    lines += [line.format(f"{STATE}-{p}", 2, "transaction") for p in range(3)]
    assert [one[: len(start)] for one, start in zip(told, lines, strict=True)] == lines
    with segstore.open(store_dir) as store:
        assert known_transactions(store) == before
        consumer = consume(store)
        assert consumer.committed(T0) == 12
        consumer.close()
    tidy(store_dir)


def known_transactions(store: segstore.Store) -> dict[str, int]:
    return {name: known.producer_id for name, known in TransactionStateLog(store).load().items()}


def tidy(store_dir: Path) -> None:
    """As the teardown wants it: tombstones for what was spoilt."""
    with segstore.open(store_dir) as store:
        for topic in (OFFSETS, STATE):
            store._delete_topic(topic)


def test_check_tells_of_records_that_are_none_of_the_topic(store: segstore.Store, store_dir: Path) -> None:
    assert list(segstore.check(store_dir)) == []
    spoil(store)
    store.close()
    found = segstore.check(store_dir)
    assert len(found) == 3 * (4 + 2)
    first = next(each for each in found if OFFSETS in each.path)
    assert str(first).startswith(f"{store_dir}/{OFFSETS}-0/00000000000000000000.log, offset ")
    assert "not readable as a group's record, it is passed over: " in str(first)
    assert {Path(each.path).parent.name for each in found} == {
        f"{t}-{p}" for t in (OFFSETS, STATE) for p in range(3)
    }
    done = run("check", store_dir)
    assert done.exit_code == 1
    assert "18 findings" in done.stderr
    tidy(store_dir)


def test_a_record_of_a_newer_version_is_not_overwritten(store: segstore.Store, store_dir: Path) -> None:
    """Its group, or its transactional id, is refused by name, and no other."""
    newer = b"\0\5" + b"later"
    append_inner(store.partition(OFFSETS, GroupOffsets(store).partition_for("g")), newer, raw_key("g"))
    append_inner(TransactionStateLog(store)._log("x"), newer, encode_key("x"))
    store.close()
    with segstore.open(store_dir) as store:
        with pytest.raises(UnsupportedVersionError, match=r"group 'g'.*OffsetCommitValue of version 5"):
            consume(store).poll(1000)
        producer = segstore.Producer(store, transactional_id="x")
        with pytest.raises(
            UnsupportedVersionError, match=r"transactional_id 'x'.*TransactionLogValue of version 5"
        ):
            producer.init_transactions()
        producer.close()
        other = segstore.Producer(store, transactional_id="y")
        other.init_transactions()
        other.close()
        shared(store, GroupOffsets).commit("h", {T0: segstore.OffsetAndMetadata(1)})
    found = segstore.check(store_dir)
    assert ["can't be used by this version of segstore" in each.message for each in found] == [True, True]
    tidy(store_dir)
