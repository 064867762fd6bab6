"""Promise: a log has one native tail, whoever appends; readers never see a mix of two of its states."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import HookedFiles
from producers import assert_live, committed
from replica_logs import closed, opened, replica_of
from stores import START_MS
from tail_ends import end_of

import segstore
from segstore._native import ffi, lib
from segstore.files import Handle
from segstore.files.native_write import NATIVE
from segstore.records import Template, scan, single
from segstore.records.header import TRANSACTIONAL_FLAG
from segstore.storage.log.append import append_record
from segstore.storage.log.partition import Partition
from segstore.storage.log.transaction_markers import end_transaction
from segstore.storage.log.visibility import Visible
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.native_tail import NativeTail

HERE = ffi.new("uint8_t[]", b"\1")


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        yield begun(store.partition("t"))


def begun(log: segstore.PartitionLog) -> segstore.PartitionLog:
    for n in range(3):
        log.append(b"%d" % n)
    return log


# --- what readers see while a view is replaced ------------------------------------------------


def rolled(log: segstore.PartitionLog) -> None:
    log.partition_for_write().roll()


def by_python(log: segstore.PartitionLog) -> None:
    with log.partition_for_write().token:
        """The tail is paused."""
    log.append(b"by Python")


def deleted_below(log: segstore.PartitionLog) -> None:
    log.delete_records(2)


CHANGES = {"a roll": rolled, "an append": by_python, "a log start": deleted_below}


@pytest.mark.kind("programs")
@pytest.mark.parametrize("change", CHANGES)
def test_readers_see_no_less_and_no_other_segments_end_while_a_view_is_replaced(
    log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """C's end is taken away before another view comes, which would end where the one before did."""
    partition, seen = log.partition_for_write(), list[LogView]()
    look = NativeTail.look

    def watched(self: NativeTail, *ends: int) -> None:
        for then in (look, None):
            seen.extend((partition.visible.view, partition.visible.written))
            if then is not None:
                then(self, *ends)

    assert partition.tail.native.c.appends
    monkeypatch.setattr(NativeTail, "look", watched)
    CHANGES[change](log)
    log.append(b"and by C")
    assert len(seen) >= 8
    assert [view.end_offset for view in seen] == sorted(view.end_offset for view in seen)
    assert seen[0].end_offset == 3
    for view in seen:
        assert view.end_position == on_disk(view)


def on_disk(view: LogView) -> int:
    """Where the view ends in its last segment, by the bytes there."""
    batches = scan(Path(view.segments[-1].path).read_bytes())[0]
    return int(batches["size"][batches["base_offset"] < view.end_offset].sum())


def test_a_reader_is_never_behind_what_was_acknowledged(log: segstore.PartitionLog) -> None:
    """While others take the token, roll, and C appends between."""
    done, failures = threading.Event(), list[tuple[int, int]]()
    acknowledged = [3]

    def read() -> None:
        while not done.is_set():
            before = acknowledged[0]
            if (end := log.end_offset) < before:
                failures.append((end, before))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(2000):
            acknowledged[0] = log.append(b"v") + 1
            if n % 7 == 0:
                by_python(log)
            if n % 50 == 0:
                rolled(log)
    finally:
        done.set()
        reader.join()
    assert failures == []


@pytest.mark.kind("programs")
def test_a_cut_shows_less_at_once(tmp_path: Path) -> None:
    log = opened(tmp_path / "t", config={})
    begun(log)
    partition, replica = log.partition_for_write(), replica_of(log)
    replica.follow()
    seen: list[int] = []
    look = NativeTail.look
    with pytest.MonkeyPatch.context() as patch:

        def watched(self: NativeTail, *ends: int) -> None:
            look(self, *ends)
            seen.append(partition.visible.written.end_offset)

        patch.setattr(NativeTail, "look", watched)
        replica.truncate_to(1)
    assert seen[-1] == log.log_end_offset == 1
    assert set(seen) == {3, 1}
    assert end_of(partition.tail.native)[0] == 1
    closed(log)


# --- the descriptor ---------------------------------------------------------------------------


def rolled_away(partition: Partition) -> None:
    partition.roll()


def forgotten(partition: Partition) -> None:
    partition.context.pool.forget(partition.segments.active.segment.path)


