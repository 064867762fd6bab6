"""Promise: readers see the records that C appends as those that Python appends, through rolls and beside open
transactions.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, FailingFiles
from native_tails import begun, tail_of, values
from native_tails import log as log
from stores import START_MS, killed
from tail_ends import end_of

import segstore
from segstore import StorageError
from segstore._native import ffi, lib
from segstore.records import Template
from segstore.records.header import TRANSACTIONAL_FLAG
from segstore.storage.log.append import append_record
from segstore.storage.log.visibility import Visible

MANY = 3000
GONE = ffi.new("uint8_t[]", b"\0")


def test_what_c_appends_is_seen_at_once(store_dir: Path, log: segstore.PartitionLog) -> None:
    with segstore.open(store_dir, "r") as other:
        follower = other.partition("t")
        for n in range(20):
            offset = log.append(b"%d" % n)
            assert log.end_offset == log.high_watermark == log.last_stable_offset == offset + 1
            assert follower.end_offset == offset + 1
            assert values(log, offset) == values(follower, offset) == [b"%d" % n]
        log.flush()
        assert follower.end_offset == log.end_offset
    assert tail_of(log).c.appends == 20


@pytest.mark.kind("programs")
def test_nothing_is_seen_before_it_is_written(store_dir: Path) -> None:
    ends: list[tuple[int, int]] = []

    class Looking(CountingFiles):
        def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if name == "pwrite" and watched:
                publisher = watched[0].partition_for_write().visible.publisher
                told = publisher._ends.get(publisher._key)
                assert told is not None
                ends.append((watched[0].end_offset, told.end))

    watched: list[segstore.PartitionLog] = []
    with segstore.open(store_dir, files=Looking()) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        watched.append(log)
        for n in range(2, 5):
            assert log.append(b"%d" % n) == n
        watched.clear()
    assert ends == [(2, 2), (3, 3), (4, 4)]


def test_a_view_has_one_segments_end(store_dir: Path) -> None:
    """Another thread rolls, and C appends to the next segment, between a reader's looks at view and tail."""
    between: list[Callable[[], object]] = []

    class Late(Visible):
        @property
        def current(self) -> Any:
            found = self.__dict__["current"]
            if between:
                between.pop()()
            return found

        @current.setter
        def current(self, view: Any) -> None:
            self.__dict__["current"] = view

    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        partition = log.partition_for_write()
        partition.visible.__class__ = Late

        def roll() -> None:
            assert partition.roll_from(partition.view)
            assert [log.append(b"%d" % n) for n in range(2, 5)] == [2, 3, 4]
            assert tail_of(log).c.appends == 2

        between.append(roll)
        view = partition.view
        assert not between
        assert (view.bases, view.end_offset) == ((0, 2), 5)
        assert view.end_position == tail_of(log).c.shown_position


def test_an_end_that_is_being_moved_is_not_read(log: segstore.PartitionLog) -> None:
    """A thread of the parent is within an append when a child begins: there it never ends."""
    tail = tail_of(log)
    assert end_of(tail)[::2] == (2, 2)
    tail.c.sequence += 1
    here, tail.c.owner = tail.c.owner, GONE
    assert end_of(tail)[0] == lib.SEG_SLOW
    tail.c.sequence += 1
    assert end_of(tail)[0] == 2
    tail.c.owner = here


def test_appends_beside_an_open_transaction(store_dir: Path, log: segstore.PartitionLog) -> None:
    """These move the end, and not the last stable offset, in this process and in others."""
    store = log.store
    assert isinstance(store, segstore.Store)
    with (
        segstore.open(store_dir, "r") as other,
        segstore.Producer(store, transactional_id="x") as producer,
    ):
        logs = log, other.partition("t")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"of the transaction")
        producer.flush()
        for end in range(4, 8):
            assert log.append(b"by C") == end - 1
            assert [it.end_offset for it in logs] == [end] * 2
            assert [it.last_stable_offset for it in logs] == [2] * 2
        assert tail_of(log).c.appends == 4
        log.flush()
        assert [it.last_stable_offset for it in logs] == [2] * 2
        producer.commit_transaction()
        assert [it.last_stable_offset for it in logs] == [8] * 2


