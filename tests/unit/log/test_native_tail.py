"""Promise: what C appends by itself is seen, kept, taken back and refused as what Python appends."""

from __future__ import annotations

import errno
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults import CountingFiles, FailingFiles
from producers import assert_live, state_of, told
from stores import START_MS, killed
from tail_ends import end_of

import segstore
from segstore import DuplicateSequenceError, OutOfOrderSequenceError, StorageError
from segstore._native import ffi, held, lib
from segstore.files import Handle
from segstore.files.native_write import NATIVE
from segstore.records import Columns, Template
from segstore.records.header import TRANSACTIONAL_FLAG
from segstore.storage.log.append import append_batches, append_record
from segstore.storage.log.publisher import Publisher
from segstore.storage.log.transaction_markers import active_producers, end_transaction, open_transactions
from segstore.storage.log.visibility import Visible
from segstore.storage.segment import native_tail
from segstore.storage.segment.native_tail import NativeTail

MANY = 3000
HERE, GONE = ffi.new("uint8_t[]", b"\1"), ffi.new("uint8_t[]", b"\0")


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir) as store:
        store.create_topic("t", 1, {"index.interval.bytes": 200})
        yield begun(store.partition("t"))


def begun(log: segstore.PartitionLog) -> segstore.PartitionLog:
    """Append the long way until C appends."""
    for n in range(2):
        assert log.append(b"before %d" % n) == n
    assert tail_of(log).c.open
    return log


def tail_of(log: segstore.PartitionLog) -> NativeTail:
    assert log._own is not None
    assert log._own.tail.may_be_open
    return log._own.tail.native


def values(log: segstore.PartitionLog, offset: int = 2) -> list[bytes | None]:
    return [record.value for record in log.read(offset, 1 << 30)]


# --- what is called ----------------------------------------------------------------------------


def test_one_call_of_c(log: segstore.PartitionLog) -> None:
    called: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__.startswith("seg_"):
            called.append(argument.__name__)

    sys.setprofile(profile)
    try:
        log.append(b"value", b"key")
    finally:
        sys.setprofile(None)
    assert called == ["seg_tail_append"]


def test_a_time_before_the_segment_s_first_is_no_reason_to_look_again(log: segstore.PartitionLog) -> None:
    """No roll is due by it, in either engine."""
    before, hour = log.read_one(0).timestamp, 3_600_000
    for stamp in (before - 1, before - hour, before):
        log.append(b"v", timestamp=stamp)
        log.append_batch([b"v"], timestamps=stamp)
    assert appends_of_c(log) == 6


@pytest.mark.parametrize(
    "headers",
    [[("h", b"v")], [("é", None), ("", b""), ("é", None)], [("h", b"v")] * 200],
    ids=["one", "of all forms", "many"],
)
def test_c_appends_records_with_headers(
    log: segstore.PartitionLog, headers: list[tuple[str, bytes | None]]
) -> None:
    for given in (headers, tuple(headers)):
        assert log.append(b"v", b"k", given, expected_offset=log.end_offset)
    assert appends_of_c(log) == 2
    assert [record.headers for record in log.read(2)] == [headers] * 2


@pytest.mark.parametrize("given", [(5,), (b"v", 5)], ids=["a value", "a key"])
def test_what_has_no_length_is_refused(log: segstore.PartitionLog, given: tuple[Any, ...]) -> None:
    assert tail_of(log).c.open
    with pytest.raises(segstore.InvalidTypeError, match="is int: allowed is bytes"):
        log.append(*given)


def test_one_pwrite(store_dir: Path) -> None:
    files = CountingFiles()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        files.clear()
        for n in range(50):
            log.append(b"%d" % n)
        assert [name for name, _ in files.calls] == ["pwrite"] * 50
        assert values(log) == [b"%d" % n for n in range(50)]


# --- producers with an id ----------------------------------------------------------------------

LAST = (1 << 31) - 1


def produce(log: segstore.PartitionLog, sequence: int, producer_id: int = 7, n: int = 1) -> int:
    """Append n records of a producer; returns the first offset."""
    template = Template(0, producer_id, 0, sequence)
    if n > 1:
        columns = Columns([b"%d" % (sequence + i) for i in range(n)], timestamp=now_ms())
        return append_batches(log, columns, range(1, n), template=template).first
    return append_record(log, b"%d" % sequence, None, (), now_ms(), template=template).first