@pytest.mark.parametrize("gone", [rolled_away, forgotten])
def test_a_descriptor_that_c_syncs_is_not_closed(
    log: segstore.PartitionLog, gone: Callable[[Partition], None]
) -> None:
    """Its number would be another file's, and what the sync says would be of that one."""
    log.append(b"to be synced")
    partition = log.partition_for_write()
    native = partition.tail.native
    held = weakref.ref(native.handle)
    native.c.commit.word += 1  # as while C syncs
    try:
        gone(partition)
        partition.context.pool.close()
        begun(log)
        assert native.handle is not held()
        assert held() is not None
    finally:
        native.c.commit.word += 1
    rolled(log)
    begun(log)
    assert held() is None


def test_a_function_by_which_c_syncs_is_not_freed(store_dir: Path) -> None:
    """As files of a test have one, for each open file."""
    with segstore.open(store_dir, files=HookedFiles()) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        native = log.partition_for_write().tail.native
        held = weakref.ref(native._owners["sync"])
        native.c.commit.word += 1  # as while C syncs
        try:
            rolled(log)
            begun(log)
            assert held() is not None
            assert native._owners["sync"] is not held()
        finally:
            native.c.commit.word += 1
        rolled(log)
        begun(log)
        assert held() is None


def test_a_descriptor_that_the_pool_has_taken_is_not_written_to() -> None:
    """Also where the tail is opened just then."""
    handle = Handle("/dev/null", os.O_WRONLY)
    tail = NativeTail(None, HERE, 0)
    tail.bind(handle, NATIVE, ffi.NULL)
    tail.let_go()
    assert (tail.c.fd, tail.handle) == (-1, None)
    tail.begin()
    assert not tail.is_open
    tail.bind(handle, NATIVE, ffi.NULL)
    tail.begin()
    assert tail.is_open
    handle.close()


