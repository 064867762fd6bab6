"""One partition: reads by offset and time, rolls, offsets of all sizes, what is appended in every form."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from oracle import Batch, encode_batch
from partitions import GOLDEN, read_expected
from stores import START_MS, Clock, logs, raw_batches, records, value_of, values, write_segment

import segstore
from segstore import InvalidArgumentError, InvalidRecordError, OffsetOutOfRangeError, RecordTooLargeError

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def open_t(path: Path, config: dict | None = None, clock: Clock | None = None) -> segstore.Store:
    store = segstore.open(path, clock=clock or Clock())
    store.create_topic("t", config=config)
    return store


# --- what goes in comes out ---------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_every_form_of_a_record(store_dir: Path, codec: str) -> None:
    forms = [
        (b"value", b"key", [("h", b"v"), ("h", b"w"), ("null", None), ("", b"")]),
        (b"", b"", [("empty", b"")]),
        (None, None, []),
        (None, b"", []),
        (b"", None, []),
        (bytes(range(256)) * 40, b"\xff\x00", [("é" * 20, b"\0")]),
    ]
    with open_t(store_dir, {"compression.type": codec}) as store:
        log = store.partition("t")
        for value, key, headers in forms:
            log.append(value, key, headers, timestamp=START_MS + 7)
        keys = [key for _, key, _ in forms]
        log.append_batch(
            [v for v, _, _ in forms], keys, headers=[h for _, _, h in forms], timestamps=START_MS
        )
    with segstore.open(store_dir, mode="r") as store:
        found = list(records(store.partition("t")))
    assert [(r.value, r.key, r.headers) for r in found] == forms * 2
    assert [r.timestamp for r in found] == [START_MS + 7] * 6 + [START_MS] * 6
    assert [r.offset for r in found] == list(range(12))


def test_append_of_nothing(store_dir: Path) -> None:
    with open_t(store_dir) as store:
        log = store.partition("t")
        log.append(b"one")
        before = logs(store_dir)[0].read_bytes()
        assert log.append_batch([]) == range(1, 1)
        assert logs(store_dir)[0].read_bytes() == before


# --- reads --------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [0, 1, 200, 1000, 5000, 1 << 30])
def test_reads_from_every_offset(store_dir: Path, max_bytes: int) -> None:
    with open_t(store_dir, {"segment.bytes": 1000}) as store:
        log = store.partition("t")
        log.append_batch([value_of(i) for i in range(60)], batch_bytes=200)
        assert len(logs(store_dir)) > 2
        for offset in range(60):
            found = log.read(offset, max_bytes)
            n = len(found)
            assert n >= 1
            assert list(found.offsets) == list(range(offset, offset + n))
            assert list(found.values) == [value_of(i) for i in range(offset, offset + n)]
            assert found.next_offset == offset + n
            assert found.batches["size"].sum() <= max_bytes or len(found.batches) == 1
        assert len(log.read(0, 1 << 30)) == 60
        assert (len(log.read(60)), log.read(60).next_offset) == (0, 60)


@pytest.mark.parametrize("offset", [-1, 4, 61, 1 << 62])
def test_offset_out_of_range_says_what_is_there(store_dir: Path, offset: int) -> None:
    with open_t(store_dir) as store:
        log = store.partition("t")
        log.append_batch([b"x"] * 60)
        log.delete_records(5)
        with pytest.raises(OffsetOutOfRangeError) as caught:
            log.read(offset)
        assert (caught.value.offset, caught.value.start, caught.value.end) == (offset, 5, 60)


def test_offsets_with_gaps_give_the_next_one_there(store_dir: Path) -> None:
    there = [2, 3, 9, 40, 41, 100, 2000, 2001]
    write_segment(store_dir / "t-0", 0, raw_batches(there, per_batch=3))
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        assert (log.start_offset, log.end_offset) == (0, 2002)
        for offset in range(2002):
            following = [o for o in there if o >= offset]
            assert log.read(offset, 0).offsets[0] == following[0]
        assert log.append(b"") == 2002


def test_compacted_golden_partition_from_every_offset(tmp_path: Path) -> None:
    expected = read_expected(GOLDEN / "records" / "flights-compacted-0.jsonl.gz")
    with segstore.open(GOLDEN / "clean", mode="r") as store:
        log = store.partition("flights-compacted", 0)
        for offset in range(0, log.end_offset, 97):
            following = [r for r in expected if r.offset >= offset][:3]
            assert list(log.read(offset).offsets[:3]) == [r.offset for r in following]


def test_a_batch_without_records_is_passed(store_dir: Path) -> None:
    empty = encode_batch(Batch(base_offset=5, last_offset_delta=4, max_timestamp=-1))
    data = raw_batches(range(5)) + empty + raw_batches(range(10, 12))
    write_segment(store_dir / "t-0", 0, data)
    write_segment(store_dir / "t-1", 0, raw_batches(range(5)) + empty)
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        assert [r.offset for r in records(log)] == [0, 1, 2, 3, 4, 10, 11]
        for offset in range(5, 11):
            assert list(log.read(offset, 0).offsets) in ([10, 11], [10])
        last = store.partition("t", 1)
        assert last.end_offset == 10
        assert (len(last.read(5)), last.read(7).next_offset) == (0, 10)
        assert last.append(b"") == 10


def test_records_outlive_their_files(store_dir: Path) -> None:
    store = open_t(store_dir, {"segment.bytes": 1000})
    log = store.partition("t")
    log.append_batch([value_of(i) for i in range(60)], batch_bytes=200)
    first, everything = log.read(0), log.read(0, 1 << 30)
    log.delete_records(50)
    assert list(first.values) == [value_of(i) for i in range(len(first))]
    store.delete_topic("t")
    assert [r.value for r in everything] == [value_of(i) for i in range(60)]
    store.close()
    assert list(everything.values[-2:]) == [value_of(58), value_of(59)]


@pytest.mark.parametrize("with_index", [True, False], ids=["txnindex", "no-txnindex"])
def test_read_committed(tmp_path: Path, with_index: bool) -> None:
    root = tmp_path / "broker"
    shutil.copytree(GOLDEN / "clean" / "flights-txn-0", root / "flights-txn-0")
    if not with_index:
        for path in (root / "flights-txn-0").glob("*.txnindex"):
            path.unlink()
    with segstore.open(root, mode="r") as store:
        log = store.partition("flights-txn", 0)
        everything = list(records(log))
        committed = list(records(log, isolation_level="read_committed"))
        some = list(records(log, isolation_level="read_committed", max_bytes=0))
        assert log.last_stable_offset == log.end_offset
    offsets = [r.offset for r in committed]
    assert 0 < len(committed) < len(everything)
    assert set(offsets) < {r.offset for r in everything}
    assert [r.offset for r in some] == offsets
    with segstore.open(root) as store:
        log = store.partition("flights-txn", 0)
        assert [r.offset for r in records(log, isolation_level="read_committed")] == offsets


# --- time ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_bytes", [1, 200, 1 << 20])
def test_offset_for_time_is_the_first_at_or_after(store_dir: Path, batch_bytes: int, rng) -> None:
    stamps = [START_MS + rng.randrange(40) for _ in range(200)]
    with open_t(store_dir, {"segment.bytes": 2000, "index.interval.bytes": 50}) as store:
        log = store.partition("t")
        log.append_batch([b"x" * 20] * 200, timestamps=np.array(stamps), batch_bytes=batch_bytes)
        for start in (0, 77):
            log.delete_records(start)
            for time in range(START_MS - 1, START_MS + 42):
                after = [i for i in range(start, 200) if stamps[i] >= time]
                assert log.offset_for_time(time) == (after[0] if after else None), time


def test_equal_stamps_over_several_batches(store_dir: Path) -> None:
    with open_t(store_dir, {"index.interval.bytes": 0, "segment.bytes": 1000}) as store:
        log = store.partition("t")
        for i in range(60):
            log.append(b"x" * 20, timestamp=START_MS + i // 20)
        assert [log.offset_for_time(START_MS + i) for i in (-1, 0, 1, 2, 3)] == [0, 0, 20, 40, None]


def test_log_append_time(store_dir: Path) -> None:
    clock = Clock(step=10)
    with open_t(store_dir, {"message.timestamp.type": "LogAppendTime"}, clock) as store:
        log = store.partition("t")
        log.append(b"a", timestamp=5)
        log.append_batch([b"b", b"c"], timestamps=[1, 2**60])
        stamps = log.read(0).timestamps
        assert START_MS < stamps[0] < stamps[1] == stamps[2] <= clock.now
        assert log.offset_for_time(int(stamps[1])) == 1
        assert log.offset_for_time(int(stamps[1]) + 1) is None


# --- rolls --------------------------------------------------------------------------------


def bases(path: Path) -> list[int]:
    return [int(log.stem) for log in logs(path)]


def test_rolls_by_size_before_it_is_exceeded(store_dir: Path) -> None:
    with open_t(store_dir, {"segment.bytes": 500}) as store:
        store.partition("t").append_batch([value_of(i, 60) for i in range(50)], batch_bytes=1)
    sizes = [log.stat().st_size for log in logs(store_dir)]
    assert max(sizes) <= 500
    assert min(sizes[:-1]) > 500 - 160


def test_a_batch_larger_than_a_segment(store_dir: Path) -> None:
    with open_t(store_dir, {"segment.bytes": 500, "max.message.bytes": 10_000}) as store:
        log = store.partition("t")
        log.append(b"a")
        with pytest.raises(RecordTooLargeError, match="500"):
            log.append(bytes(500))
        with pytest.raises(RecordTooLargeError, match="500"):
            log.append_batch([b"small", bytes(500)])
        # Several records that would make a batch too large are split.
        log.append_batch([bytes(100)] * 20, batch_bytes=100_000)
        assert log.end_offset == 21


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_rolls_by_time(store_dir: Path, kind: str) -> None:
    clock = Clock()
    with open_t(store_dir, {"segment.ms": 1000, "message.timestamp.type": kind}, clock) as store:
        log = store.partition("t")
        for later in (0, 1000, 1, 1000, 1):
            clock.now += later
            log.append(b"")
        assert bases(store_dir) == [0, 2, 4]


def test_stamps_of_the_application_do_not_roll_a_log_append_time_topic(store_dir: Path) -> None:
    clock = Clock()
    config = {"segment.ms": 1000, "message.timestamp.type": "LogAppendTime"}
    with open_t(store_dir, config, clock) as store:
        for stamp in (0, 2**50, 5, 2**51):
            store.partition("t").append(b"", timestamp=stamp)
        assert bases(store_dir) == [0]


def test_old_stamps_of_the_application_keep_no_log_append_time_segment(store_dir: Path) -> None:
    clock = Clock()
    config = {"segment.ms": 1000, "message.timestamp.type": "LogAppendTime"}
    with open_t(store_dir, config, clock) as store:
        for later in (0, 1001):
            clock.now += later
            store.partition("t").append(b"", timestamp=START_MS)
        assert bases(store_dir) == [0, 1]


def test_records_without_a_stamp_roll_by_the_clock(store_dir: Path) -> None:
    clock = Clock()
    with open_t(store_dir, {"segment.ms": 1000}, clock) as store:
        store.partition("t").append(b"")
        clock.now += 1001
        store.partition("t").append(b"", timestamp=-1)
        assert bases(store_dir) == [0, 1]


def test_an_altered_segment_ms_rolls_the_segment_that_is_there(store_dir: Path) -> None:
    clock = Clock()
    with open_t(store_dir, {"segment.ms": 100_000}, clock) as store:
        store.partition("t").append(b"")
        store.alter_topic("t", {"segment.ms": 1000})
        clock.now += 1001
        store.partition("t").append(b"")
        assert bases(store_dir) == [0, 1]


def test_a_stamp_is_refused_before_a_missing_key(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"cleanup.policy": "compact"})
        log = store.partition("t")
        with pytest.raises(InvalidArgumentError, match=r"message\.timestamp\.after\.max\.ms"):
            log.append(b"", timestamp=2**62)
        with pytest.raises(InvalidRecordError, match="no key"):
            log.append(b"")


def test_a_stamp_far_behind_the_first(store_dir: Path) -> None:
    """From no timestamp to the largest one is more than an int64 holds."""
    config = {"message.timestamp.after.max.ms": 2**63 - 1}
    with segstore.open(store_dir) as store:
        store.create_topic("t", config=config)
        log = store.partition("t")
        log.append(b"0", timestamp=-1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert log.append(b"1", timestamp=2**63 - 1) == 1
        assert [record.timestamp for record in records(log)] == [-1, 2**63 - 1]


def test_a_clock_that_goes_back(store_dir: Path) -> None:
    clock = Clock()
    with open_t(store_dir, {"segment.ms": 1000}, clock) as store:
        log = store.partition("t")
        for step in (0, -10_000_000, 5, -START_MS // 2, 10):
            clock.now += step
            log.append(b"")
        assert bases(store_dir) == [0]
        assert log.offset_for_time(START_MS) == 0
        assert log.offset_for_time(START_MS + 1) is None


@pytest.mark.parametrize("index_bytes", [24, 36, 120])
def test_rolls_when_an_index_is_full(store_dir: Path, index_bytes: int) -> None:
    config = {"segment.index.bytes": index_bytes, "index.interval.bytes": 0}
    with open_t(store_dir, config, Clock(step=1)) as store:
        log = store.partition("t")
        for i in range(40):
            log.append(value_of(i))
        log.append_batch([value_of(i) for i in range(40, 80)], batch_bytes=1)
        assert values(log) == [value_of(i) for i in range(80)]
    assert len(logs(store_dir)) >= 80 // (index_bytes // 8)
    for path in (store_dir / "t-0").glob("*index"):
        assert path.stat().st_size <= index_bytes


# --- 64-bit offsets ------------------------------------------------------------------------


def test_offsets_beyond_2_to_the_40(store_dir: Path) -> None:
    base = (1 << 41) + 5
    write_segment(store_dir / "t-0", base, raw_batches(range(base, base + 20)))
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        assert (log.start_offset, log.end_offset) == (base, base + 20)
        assert log.append_batch([b"a", b"b"]) == range(base + 20, base + 22)
        assert list(log.read(base + 18).offsets) == [base + 18, base + 19, base + 20, base + 21]
    with segstore.open(store_dir, mode="r") as store:
        assert store.partition("t").read(base + 21)[0].value == b"b"


def test_rolls_before_a_relative_offset_would_pass_int32(store_dir: Path) -> None:
    last = (1 << 31) - 3
    write_segment(store_dir / "t-0", 0, raw_batches([0, 7]) + raw_batches([last]))
    with segstore.open(store_dir, clock=Clock()) as store:
        log = store.partition("t")
        log.append(b"a")  # 2^31 - 2
        log.append_batch([b"b", b"c", b"d"])
        assert bases(store_dir) == [0, (1 << 31) - 1]
        assert values(log)[-4:] == [b"a", b"b", b"c", b"d"]
        assert log.read(8, 0).offsets[0] == last