def now_ms() -> int:
    return int(time.time() * 1000)


def appends_of_c(log: segstore.PartitionLog) -> int:
    return int(tail_of(log).c.appends)


@pytest.mark.parametrize(
    ("n", "called"), [(1, ["seg_tail_append"]), (3, ["seg_spans", "seg_encode_cut", "seg_tail_write"])]
)
def test_one_call_of_c_writes_what_a_producer_appends(store_dir: Path, n: int, called: list[str]) -> None:
    files, found = CountingFiles(), list[str]()

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__.startswith("seg_"):
            found.append(argument.__name__)

    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        produce(log, 0)
        files.clear()
        sys.setprofile(profile)
        try:
            produce(log, 1, n=n)
        finally:
            sys.setprofile(None)
        assert found == [*called, "seg_pwrite"]  # which the counting files call, in place of C
        assert [name for name, _ in files.calls] == ["pwrite"]
        assert values(log, 3) == [b"%d" % i for i in range(1, n + 1)]


def test_sequences_go_on_at_0_behind_the_last_one(log: segstore.PartitionLog) -> None:
    produce(log, LAST - 2)
    for sequence in (LAST - 1, LAST, 0, 1):
        produce(log, sequence)
    produce(log, 2, n=3)
    assert appends_of_c(log) == 5
    assert_live(log, Path(log.partition_for_write().directory))


def test_c_judges_all_producers_that_are_known(log: segstore.PartitionLog) -> None:
    for sequence in range(3):
        for producer_id in range(50):
            produce(log, sequence, producer_id)
    assert appends_of_c(log) == 100
    assert_live(log, Path(log.partition_for_write().directory))


def test_c_judges_producers_that_a_snapshot_knows(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        for producer_id in (7, 8):
            produce(store.partition("t"), 0, producer_id)
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        log.append_batch([b"the long way", b"until C appends"], batch_bytes=1)
        log.append(b"that, too")
        assert [produce(log, 1, producer_id) for producer_id in (7, 8)] == [5, 6]
        assert appends_of_c(log) == 2
        assert produce(log, 0, 7) == 0
        assert_live(log, store_dir / "t-0")


def test_what_c_appends_leaves_the_state_that_the_log_says(
    log: segstore.PartitionLog, rng: random.Random
) -> None:
    """Also of what is refused, repeated and in transactions, and as sequences begin anew at 0."""
    partition, short = log.partition_for_write(), 0
    directory, native = Path(partition.directory), partition.tail.native
    next_of = {producer_id: LAST - 5 * producer_id for producer_id in range(12)}
    for _ in range(40):
        for _ in range(30):
            producer_id, n = rng.randrange(12), rng.choice([1, 1, 1, 2, 7])
            attributes = TRANSACTIONAL_FLAG * (producer_id % 3 == 0)
            back = rng.choice([0] * 9 + [n, 5000])
            template = Template(attributes, producer_id, 0, (next_of[producer_id] - back) % (LAST + 1))
            columns = Columns([b"v"] * n, timestamp=now_ms())
            was_open, before = native.is_open, native.c.appends
            try:
                done = append_batches(log, columns, range(1, n), template=template)
            except (OutOfOrderSequenceError, DuplicateSequenceError):
                continue
            if not done.duplicate:
                next_of[producer_id] = (template.base_sequence + n) % (LAST + 1)
            short += was_open and native.c.appends > before
        assert_live(log, directory)
        if rng.random() < 0.3:
            end_transaction([log], rng.randrange(12), 0, 0, commit=rng.random() < 0.5)
    assert short > 600


def test_producers_append_while_others_come_and_go(log: segstore.PartitionLog) -> None:
    """The table grows and shrinks with the tail taken back only: C's appends never meet one that moves."""
    failures: list[BaseException] = []
    done, partition = threading.Event(), log.partition_for_write()

    def append(producer_id: int) -> None:
        try:
            for sequence in itertools.count():  # in a transaction, so it does not expire
                template = Template(TRANSACTIONAL_FLAG, producer_id, 0, sequence)
                append_record(log, b"v", None, (), now_ms(), template=template)
                if done.is_set():
                    break
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=[producer_id]) for producer_id in range(2)]
    for thread in threads:
        thread.start()
    gone = 0
    try:
        for number in range(40):
            produce(log, 0, 1000 + number)
            if len(active_producers(log)) > 10:
                gone += partition.expire_producers(0)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert gone > 10
    expected, known = told(Path(partition.directory)).state, state_of(log)
    assert [known.producers[n] for n in range(2)] == [expected.producers[n] for n in range(2)]
    assert known.ongoing == expected.ongoing