def test_an_interrupt_leaves_no_tail_open_to_a_log_that_is_fenced(
    log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync of another thread fails just before C may append, and Ctrl-C comes just behind that."""
    partition = log.partition_for_write()
    opened = Visible.open

    def struck(visible: Visible, behind: bool) -> None:
        partition.segments.fence(OSError(5, "the sync failed"))
        opened(visible, behind)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Visible, "open", struck)
        with pytest.raises(KeyboardInterrupt):
            by_python(log)
    assert not partition.tail.native.is_open
    with pytest.raises(segstore.StorageError, match="fenced"):
        log.append(b"refused")
    assert log.end_offset == 4


# --- who syncs --------------------------------------------------------------------------------


def test_a_flush_that_is_late_does_not_have_c_sync_the_log_alone(
    log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread rolls, and opens the tail, while a flush of Python's has looked and not told yet: what
    was sealed is not synced.
    """
    partition = log.partition_for_write()
    flusher, needs = partition.flusher, partition.flusher._needs_log_only
    looked: list[bool] = []

    def then_rolled(view: LogView) -> bool:
        needed = needs(view)
        monkeypatch.setattr(flusher, "_needs_log_only", needs)
        looked.append(needed)
        other = threading.Thread(target=lambda: (rolled(log), begun(log)))
        other.start()
        other.join()
        return needed

    flusher.names_changed()
    monkeypatch.setattr(flusher, "_needs_log_only", then_rolled)
    flusher.flush(log.end_offset)
    assert looked == [True]
    assert partition.tail.native.is_open
    assert not lib.seg_tail_syncs(partition.tail.native.c)
    log.flush()
    assert partition.recovery_point == log.end_offset
    assert lib.seg_tail_syncs(partition.tail.native.c)


# --- one tail ---------------------------------------------------------------------------------


def test_a_log_has_one_tail(log: segstore.PartitionLog) -> None:
    partition = log.partition_for_write()
    native, struct = partition.tail.native, partition.tail.native.c
    rolled(log)
    by_python(log)
    begun(log)
    assert partition.tail.native is native
    assert native.c is struct
    assert partition.visible.tail is native
    assert native.c.active.end == partition.segments.active.end


def test_a_tail_is_not_flushed_while_its_end_is_hidden(log: segstore.PartitionLog) -> None:
    """The end of C's that is taken away says nothing of what is durable."""
    partition = log.partition_for_write()
    log.flush()
    log.append(b"not synced")
    native = partition.tail.native
    with partition.token:
        native.look(0, -1, -1)
        assert not partition.tail.flush()
        partition.visible.show()
    assert end_of(native)[0] == log.end_offset == 4


def test_the_published_ends_that_c_writes_to_stay_mapped_when_the_file_grows(
    log: segstore.PartitionLog, store_dir: Path
) -> None:
    partition = log.partition_for_write()
    ends, mapped = partition.visible.publisher._ends, partition.tail.native.c.ends
    memory, keys = weakref.ref(ends._memory), iter(range(1, 1 << 20))
    claimed: list[int] = []
    while ends.mapping[0] == mapped:
        claimed.append(next(keys))
        ends.claim(claimed[-1])
    gc.collect()
    assert memory() is not None
    assert partition.tail.native.is_open
    end = log.append(b"by C") + 1
    with segstore.open(store_dir, "r") as store:
        assert store.partition("t").end_offset == end
    for key in claimed:
        ends.release(key)


# --- a transaction that C begins ---------------------------------------------------------------


def in_transaction(log: segstore.PartitionLog, sequence: int, producer_id: int = 7) -> int:
    template = Template(TRANSACTIONAL_FLAG, producer_id, 0, sequence)
    return append_record(log, b"%d" % sequence, None, (), START_MS, template=template).first


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_c_begins_is_seen_once_it_is_decided(
    log: segstore.PartitionLog, store_dir: Path, commit: bool
) -> None:
    """The last stable offset stays where it begins, for readers of this process and of others."""
    assert in_transaction(log, 0) == 3  # by Python, which puts the producer into the table
    end_transaction([log], 7, 0, 0, commit=True)
    partition = log.partition_for_write()
    native = partition.tail.native
    assert native.is_open
    assert log.append(b"plain") == 5
    with segstore.open(store_dir, "r") as store:
        other = store.partition("t")
        assert (in_transaction(log, 1), log.append(b"behind it"), in_transaction(log, 2)) == (6, 7, 8)
        assert native.c.appends == 4
        for each in (log, other):
            assert (each.end_offset, each.last_stable_offset) == (9, 6)
            assert committed(each)[-1] == 5
        assert partition.view.stable_offset == partition.visible.written.stable_offset == 6
        end_transaction([log], 7, 0, 0, commit=commit)
        for each in (log, other):
            assert (each.end_offset, each.last_stable_offset) == (10, 10)
            assert committed(each)[-3:] == ([6, 7, 8] if commit else [3, 5, 7])
    assert_live(log, store_dir / "t-0")


def test_the_oldest_of_several_transactions_that_c_begins_counts(log: segstore.PartitionLog) -> None:
    for producer_id in (7, 8):
        in_transaction(log, 0, producer_id)
        end_transaction([log], producer_id, 0, 0, commit=True)
    native = log.partition_for_write().tail.native
    first = log.append(b"opens the tail") + 1
    assert [in_transaction(log, 1, producer_id) for producer_id in (8, 7)] == [first, first + 1]
    assert native.c.appends == 3
    assert log.last_stable_offset == first
    end_transaction([log], 8, 0, 0, commit=True)
    assert log.last_stable_offset == first + 1
    end_transaction([log], 7, 0, 0, commit=False)
    assert log.last_stable_offset == log.end_offset


def test_a_batch_of_a_broker_s_client_begins_no_transaction_in_c(log: segstore.PartitionLog) -> None:
    """Whether its coordinator knows of the transaction is for Python to ask (KIP-890)."""
    in_transaction(log, 0)
    end_transaction([log], 7, 0, 0, commit=True)
    log.append(b"opens the tail")
    native, before = log.partition_for_write().tail.native, log.end_offset
    assert native.is_open
    batch = single(b"v", None, (), START_MS, Template(TRANSACTIONAL_FLAG, 7, 0, 1), 0, None)
    sent = bytearray(ffi.buffer(batch.ptr, batch.size))
    with pytest.raises(segstore.errors.UnverifiedTransactionError):
        log.append_as_leader(sent)
    assert (log.end_offset, log.last_stable_offset) == (before, before)
    log.append_as_leader(sent, verified=True)
    assert log.last_stable_offset == before
