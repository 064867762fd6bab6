"""Promise: one record says where a log ends and how far its indexes have come, whoever appends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stores import killed
from tail_ends import end_of

import segstore
from segstore.index import OffsetIndex, TimeIndex
from segstore.storage.log.partition import Partition
from segstore.storage.log.writer import AppendUndo
from segstore.storage.segment.native_tail import NativeTail

SETTINGS = {"index.interval.bytes": 200, "segment.bytes": 2000}


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir) as store:
        store.create_topic("t", 1, SETTINGS)
        log = store.partition("t")
        for n in range(2):
            log.append(b"before %d" % n)
        yield log


def tail_of(partition: Partition) -> NativeTail:
    tail = partition.tail.native
    assert tail is not None
    return tail


def by_c(log: segstore.PartitionLog) -> None:
    native = log.partition_for_write().tail.native
    before = native.c.appends
    log.append(b"v" * 150)
    assert native.c.appends == before + 1


def by_python(log: segstore.PartitionLog) -> None:
    with log.partition_for_write().token:
        """The tail is taken back."""
    log.append(b"v" * 150)


def by_turns(log: segstore.PartitionLog) -> None:
    for append in (by_c, by_python) * 2:
        append(log)


def over_a_roll(log: segstore.PartitionLog) -> None:
    for _ in range(20):
        log.append(b"v" * 150)
    assert len(log.partition_for_write().segments) > 1


@pytest.mark.parametrize("append", [by_c, by_python, by_turns, over_a_roll])
def test_all_numbers_of_the_end_are_those_of_the_record(
    log: segstore.PartitionLog, append: Callable[[segstore.PartitionLog], None]
) -> None:
    """Also while C appends: what Python had of these numbers was as old as the loan."""
    append(log)
    partition = log.partition_for_write()
    segment, end = partition.segments[-1], partition.segments.active.end
    assert tail_of(partition).c.active.end == end
    assert partition.segments.next_offset == end.next_offset == log.end_offset
    assert segment.size == end.position == Path(segment.path).stat().st_size == partition.view.end_position
    offsets, times = segment.indexes
    assert (offsets.entries, times.entries) == (end.offset_entries, end.time_entries)
    with partition.token:
        assert (offsets.entries, times.entries) == (end.offset_entries, end.time_entries)
    for index, parse in ((offsets, OffsetIndex.parse), (times, TimeIndex.parse)):
        on_disk = [entry for entry in parse(Path(index.path).read_bytes()) if entry != (0, 0)]
        assert on_disk == [index.entry(slot) for slot in range(index.entries)]


def test_a_roll_makes_a_new_record(log: segstore.PartitionLog) -> None:
    """The old one stays as it was: a new offset never meets the position of an older file."""
    partition = log.partition_for_write()
    before, first = partition.segments.active.end, partition.segments[0]
    while len(partition.segments) == 1:
        log.append(b"v" * 150)
    after = partition.segments.active.end
    assert before != after
    assert (before.base_offset, after.base_offset) == tuple(partition.view.bases)
    assert before.next_offset == after.base_offset
    assert first.size == first.final_size == before.position == Path(first.path).stat().st_size
    log.append(b"v")
    assert before.next_offset == after.base_offset
    assert tail_of(partition).c.active.end == after


def test_a_reader_with_a_tail_that_was_taken_back_sees_no_append_under_way(
    log: segstore.PartitionLog,
) -> None:
    partition = log.partition_for_write()
    log.append(b"by C")
    tail = tail_of(partition)
    shown = end_of(tail)
    assert shown == (3, partition.view.end_position, 3, -1)
    with partition.token:
        end = partition.segments.active.end
        mark = partition.segments.active.mark()
        end.position, end.next_offset = end.position + 1000, end.next_offset + 7  # as before the write
        assert end_of(tail) == shown
        assert partition.visible.log_end_offset == partition.view.end_offset == 3
        partition.segments.active.recall(mark)
    assert log.end_offset == 3


def test_an_append_that_has_rolled_is_recalled_to_where_the_log_ended(log: segstore.PartitionLog) -> None:
    """In memory first: the segment that the roll has sealed ends there from then on."""
    partition = log.partition_for_write()
    writer, segments = partition.writer, partition.segments
    with partition.token:
        writer.pending_undo = restore = AppendUndo(segments)
        segment, before = segments[-1], segments[-1].size
        segments.active.end.position += 10
        writer.roll()
        assert segment.sealed
        assert segment.size == segment.final_size == before + 10
        writer.recall()
        assert segments[-1] is segment
        assert segments.active.end.position == segment.size == restore.mark.position == before
        writer.take_back()
        assert not segment.sealed
        assert segments.active.end.position == segment.size == before
    assert log.append(b"behind") == 2
    assert [record.value for record in log.read(0)] == [b"before 0", b"before 1", b"behind"]


@pytest.mark.parametrize("kill", [False, True], ids=["closed", "killed"])
def test_the_record_of_a_store_that_is_opened_again(store_dir: Path, tmp_path: Path, kill: bool) -> None:
    """Its indexes go on from where the log's batches have left them."""
    with segstore.open(store_dir) as store:
        store.create_topic("t", 1, SETTINGS)
        for n in range(9):
            store.partition("t").append(b"v" * 150, timestamp=1000 + n)
        before = state_of(store.partition("t"))
        copy = killed(store_dir, tmp_path / "killed")
    with segstore.open(copy if kill else store_dir) as store:
        assert state_of(store.partition("t")) == before


def state_of(log: segstore.PartitionLog) -> tuple[int, ...]:
    end = log.partition_for_write().segments.active.end
    state = end.state
    return (
        *(end.position, end.next_offset, end.base_offset, end.rolled_ms, end.offset_entries),
        *(state.max_timestamp, state.max_timestamp_offset),
    )