def test_records_of_an_open_transaction(log: segstore.PartitionLog) -> None:
    """C appends these, too: neither the first offset of the transaction nor the stable offset moves."""

    def send(sequence: int) -> int:
        template = Template(TRANSACTIONAL_FLAG, 7, 0, sequence)
        return append_record(log, b"v", None, (), now_ms(), template=template).first

    assert [send(sequence) for sequence in range(4)] == [2, 3, 4, 5]
    assert (appends_of_c(log), log.last_stable_offset, log.end_offset) == (3, 2, 6)
    with pytest.raises(segstore.errors.InvalidTxnStateError):
        produce(log, 4)
    assert open_transactions(log)[0].first_offset == 2
    end_transaction([log], 7, 0, 0, commit=True)
    assert log.last_stable_offset == 7


@pytest.mark.parametrize("n", [1, 3])
def test_a_failed_write_leaves_a_producer_as_it_was(store_dir: Path, n: int) -> None:
    files = HalfWritten({"pwrite"}, OSError(errno.EIO, "Input/output error"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        produce(log, 0)
        assert produce(log, 1) == 3
        files.arm()
        with pytest.raises(StorageError):
            produce(log, 2, n=n)
        assert produce(log, 2, n=n) == 4  # it is the next, and not taken for a repeated one
        assert_live(log, store_dir / "t-0")


def test_a_duplicate_of_what_c_appended(log: segstore.PartitionLog) -> None:
    produce(log, 0)
    offsets = [produce(log, sequence) for sequence in range(1, 8)]
    assert [produce(log, sequence) for sequence in range(3, 8)] == offsets[2:]
    with pytest.raises(segstore.errors.DuplicateSequenceError):
        produce(log, 2)
    assert log.end_offset == 10


# --- what is seen ------------------------------------------------------------------------------


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


# --- what fails --------------------------------------------------------------------------------


class HalfWritten(FailingFiles):
    """Files of which a failing `pwrite` has written a half."""

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            super().before(name, args, kwargs)
        except OSError:
            handle, data, position = args
            os.pwrite(handle.fd, data[: len(data) // 2], position)
            raise


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_leaves_nothing(store_dir: Path, number: int) -> None:
    files = HalfWritten({"pwrite"}, OSError(number, os.strerror(number)), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        log.append(b"whole")
        size = (path := next(store_dir.glob("t-0/*.log"))).stat().st_size
        for turn in range(2):
            if turn:
                assert log.append(b"whole") == 3
                size = path.stat().st_size
            assert tail_of(log).c.open
            files.arm()
            with pytest.raises(StorageError) as raised:
                log.append(b"cut off")
            assert (raised.value.errno, raised.value.filename) == (number, str(path))
            assert path.stat().st_size == size
            assert values(log) == [b"whole"] * (turn + 1)
        assert log.append(b"next") == 4
        assert values(log) == [b"whole", b"whole", b"next"]


def test_what_an_interrupt_leaves_of_a_failed_write_is_taken_back(store_dir: Path) -> None:
    """C has noted the failure: who takes the token next finds it, if the appending thread can't say so."""
    files = HalfWritten({"pwrite"}, OSError(errno.EIO, "Input/output error"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        size = (path := next(store_dir.glob("t-0/*.log"))).stat().st_size
        files.arm()
        tail = tail_of(log)
        assert lib_append(tail) == -errno.EIO
        assert path.stat().st_size > size
    assert path.stat().st_size == size


def lib_append(tail: NativeTail) -> int:
    value, headers = held("uint8_t[]", b"interrupted"), ffi.new("uint8_t[1]")
    record = ffi.new("seg_record *", {"key_len": -1, "headers_len": 1, "timestamp": lib.SEG_NOW})
    record.value, record.value_len, record.headers = value, len(value), headers
    return int(lib.seg_tail_append(tail.c, record, -1, lib.SEG_NOW, ffi.NULL))


def test_a_failed_sync_fences_c_too(store_dir: Path) -> None:
    files = FailingFiles({"sync"}, OSError(errno.EIO, "Input/output error"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        files.arm()
        with pytest.raises(StorageError, match="sync failed"):
            log.flush()
        with pytest.raises(StorageError, match="fenced"):
            log.append(b"no more")
        assert log.end_offset == 2


# --- who takes the tail back ---------------------------------------------------------------------


def test_a_stop_waits_for_an_append(store_dir: Path) -> None:
    entered, order = threading.Event(), list[str]()
    appending: threading.Thread | None = None

    class Slow(CountingFiles):
        def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if name == "pwrite" and threading.current_thread() is appending:
                entered.set()
                threading.Event().wait(0.2)
                order.append("written")

    with segstore.open(store_dir, files=Slow()) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        appending = threading.Thread(target=log.append, args=(b"slow",))
        appending.start()
        entered.wait()
        tail_of(log).pause()
        order.append("stopped")
        appending.join()
        assert order == ["written", "stopped"]
        assert log.append(b"next") == 3


def test_closing_and_deleting(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.create_topic("gone")
        log, gone = begun(store.partition("t")), begun(store.partition("gone"))
        store.delete_topic("gone")
        with pytest.raises(segstore.StoreClosedError):
            gone.append(b"no more")
    with pytest.raises(segstore.StoreClosedError):
        log.append(b"no more")


def test_settings_that_change(store_dir: Path, log: segstore.PartitionLog) -> None:
    with pytest.raises(segstore.RecordTooLargeError):
        log.store.alter_topic("t", {"max.message.bytes": 100}) and log.append(bytes(200))  # type: ignore[attr-defined]
    assert log.append(b"small") == 2


@pytest.mark.kind("programs")
def test_a_child_process_does_not_append(log: segstore.PartitionLog) -> None:
    child = os.fork()
    if not child:
        try:
            log.append(b"of a child")
        except segstore.ForkedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert log.append(b"of the parent") == 2


def test_files_that_the_pool_closes(store_dir: Path) -> None:
    """A lent tail keeps no file open that the pool lets go: the descriptor may be another file's then."""
    with segstore.open(store_dir, config={"max.open.files": 16}) as store:
        store.create_topic("t", 40)
        logs = [begun_or_not(store.partition("t", number)) for number in range(40)]
        before = len(os.listdir("/proc/self/fd"))
        for turn in range(5):
            for number, log in enumerate(logs):
                for n in range(3):
                    log.append(b"%d %d %d" % (number, turn, n))
            assert len(os.listdir("/proc/self/fd")) <= before + 16
        for number, log in enumerate(logs):
            assert values(log) == [b"%d %d %d" % (number, turn, n) for turn in range(5) for n in range(3)]


def begun_or_not(log: segstore.PartitionLog) -> segstore.PartitionLog:
    for n in range(2):
        log.append(b"%d" % n)
    return log


class LetGoAtOnce(Handle):
    """A file that the pool closes as soon as it knows who uses it."""

    @property
    def user(self) -> Any:
        return None

    @user.setter
    def user(self, user: Any) -> None:
        if user is not None:
            user().let_go()


def test_files_that_the_pool_closes_while_a_tail_is_lent() -> None:
    """The tail must not be lent behind that: C would write to a descriptor that is another file's by then."""
    tail = NativeTail(None, HERE, 0)
    tail.bind(handle := LetGoAtOnce("/dev/null", os.O_RDONLY), NATIVE, ffi.NULL)
    tail.begin()
    assert not tail.c.open
    handle.close()


@pytest.mark.parametrize("call", ["seg_tail_pause", "seg_tail_quit"])
def test_a_file_that_is_bound_again_while_the_pool_lets_go_of_it(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The holder of the append token got the handle before the pool dropped it. C may sync the file then, so
    the tail must keep it open.
    """
    tail, handle, real = NativeTail(None, HERE, 0), Handle("/dev/null", os.O_RDONLY), getattr(lib, call)
    tail.bind(handle, NATIVE, ffi.NULL)

    def bound_again(*arguments: Any) -> int:
        answer: int = real(*arguments)
        tail.bind(handle, NATIVE, ffi.NULL)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(native_tail, "lib", SimpleNamespace(**{call: bound_again}))
        tail._has_quit = call == "seg_tail_quit"
        handle.let_go()
    tail.begin()
    assert tail.c.open
    assert tail.handle is handle
    tail.let_go()
    assert tail.handle is None
    handle.close()


@pytest.mark.parametrize("quits", [False, True], ids=["pause", "quit"])
@pytest.mark.parametrize("here", [1, 0], ids=["here", "forked"])
def test_a_file_that_the_pool_lets_go_of_is_closed(here: int, quits: bool) -> None:
    tail = NativeTail(None, ffi.new("uint8_t[1]", bytes([here])), 0)
    tail.bind(handle := Handle("/dev/null", os.O_RDONLY), NATIVE, ffi.NULL)
    tail._has_quit = quits
    handle.let_go()
    assert (tail.handle, tail.c.fd) == (None, -1)
    handle.close()


def test_a_sync_that_fails_while_a_tail_is_lent(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The append that lends the tail is written: the fence stops the tail, and raises nothing there."""
    fenced = OSError(errno.EIO, "Input/output error")
    begin = Visible.open

    def fail_first(self: Visible, behind: bool) -> None:
        self.segments.fence(fenced)
        begin(self, behind)

    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"first")
        monkeypatch.setattr(Visible, "open", fail_first)
        assert log.append(b"written") == 1
        assert not tail_of(log).c.open
        with pytest.raises(StorageError, match="fenced"):
            log.append(b"no more")


def test_a_file_that_the_pool_has_let_go_before_a_tail_is_lent(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool would not know of the descriptor, and hold as many others as it may."""

    class Forgetting(CountingFiles):
        def native_write(self, handle: Handle) -> Any:
            log.partition_for_write().context.pool.forget(handle.path)
            return super().native_write(handle)

    with segstore.open(store_dir, files=Forgetting()) as store:
        store.create_topic("t")
        log = store.partition("t")
        for n in range(2):
            assert log.append(b"%d" % n) == n
        assert not tail_of(log).c.open
        before = len(os.listdir("/proc/self/fd"))
        log.partition_for_write().context.pool.close()
        assert len(os.listdir("/proc/self/fd")) < before
        assert log.append(b"2") == 2


def test_the_published_end_never_goes_back(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush publishes the end that it sees: no append of C's may come between."""
    seen, appended = threading.Event(), threading.Event()
    flushing: list[threading.Thread] = []
    begin, publish = NativeTail.begin, Publisher.publish

    def begin_late(self: NativeTail) -> None:
        flushing[0].start()
        seen.wait(0.2)
        begin(self)

    def publish_late(self: Publisher, *args: Any) -> None:
        if threading.current_thread() in flushing:
            seen.set()
            appended.wait(0.2)
        publish(self, *args)

    with segstore.open(store_dir) as store, segstore.open(store_dir, "r") as other:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"first")
        flushing.append(threading.Thread(target=log.partition_for_write().visible.publish))
        monkeypatch.setattr(NativeTail, "begin", begin_late)
        monkeypatch.setattr(Publisher, "publish", publish_late)
        log.append(b"lends the tail")
        assert log.append(b"by C") == 2
        appended.set()
        flushing[0].join()
        assert tail_of(log).c.appends == 1
        assert other.partition("t").end_offset == 3


def test_a_handle_without_its_user() -> None:
    handle = Handle("/dev/null", os.O_RDONLY)
    tail = NativeTail(None, HERE, 0)
    tail.bind(handle, NATIVE, ffi.NULL)
    tail.begin()
    handle.let_go()
    assert not tail.c.open
    del tail
    handle.let_go()