def test_a_transaction_of_which_all_records_are_deleted(store_dir: Path) -> None:
    """The log starts where it ends, and so is the last stable offset the end: it must stay where it is."""
    files = FailingFiles({"pwrite"}, OSError(errno.ENOSPC, "No space left on device"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        begins = Template(TRANSACTIONAL_FLAG, 1, 0, 0)
        append_record(log, b"of a transaction", None, (), START_MS, template=begins)
        assert log.delete_records(-1) == log.last_stable_offset == 3
        files.arm()
        with pytest.raises(StorageError, match="No space left"):
            log.append(b"fails")
        assert log.append(b"behind") == 3
        assert (log.last_stable_offset, log.end_offset) == (3, 4)


def test_c_publishes_what_python_would(store_dir: Path) -> None:
    """Key, log start, recovery point, layout and leader epoch, which an unclean shutdown has raised."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"%d" % n for n in range(5)])
        dead = killed(store_dir, store_dir.parent / "killed")
    with segstore.open(dead) as store:
        log = store.partition("t")
        partition = log.partition_for_write()
        assert partition.roll_from(partition.view)
        log.append(b"5")
        log.flush()
        log.delete_records(2)
        assert [log.append(b"%d" % n) for n in range(6, 9)] == [6, 7, 8]
        assert tail_of(log).c.appends == 2
        publisher, layout = partition.visible.publisher, partition.segments.layout
        told = publisher._ends.get(publisher._key)
        assert told == publisher._ends_of(log.view, log.view, partition.flusher, layout)
        assert told[1:] == (2, 9, 9, 9, 6, layout, 1)
        assert layout
        assert set(log.read(7).batches["leader_epoch"]) == {1}


def test_who_waits_is_woken(log: segstore.PartitionLog) -> None:
    store = log.store
    assert isinstance(store, segstore.Store)
    c = tail_of(log).c
    seen, told = store.engine.publications, list[int]()
    waiting = threading.Thread(
        target=lambda: told.append(lib.seg_await(c.ends, c.ends_len, seen, 5_000_000_000))
    )
    waiting.start()
    waiting.join(0.1)  # long enough for it to sleep
    log.append(b"by C")
    waiting.join()
    assert told == [0]


def test_index_entries_of_c_are_found(log: segstore.PartitionLog) -> None:
    for n in range(MANY):
        log.append(b"%d" % n)
    active = log.partition_for_write().segments.active
    offsets, times = active.segment.indexes
    assert tail_of(log).c.appends == MANY
    assert offsets.entries > MANY * 70 // 300
    for offset in (2, 900, MANY + 1):
        found = offsets.lookup(offset)
        assert found is None or 0 <= offset - found[0] <= 4
    assert times.entries
    before = offsets.entries, times.entries
    with log.partition_for_write().token:
        assert (offsets.entries, times.entries) == before
    log.append_batch([b"behind"] * 3000)
    assert values(log, MANY + 2) == [b"behind"] * 3000


def test_readers_see_whole_records_through_rolls(store_dir: Path) -> None:
    """A view never has the end of one segment and the position in another."""
    done = threading.Event()
    failures: list[object] = []
    with segstore.open(store_dir) as store:
        store.create_topic("t", 1, {"segment.bytes": 4000})
        log = begun(store.partition("t"))

        def follow() -> None:
            at = 0
            try:
                while not done.is_set() or at < log.end_offset:
                    end = log.end_offset
                    found = log.read(at, 1 << 20)
                    assert found.next_offset >= end
                    assert [int(r.value or b"0") for r in found if r.offset > 1] == list(
                        range(max(at, 2), found.next_offset)
                    )
                    at = found.next_offset
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=follow) for _ in range(2)]
        for thread in threads:
            thread.start()
        for n in range(2, MANY):
            assert log.append(b"%d" % n) == n
            assert log.end_offset == n + 1
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_threads_append_to_one_partition(log: segstore.PartitionLog) -> None:
    offsets: list[list[int]] = [[] for _ in range(6)]

    def run(number: int) -> None:
        for n in range(400):
            if n % 40 == number:
                log.append_batch([b"%d" % number] * 3)
            offsets[number].append(log.append(b"%d" % number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.end_offset == 2 + 6 * 400 + 6 * 30
    found = [record.value for record in log.read(0, 1 << 30)]
    for number, mine in enumerate(offsets):
        assert mine == sorted(mine)
        assert {found[offset] for offset in mine} == {b"%d" % number}
