"""The log cleaner's rules, one case each: which records stay, and what a compacted topic takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from compaction import DAY, batches, clean, open_compacted, pairs, put, roll
from stores import START_MS, Clock

import segstore
from segstore.records import Columns
from segstore.records.header import DELETE_HORIZON_FLAG
from segstore.storage import cleaner
from segstore.storage.cleaner import dirtiness
from segstore.storage.log.append import append_batches, append_record
from segstore.storage.log.partition import Partition


def test_the_latest_of_each_key_stays_with_its_offset(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        log = store.partition("t")
        for value in (b"1", b"2", b"3"):
            put(log, (b"a", value), (b"b", value), (b"", value))
        put(log, (b"a", b"4"))
        roll(store)
        done = clean(store)
        assert pairs(log) == [(7, b"b", b"3"), (8, b"", b"3"), (9, b"a", b"4")]
        assert (log.start_offset, log.end_offset) == (0, 10)
        assert (done.end_offset, done.records_before, done.records_after) == (10, 10, 3)
        assert done.bytes_after < done.bytes_before
        assert done[1:4] == (1, 1, 1)


def test_what_is_active_stays_as_it_is(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        log = store.partition("t")
        put(log, (b"a", b"1"))
        roll(store)
        put(log, (b"a", b"2"), (b"a", b"3"))
        assert clean(store).end_offset == 1
        assert pairs(log) == [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"a", b"3")]


def test_A5_a_segment_that_is_sealed_between_two_reads_is_not_compacted(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process may still write to it, and the list of such segments was read before its seal."""
    with open_compacted(store_dir) as store:
        put(store.partition("t"), (b"a", b"1"))
        roll(store)
        put(store.partition("t"), (b"a", b"2"))
        partition = store.partition("t").partition_for_write()

        def read_before_a_seal(self: Partition) -> set[int]:
            self.roll()
            return set()

        monkeypatch.setattr(Partition, "written_still", read_before_a_seal)
        assert dirtiness(partition, None, 0).until == 1


def test_a_log_that_is_clean_is_left_alone(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        put(store.partition("t"), (b"a", b"1"), (b"a", b"2"))
        roll(store)
        clean(store)
        before = store.partition("t").partition_for_write().view.segments
        assert clean(store) == cleaner.CleanResult(2)
        assert clean(store, checkpoint=False) == cleaner.CleanResult(2)
        assert store.partition("t").partition_for_write().view.segments == before


def test_nothing_is_written_where_nothing_changes(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        put(store.partition("t"), (b"a", b"1"), (b"b", b"2"))
        roll(store)
        before = store.partition("t").partition_for_write().view.segments
        done = clean(store)
        assert (done.end_offset, done.segments_before, done.bytes_before) == (2, 0, 0)
        assert store.partition("t").partition_for_write().view.segments == before
        assert not list((store_dir / "t-0").glob("*.cleaned"))


def test_headers_stamps_and_null_and_empty_stay(store_dir: Path) -> None:
    with open_compacted(store_dir, Clock(START_MS)) as store:
        log = store.partition("t")
        headers = [[("h", b"x"), ("h", None)], [], [("", b"")], []]
        stamps = [START_MS - 5, START_MS - 9, -1, START_MS - 7]
        values = [b"x" * 300, b"", None, b"dead"]
        log.append_batch(values, [b"a", b"b", b"c", b"d"], stamps, headers)
        put(log, (b"d", b"new"))
        roll(store)
        before = [r for r in log.read(0) if r.value != b"dead"]
        clean(store)
        assert list(log.read(0)) == before


TOMBSTONE = [(b"a", b"1"), (b"b", b"1"), (b"a", None)]


def test_a_tombstone_lives_for_delete_retention_ms(store_dir: Path) -> None:
    clock = Clock(START_MS)
    with open_compacted(store_dir, clock) as store:
        log = store.partition("t")
        put(log, *TOMBSTONE)
        roll(store)
        clean(store)
        (batch,) = batches(store)
        assert batch["attributes"] & DELETE_HORIZON_FLAG
        assert batch["base_timestamp"] == START_MS + DAY
        assert batch["max_timestamp"] == START_MS
        for now, expected in ((START_MS + DAY - 1, [b"b", b"a"]), (START_MS + DAY, [b"b"])):
            clock.now = now
            put(log, (b"c", b"%d" % now))
            roll(store)
            clean(store)
            assert [key for _, key, _ in pairs(log) if key != b"c"] == expected
        assert [r.timestamp for r in log.read(0)] == [START_MS, START_MS + DAY]
        assert batches(store)[0]["base_timestamp"] == START_MS + DAY  # it keeps its horizon


def test_records_without_a_key_are_dropped_and_counted(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_compacted(store_dir, cleanup_policy="delete") as store:
        log = store.partition("t")
        log.append_batch([b"1", b"2", b"3"], keys=[None, b"k", None])
        roll(store)
        store.alter_topic("t", {"cleanup.policy": "compact"})
        assert clean(store).keyless == 2
        assert pairs(log) == [(1, b"k", b"2")]
        assert "2 records without a key" in caplog.text


def test_what_lies_below_the_log_start_is_no_matter(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        log = store.partition("t")
        for i in range(6):
            put(log, (b"a", b"%d" % i), (b"b%d" % i, b""))
        roll(store)
        put(log, (b"z", b""))
        log.delete_records(5)
        assert dirtiness(log.partition_for_write(), None, 0).first_dirty == 5
        clean(store)
        assert log.start_offset == 5
        assert pairs(log) == [
            (5, b"b2", b""),
            (7, b"b3", b""),
            (9, b"b4", b""),
            (10, b"a", b"5"),
            (11, b"b5", b""),
            (12, b"z", b""),
        ]


# --- records without a key ------------------------------------------------------------------------


def sent(log: segstore.PartitionLog, keys: list[bytes | None]) -> object:
    return append_batches(log, Columns([b"v"] * len(keys), keys))


APPENDS: dict[str, Any] = {
    "append": lambda log: log.append(b"v"),
    "append_batch without keys": lambda log: log.append_batch([b"v"]),
    "append_batch with some": lambda log: log.append_batch([b"v", b"w"], keys=[b"k", None]),
    "append_batch of Arrow": lambda log: log.append_batch([b"v", b"w"], keys=pa.array([None, b"k"])),
    "a producer's batch": lambda log: sent(log, [b"k", None]),
    "a producer's record": lambda log: append_record(log, b"v", None, (), START_MS),
}


@pytest.mark.parametrize("name", APPENDS)
def test_a_compacted_topic_takes_no_record_without_a_key(store_dir: Path, name: str) -> None:
    with open_compacted(store_dir, Clock(START_MS), cleanup_policy="compact,delete") as store:
        log = store.partition("t")
        with pytest.raises(segstore.errors.InvalidRecordError, match="no key"):
            APPENDS[name](log)
        assert log.end_offset == 0
        log.append_batch([b"", b""], keys=pa.array([None, b"k", b""])[1:])
        sent(log, [b"", b"k"])
        assert log.end_offset == 4
        store.alter_topic("t", {"cleanup.policy": "delete"})
        APPENDS[name](log)
