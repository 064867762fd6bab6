"""Logs that hold messages of magic 0 and 1, plain and nested, beside record batches: all ways to read them,
and what a writer does behind them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import message_sets
import oracle
import pytest
from drawn_sets import EACH_KIND, KINDS, MS, Drawn, entry, joined, logs, plain_batches, some
from hypothesis import given, settings
from message_sets import GZIP, LZ4, NONE, SNAPPY, Message
from oracle import decode_batches
from stores import records, write_segment

import segstore
from segstore.errors import CorruptRecordError, OffsetOutOfRangeError

Rows = list[tuple[int, int, "bytes | None", "bytes | None"]]
ALL = EACH_KIND.messages
OFFSETS = [m.offset for m in ALL]


def rows(found: Any) -> Rows:
    return [(r.offset, r.timestamp, r.key, r.value) for r in found]


def expected(messages: list[Message]) -> Rows:
    return [(m.offset, m.timestamp, m.key, m.value) for m in messages]


def written(path: Path, *segments: Drawn) -> Path:
    """Write a partition as a broker has left it, one segment behind the other, without indexes."""
    for drawn in segments:
        write_segment(path / "t-0", drawn.messages[0].offset, drawn.data)
    return path


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    with segstore.open(written(store_dir, EACH_KIND)) as store:
        yield store.partition("t")


# --- reading -----------------------------------------------------------------------------------


def in_small_reads(log: segstore.PartitionLog) -> Rows:
    return rows(records(log, max_bytes=1))


def in_columns(log: segstore.PartitionLog) -> Rows:
    found = log.read(0, max_bytes=1 << 20)
    columns = found.offsets.tolist(), found.timestamps.tolist(), found.keys, found.values
    return list(zip(*columns, strict=True))


def in_arrow(log: segstore.PartitionLog) -> Rows:
    table = log.read(0, max_bytes=1 << 20).to_arrow()
    return [(r["offset"], r["timestamp"], r["key"], r["value"]) for r in table.to_pylist()]


def one_by_one(log: segstore.PartitionLog) -> Rows:
    return rows(log.read_one(offset) for offset in OFFSETS)


def many(log: segstore.PartitionLog) -> Rows:
    return rows(log.read_many(OFFSETS[::-1]))[::-1]


def committed(log: segstore.PartitionLog) -> Rows:
    return rows(records(log, isolation_level="read_committed"))


WAYS: dict[str, Callable[[segstore.PartitionLog], Rows]] = {
    "read": lambda log: rows(records(log)),
    "read, a byte at a time": in_small_reads,
    "columns": in_columns,
    "Arrow": in_arrow,
    "iteration": rows,
    "scan": lambda log: rows(log.scan()),
    "read_one": one_by_one,
    "read_many": many,
    "read_committed": committed,
}


@pytest.mark.parametrize("way", WAYS)
def test_all_records_are_read(log: segstore.PartitionLog, way: str) -> None:
    assert WAYS[way](log) == expected(ALL)


@pytest.mark.parametrize("way", WAYS)
def test_all_records_are_read_by_another_process(tmp_path: Path, way: str) -> None:
    """... or of a directory that nobody has opened for writing."""
    with segstore.open(written(tmp_path / "store", EACH_KIND), mode="r") as store:
        assert WAYS[way](store.partition("t")) == expected(ALL)


def test_a_consumer_reads_all(store_dir: Path) -> None:
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 500}
    with (
        segstore.open(written(store_dir, EACH_KIND)) as store,
        segstore.Consumer(store, "t", group_id="g", **options) as consumer,
    ):
        found = list(consumer)
        assert rows(found) == expected(ALL)
        assert [r.timestamp_type for r in found] == [int(m.append_time) for m in ALL]
        consumer.commit()


def test_reading_begins_at_any_offset(log: segstore.PartitionLog) -> None:
    """Within a wrapper too, and in a gap; no record below it is given."""
    for offset in range(log.end_offset + 1):
        behind = [m for m in ALL if m.offset >= offset]
        found = log.read(offset, max_bytes=1)
        assert rows(found) == expected(behind)[: len(found)]
        assert len(found) or offset == log.end_offset
        assert rows(log.scan(offset, offset + 3)) == expected([m for m in behind if m.offset < offset + 3])
    for offset in sorted(set(range(log.end_offset)) - set(OFFSETS)):
        assert log.read_one(offset).offset == min(o for o in OFFSETS if o > offset)


def test_what_is_known_of_each_record(log: segstore.PartitionLog) -> None:
    found = log.read(0, max_bytes=1 << 20)
    assert found.timestamp_types.tolist() == [m.append_time for m in ALL]
    assert all(record.headers == [] for record in found)
    assert (found.batches["magic"] == 2).all()
    assert (log.start_offset, log.end_offset, log.high_watermark) == (
        0,
        ALL[-1].offset + 1,
        ALL[-1].offset + 1,
    )
    with pytest.raises(OffsetOutOfRangeError):
        log.read(log.end_offset + 1)


def test_records_are_counted(store_dir: Path) -> None:
    """Those within wrappers, too."""
    for mode in ("rw", "r"):
        with segstore.open(written(store_dir, EACH_KIND), mode=mode) as store:
            assert [row.records for row in store.stats()] == [len(ALL)]


def test_times_are_found(store_dir: Path) -> None:
    """... where magic 0, which has none, lies in front, and within wrappers."""
    parts, offset = [entry(0, NONE, some(0, 4)), entry(0, GZIP, some(4, 4))], 8
    for number, codec in enumerate((NONE, GZIP, SNAPPY, LZ4)):
        stamped = [Message(offset + i, MS + 1000 * number + 10 * i, b"k", b"v") for i in range(6)]
        parts.append(entry(1, codec, stamped))
        offset += 6
    appended = [m._replace(timestamp=MS + 9000, append_time=True) for m in some(offset, 3)]
    drawn = joined([*parts, entry(1, GZIP, appended)])
    with segstore.open(written(store_dir, drawn)) as store:
        log = store.partition("t")
        for at in [
            MS - 1,
            MS,
            MS + 1,
            MS + 15,
            MS + 1015,
            MS + 2050,
            MS + 2051,
            MS + 3050,
            MS + 8999,
            MS + 9000,
        ]:
            assert log.offset_for_time(at) == min(m.offset for m in drawn.messages if m.timestamp >= at)
        assert log.offset_for_time(MS + 9001) is None


@settings(max_examples=30)
@given(drawn=logs())
def test_drawn_logs(tmp_path_factory: pytest.TempPathFactory, drawn: Drawn) -> None:
    path = written(tmp_path_factory.mktemp("drawn") / "store", drawn)
    with segstore.open(path) as store:
        log = store.partition("t")
        assert rows(records(log)) == expected(drawn.messages)
        assert rows(log.read_one(m.offset) for m in drawn.messages) == expected(drawn.messages)
        assert log.append(b"next") == drawn.messages[-1].offset + 1
    assert segstore.check(path) == []
    shutil.rmtree(path)


# --- the writer --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_appends_go_on_in_magic_2(store_dir: Path, name: str) -> None:
    """... in the same segment, and all is there after a close, and after a kill."""
    drawn = KINDS[name]
    end = drawn.messages[-1].offset + 1
    path = written(store_dir, drawn)
    for turn in range(2):
        with segstore.open(path) as store:
            log = store.partition("t")
            assert log.append(b"one", timestamp=MS) == end + 3 * turn
            assert log.append_batch([b"two", b"three"], timestamps=[MS, MS]).start == end + 3 * turn + 1
        (path / ".kafka_cleanshutdown").unlink()
    with segstore.open(path) as store:
        found = rows(records(store.partition("t")))
    assert found[: len(drawn.messages)] == expected(drawn.messages)
    assert [value for *_, value in found[len(drawn.messages) :]] == [b"one", b"two", b"three"] * 2
    (file,) = (path / "t-0").glob("*.log")
    data = file.read_bytes()
    assert data.startswith(drawn.data)
    assert len(decode_batches(data[len(drawn.data) :])) == 4


def test_segments_and_indexes(store_dir: Path) -> None:
    """Indexes that are missing are made, and found right by a check."""
    first = joined([entry(0, LZ4, some(0, 50)), entry(1, NONE, some(50, 200))])
    second = joined([entry(1, GZIP, some(1000 + 10 * i, 10)) for i in range(300)])
    path = written(store_dir, first, second)
    with segstore.open(path) as store:
        log = store.partition("t")
        assert rows(records(log)) == expected(first.messages + second.messages)
        assert log.read_one(3997).value == next(m.value for m in second.messages if m.offset == 3997)
    assert sum(file.stat().st_size for file in (path / "t-0").glob("*.index")) > 16


def test_retention_goes_by_time(store_dir: Path) -> None:
    """Of magic 0 the file's time counts, as in Kafka; of magic 1 the messages' times."""
    parts = entry(0, GZIP, some(0, 9)), entry(1, GZIP, some(9, 9)), entry(1, NONE, some(18, 2))
    with segstore.open(written(store_dir, *parts)) as store:
        store.alter_topic("t", {"retention.ms": 60_000, "file.delete.delay.ms": 0})
        log = store.partition("t")
        store.sweep()
        assert log.start_offset == 0
        os.utime(store_dir / "t-0" / f"{0:020d}.log", (10**9, 10**9))
        store.sweep()
        assert log.start_offset == log.end_offset == 20
        log.append(b"young")
        store.sweep()
        assert [r.value for r in records(log)] == [b"young"]


# --- torn and damaged logs ---------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_a_torn_tail_is_cut_at_a_whole_entry(tmp_path: Path, name: str) -> None:
    drawn = joined([entry(1, NONE, some(0, 2)), KINDS[name]])
    for end in sorted(
        {1, 11, 12, 17, 25, len(drawn.data) - 1, *(e - 1 for e in drawn.ends), *(e + 5 for e in drawn.ends)}
    ):
        if end > len(drawn.data) or end in drawn.ends:
            continue
        path = tmp_path / str(end)
        write_segment(path / "t-0", 0, drawn.data[:end])
        whole = drawn.data[: max((e for e in drawn.ends if e <= end), default=0)]
        left = message_sets.messages(whole)
        with segstore.open(path) as store:
            log = store.partition("t")
            assert rows(records(log)) == expected(left)
            assert log.append(b"next") == (left[-1].offset + 1 if left else 0)
        assert segstore.check(path) == []


@pytest.mark.parametrize("name", KINDS)
def test_damage_is_told_and_the_rest_is_read(tmp_path: Path, name: str) -> None:
    """The damaged entry alone is lost."""
    parts = [
        entry(1, GZIP, some(0, 4)),
        KINDS[name],
        entry(1, SNAPPY, some(50, 4)),
        entry(2, NONE, some(60, 4)),
    ]
    drawn = joined(parts)
    path = written(tmp_path / "store", drawn)
    with segstore.open(path):
        pass
    data = bytearray(drawn.data)
    data[len(parts[0].data) + 40] ^= 0x10
    write_segment(path / "t-0", 0, bytes(data))
    with segstore.open(path, mode="r") as store:
        log = store.partition("t")
        assert rows(log.read(0, max_bytes=1)) == expected(parts[0].messages)
        with pytest.raises(CorruptRecordError) as told:
            log.read(4)
        assert told.value.position == len(parts[0].data)
        assert told.value.next_offset is not None
        assert rows(log.read(50)) == expected(parts[2].messages + parts[3].messages)
    findings = segstore.check(path)
    assert len([f for f in findings if f.path.endswith(".log")]) == 1, findings


# --- sending -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [m for m, why in segstore.transfer_methods().items() if why is None])
def test_a_transfer_sends_magic_2_only(log: segstore.PartitionLog, tmp_path: Path, method: str) -> None:
    for most in (1, 200, 1 << 20):
        at, sent, target = 0, 0, tmp_path / f"sent-{most}"
        with open(target, "wb") as sink:
            while at < log.end_offset:
                size, at = log.transfer(sink, at, most, method)
                assert size > 0
                sent += size
        data = target.read_bytes()
        assert len(data) == sent
        assert rows(r for batch in decode_batches(plain_batches(data)) for r in _of(batch)) == expected(ALL)


def _of(batch: oracle.Batch) -> Iterator[oracle.Record]:
    appended = batch.attributes & oracle.APPEND_TIME
    return (r._replace(timestamp=batch.max_timestamp) if appended else r for r in batch.records)
