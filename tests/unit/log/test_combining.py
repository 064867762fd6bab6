"""Promise: appends that wait for a log's lock are made by one write of who holds it, each is told what became
of it alone, and the log is the one that they would have made one after the other (`_native/combine.c`).
"""

from __future__ import annotations

import errno
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles
from stores import START_MS, values
from stressed import stressed, watched
from waiting import PATIENCE, until

import segstore
from segstore import OffsetMismatchError, OutOfOrderSequenceError, StorageError, names
from segstore._native import lib
from segstore.records import Template
from segstore.storage.log.append import SLOW, append_record, append_short
from segstore.storage.log.partition import Partition
from segstore.storage.segment.native_tail import NativeTail

N = 5
BEGUN = 2
NEXT = BEGUN + 1
"""The offset behind the append that is held within its write."""
SLOTS = lib.SEG_WAITERS
CONFIG = {"index.interval.bytes": 100}
Told = dict[str, "int | BaseException"]


class Hooked(CountingFiles):
    """Files that call `hook` ahead of each write to a log, and keep the names of these writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.hook: Callable[[str], None] | None = None

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().before(name, args, kwargs)
        if name in ("pwrite", "pwritev") and args[0].path.endswith(names.LOG):
            self.writes.append(name)
            if self.hook is not None:
                self.hook(name)


@pytest.fixture
def files() -> Hooked:
    return Hooked()


@pytest.fixture
def store(store_dir: Path, files: Hooked) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, files=files) as store:
        yield store


def begun(store: segstore.Store, **config: Any) -> segstore.PartitionLog:
    """Make a topic, and append until C appends."""
    store.create_topic("t", 1, {**CONFIG, **config})
    log = store.partition("t")
    for _ in range(BEGUN):
        append(log, "begun")
    return log


def partition_of(log: segstore.PartitionLog) -> Partition:
    assert isinstance(log.source, Partition)
    return log.source


def tail_of(log: segstore.PartitionLog) -> NativeTail:
    tail = partition_of(log).tail.native
    assert tail is not None
    return tail


def append(log: segstore.PartitionLog, value: str, **how: Any) -> int:
    return log.append(value.encode(), timestamp=START_MS, **how)


def produce(log: segstore.PartitionLog, value: str, sequence: int) -> int:
    template = Template(0, 7, 0, sequence)
    return append_record(log, value.encode(), None, (), START_MS, template=template).first


def telling(told: Told, value: str, call: Callable[..., int], *args: Any, **how: Any) -> Callable[[], None]:
    def run() -> None:
        try:
            told[value] = call(*args, value, **how)
        except BaseException as error:
            told[value] = error

    return run


def appends(log: segstore.PartitionLog, told: Told, count: int = N) -> list[Callable[[], None]]:
    return [telling(told, str(i), append, log) for i in range(count)]


class Held:
    """Appends in threads, made while the first one is within its write; these wait in slots, in this order,
    until `let_go`.
    """

    def __init__(
        self,
        log: segstore.PartitionLog,
        files: Hooked,
        calls: Sequence[Callable[[], None]],
        waiting: int | None = None,
        then: BaseException | None = None,
    ) -> None:
        """With `then` the first write raises that, once it goes on."""
        self._go_on, within, told = threading.Event(), threading.Event(), Told()
        self.tail, self._told = tail_of(log), told

        def hold(name: str) -> None:
            files.hook = None
            within.set()
            assert self._go_on.wait(PATIENCE)
            if then is not None:
                raise then

        files.writes.clear()
        files.hook = hold
        self.threads = [threading.Thread(target=telling(told, "first", append, log))]
        self.threads[0].start()
        assert within.wait(PATIENCE)
        for n, call in enumerate(calls, 1):
            self.threads.append(threading.Thread(target=call))
            self.threads[-1].start()
            until(lambda n=n: self.in_slots() == (n if waiting is None else min(n, waiting)))

    def in_slots(self) -> int:
        """Return how many appends lie in slots."""
        return sum(map(bool, self.tail.c.waiters))

    @property
    def first(self) -> int | BaseException:
        """Return what the first append has returned or raised."""
        return self._told["first"]

    def let_go(self) -> None:
        self._go_on.set()

    def join(self) -> None:
        self.let_go()
        for thread in self.threads:
            thread.join()
        assert self.tail.c.waiting == 0
        assert not any(self.tail.c.waiters)


def bytes_of(store: segstore.Store) -> dict[str, bytes]:
    """Return the bytes of the partition's log and indexes. The store is closed."""
    folder = Path(store.path) / "t-0"
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name.endswith((names.LOG, names.INDEX, names.TIME_INDEX))
    }


def appended_in_turn(root: Path, *given: str, **config: Any) -> dict[str, bytes]:
    """Return the bytes that these appends leave, made one after the other."""
    with segstore.open(root) as store:
        log = begun(store, **config)
        for value in given:
            append(log, value)
    return bytes_of(store)


# --- one write -----------------------------------------------------------------------------------


def test_one_write_for_all_that_wait(store: segstore.Store, files: Hooked, tmp_path: Path) -> None:
    log, told = begun(store), Told()
    Held(log, files, appends(log, told)).join()
    assert files.writes == ["pwrite", "pwritev"]
    assert told == {str(i): NEXT + i for i in range(N)}
    assert values(log) == [b"begun", b"begun", b"first", *(b"%d" % i for i in range(N))]
    assert tail_of(log).c.appends == 1 + N
    store.close()
    assert bytes_of(store) == appended_in_turn(tmp_path / "in turn", "first", *map(str, range(N)))


def test_batches_and_records_and_producers_together(store: segstore.Store, files: Hooked) -> None:
    log, told = begun(store), Told()
    produce(log, "of a producer", 0)

    def batch(value: str) -> int:
        return log.append_batch([value.encode()] * 3, timestamps=START_MS, batch_bytes=1).start

    def columns(value: str) -> int:
        return log.append_batch([value.encode() * 10] * 3, timestamps=START_MS, compression="gzip").start

    calls = [
        telling(told, "list", batch),
        telling(told, "one", append, log, key=b"k", headers=[("h", b"v")]),
        telling(told, "gzip", columns),
        telling(told, "mine", lambda value: produce(log, value, 1)),
        telling(told, "last", append, log, expected_offset=12),
    ]
    end = log.end_offset + 1
    Held(log, files, calls).join()
    assert files.writes == ["pwrite", "pwritev"]
    assert told == {"list": end, "one": end + 3, "gzip": end + 4, "mine": end + 7, "last": end + 8}
    assert values(log)[4:] == [b"list"] * 3 + [b"one"] + [b"gzip" * 10] * 3 + [b"mine", b"last"]


def test_nobody_is_answered_before_the_bytes_are_written(store: segstore.Store, files: Hooked) -> None:
    log, told, seen = begun(store), Told(), list[Any]()
    held = Held(log, files, appends(log, told))
    waiters = [each for each in held.tail.c.waiters if each]  # they lie in their threads' frames

    def look(name: str) -> None:
        answered = [each.answered for each in waiters]
        seen.append((dict(told), answered, log.end_offset, held.tail.c.active.end.next_offset))

    files.hook = look
    held.join()
    assert seen == [({}, [0] * N, NEXT, NEXT)]
    assert len(told) == N


def test_more_than_there_are_slots(store: segstore.Store, files: Hooked) -> None:
    """Those without a slot wait for the lock."""
    log, told = begun(store), Told()
    Held(log, files, appends(log, told, SLOTS + 4), SLOTS).join()
    assert files.writes[:2] == ["pwrite", "pwritev"]
    assert [told[str(i)] for i in range(SLOTS)] == list(range(NEXT, NEXT + SLOTS))
    assert sorted(told.values()) == list(range(NEXT, NEXT + 4 + SLOTS))  # type: ignore[type-var]


def test_a_large_append_waits_for_the_lock(store: segstore.Store, files: Hooked) -> None:
    log, told = begun(store), Told()

    def large(value: str) -> int:
        return log.append_batch([value.encode() * 70_000], timestamps=START_MS).start

    held = Held(log, files, [*appends(log, told), telling(told, "x", large)], N)
    held.join()
    assert files.writes[:2] == ["pwrite", "pwritev"]
    assert len(files.writes) == 3
    assert sorted(told.values()) == list(range(NEXT, NEXT + 1 + N))  # type: ignore[type-var]


def test_log_append_time_rises_with_the_offsets(store_dir: Path, files: Hooked) -> None:
    ticks = iter(range(START_MS, START_MS + 10_000))
    with segstore.open(store_dir, files=files, clock=lambda: next(ticks)) as store:
        log, told = begun(store, **{"message.timestamp.type": "LogAppendTime"}), Told()
        Held(log, files, appends(log, told)).join()
        assert files.writes == ["pwrite", "pwritev"]
        found = list(log.read(0))
        assert [record.value for record in found[NEXT:]] == [b"%d" % i for i in range(N)]
        stamps = [record.timestamp for record in found]
        assert stamps == sorted(stamps)


@pytest.mark.parametrize("count", [1, 3])
def test_each_keeps_flush_messages(store: segstore.Store, files: Hooked, count: int) -> None:
    log, told = begun(store, **{"flush.messages": count}), Told()
    log.flush()  # the first one is Python's
    Held(log, files, appends(log, told)).join()
    assert files.writes == ["pwrite", "pwritev"]
    assert log.end_offset - partition_of(log).recovery_point < count


# --- each alone ----------------------------------------------------------------------------------


def test_one_that_is_refused_costs_the_others_nothing(store: segstore.Store, files: Hooked) -> None:
    log, told = begun(store), Told()
    produce(log, "of a producer", 0)
    calls = [
        telling(told, "a", append, log),
        telling(told, "elsewhere", append, log, expected_offset=77),
        telling(told, "b", append, log),
        telling(told, "gap", lambda value: produce(log, value, 5)),
        telling(told, "c", append, log),
    ]
    Held(log, files, calls).join()
    assert files.writes == ["pwrite", "pwritev"]
    assert [told["a"], told["b"], told["c"]] == [NEXT + 1, NEXT + 2, NEXT + 3]
    assert isinstance(told["elsewhere"], OffsetMismatchError)
    assert isinstance(told["gap"], OutOfOrderSequenceError)
    assert values(log) == [b"begun", b"begun", b"of a producer", b"first", b"a", b"b", b"c"]


def test_one_that_is_not_next_among_the_others_is_made_behind_them(
    store: segstore.Store, files: Hooked
) -> None:
    """The second of a producer, and one at an offset that the others reach: judged behind their write."""
    log, told = begun(store), Told()
    produce(log, "of a producer", 0)
    calls = [
        telling(told, "late", append, log, expected_offset=7),
        telling(told, "1", lambda value: produce(log, value, 1)),
        telling(told, "2", lambda value: produce(log, value, 2)),
        telling(told, "a", append, log),
        telling(told, "b", append, log),
    ]
    Held(log, files, calls).join()
    assert files.writes == ["pwrite", "pwritev", "pwrite", "pwrite"]
    assert told == {"1": 4, "a": 5, "b": 6, "late": 7, "2": 8}


def test_the_same_batch_of_two_threads_is_written_once(store: segstore.Store, files: Hooked) -> None:
    """A group is judged before any of it is written: the second one would be next as well."""
    log, told = begun(store), Told()
    produce(log, "of a producer", 0)
    calls = [
        telling(told, "a", append, log),
        telling(told, "once", lambda _: produce(log, "once", 1)),
        telling(told, "again", lambda _: produce(log, "once", 1)),
        telling(told, "b", append, log),
    ]
    Held(log, files, calls).join()
    assert told == {"a": 4, "once": 5, "again": 5, "b": 6}
    assert values(log)[NEXT:] == [b"first", b"a", b"once", b"b"]


def test_one_that_does_not_fit_rolls(store: segstore.Store, files: Hooked) -> None:
    log, told = begun(store, **{"segment.bytes": 480}), Told()
    Held(log, files, appends(log, told)).join()
    assert sorted(told.values()) == list(range(NEXT, NEXT + N))  # type: ignore[type-var]
    assert [told[bytes(value).decode()] for value in values(log)[NEXT:]] == list(range(NEXT, NEXT + N))  # type: ignore[arg-type]
    assert files.writes[:2] == ["pwrite", "pwritev"]
    assert len(partition_of(log).segments) == 2


def test_who_waits_while_the_tail_goes_is_made_the_long_way(store: segstore.Store, files: Hooked) -> None:
    log, told = begun(store), Told()
    held = Held(log, files, appends(log, told))
    assert lib.seg_tail_quit(held.tail.c) == 0
    held.join()
    assert sorted(told.values()) == list(range(NEXT, NEXT + N))  # type: ignore[type-var]


def test_who_waits_while_the_log_is_fenced_does_not_wait_for_the_write(
    store: segstore.Store, files: Hooked
) -> None:
    """The disk may hang within it. Who comes then does not wait either, nor does C append by itself."""
    log, told = begun(store), Told()
    held = Held(log, files, appends(log, told))
    held.tail.fence(held.tail.c.leader_epoch + 1)
    until(lambda: held.in_slots() == 0)
    assert held.tail.c.open
    assert append_short(partition_of(log).tail, b"comes then", None, (), None) == SLOW
    held.join()
    assert append_short(partition_of(log).tail, b"comes later", None, (), None) == SLOW
    assert sorted(told.values()) == list(range(NEXT, NEXT + N))  # type: ignore[type-var]


def test_who_comes_while_others_are_written(store: segstore.Store, files: Hooked) -> None:
    """And who takes the token then: none is left in a slot."""
    log, told = begun(store), Told()
    held = Held(log, files, appends(log, told))
    late, taken = telling(told, "late", append, log), threading.Event()

    def take() -> None:
        with partition_of(log).token:
            taken.set()

    threads = [threading.Thread(target=late), threading.Thread(target=take)]

    def come(name: str) -> None:
        files.hook = None
        for thread in threads:
            thread.start()
        until(lambda: held.in_slots() == 1)

    files.hook = come
    held.threads += threads
    held.join()
    assert taken.is_set()
    assert told["late"] == NEXT + N


# --- a write that fails ---------------------------------------------------------------------------


ILL = OSError(errno.EIO, "the disk is ill")


def failing(files: Hooked, *numbers: int, error: BaseException = ILL) -> None:
    """Let the nth writes from the one that is held on fail, counted from 1."""
    seen = 0

    def fail(name: str) -> None:
        nonlocal seen
        seen += 1
        if seen in numbers:
            raise error

    files.hook = fail


def test_a_write_for_all_that_fails_is_repeated_for_each(
    store: segstore.Store, files: Hooked, tmp_path: Path
) -> None:
    log, told = begun(store), Told()
    held = Held(log, files, appends(log, told))
    failing(files, 1)
    held.join()
    assert files.writes == ["pwrite", "pwritev", *["pwrite"] * N]
    assert told == {str(i): NEXT + i for i in range(N)}
    store.close()
    assert bytes_of(store) == appended_in_turn(tmp_path / "in turn", "first", *map(str, range(N)))


def test_who_fails_again_is_told_and_the_others_are_made(store: segstore.Store, files: Hooked) -> None:
    log, told = begun(store), Told()
    held = Held(log, files, appends(log, told))
    failing(files, 1, 3)
    held.join()
    assert files.writes[:4] == ["pwrite", "pwritev", "pwrite", "pwrite"]
    assert isinstance(told.pop("1"), StorageError)
    assert sorted(told.values()) == list(range(NEXT, NEXT - 1 + N))  # type: ignore[type-var]
    assert [told[bytes(value).decode()] for value in values(log)[NEXT:]] == list(range(NEXT, NEXT - 1 + N))  # type: ignore[arg-type]


def test_the_first_append_s_error_is_its_own(store: segstore.Store, files: Hooked) -> None:
    """Who waits behind a write that fails is made the long way."""
    log, told = begun(store), Told()
    held = Held(log, files, appends(log, told), then=ILL)
    held.join()
    assert isinstance(held.first, StorageError)
    assert sorted(told.values()) == list(range(BEGUN, BEGUN + N))  # type: ignore[type-var]


# --- interrupts ----------------------------------------------------------------------------------


class Interrupt(Exception):
    """What the handler of a signal raises."""


@pytest.fixture
def interrupting() -> Iterator[Callable[[], None]]:
    """Return what sends a signal to the main thread, whose handler raises Interrupt, once."""
    raised = False

    def handler(*_: object) -> None:
        nonlocal raised
        if not raised:
            raised = True
            raise Interrupt

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupt_withdraws_an_append_that_nobody_has_taken(
    store: segstore.Store, files: Hooked, interrupting: Callable[[], None]
) -> None:
    log, told = begun(store), Told()
    held = Held(log, files, appends(log, told, 2))

    def interrupt() -> None:
        until(lambda: held.in_slots() == 3)
        until(lambda: told.get("gone") or interrupting())  # until it sleeps

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        append(log, "gone")
    except Interrupt as error:
        told["gone"] = error
    thread.join()
    assert held.tail.c.waiting == 2
    held.join()
    assert isinstance(told["gone"], Interrupt)
    assert values(log) == [b"begun", b"begun", b"first", b"0", b"1"]


def test_an_append_that_was_taken_is_made_whatever_comes(
    store: segstore.Store, files: Hooked, interrupting: Callable[[], None]
) -> None:
    log, told = begun(store), Told()
    held = Held(log, files, appends(log, told, 2))

    def interrupt() -> None:
        until(lambda: held.in_slots() == 3)
        held.let_go()

    def within(name: str) -> None:
        files.hook = None
        interrupting()
        time.sleep(0.05)

    files.hook = within
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupt):  # when C has returned
        append(log, "mine")
    thread.join()
    held.join()
    assert files.writes == ["pwrite", "pwritev"]
    assert values(log) == [b"begun", b"begun", b"first", b"0", b"1", b"mine"]


def test_an_error_of_a_handler_within_the_write_is_its_thread_s(store: segstore.Store, files: Hooked) -> None:
    """It came to who holds the lock, whose own append is in the log; the others' are made the long way."""
    log, told = begun(store), Told()
    held = Held(log, files, appends(log, told))
    failing(files, 1, error=KeyboardInterrupt())
    held.join()
    assert isinstance(held.first, KeyboardInterrupt)
    assert sorted(told.values()) == list(range(NEXT, NEXT + N))  # type: ignore[type-var]
    assert values(log)[:NEXT] == [b"begun", b"begun", b"first"]


# --- many at once --------------------------------------------------------------------------------


def test_many_threads(store_dir: Path) -> None:
    """Records, lists and producers; C writes by itself."""
    with segstore.open(store_dir) as store:
        log = begun(store, **{"segment.bytes": 100_000})
        told: list[tuple[int, bytes]] = []

        def run(i: int) -> None:
            template = Template(0, i, 0, 0)
            for n in range(150):
                value = b"%d-%d" % (i, n)
                if i % 3 == 0:
                    told.append((log.append(value), value))
                elif i % 3 == 1:
                    told.append((log.append_batch([value] * 2, compression="gzip").start, value))
                else:
                    template = Template(0, i, 0, n)
                    told.append(
                        (append_record(log, value, None, (), START_MS, template=template).first, value)
                    )

        threads = [threading.Thread(target=run, args=(i,)) for i in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({offset for offset, _ in told}) == 9 * 150
        assert all(log.read_one(offset).value == value for offset, value in told)
    assert segstore.check(store_dir) == []


@pytest.mark.kind("programs")
def test_threads_of_c_alone(tmp_path: Path) -> None:
    """Six threads append, one pauses the tail and opens it again, signals come, and writes for several fail.
    The thread sanitizer looks on, if there is one that runs here.
    """
    done = watched("combining", 3000, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    together, refused = map(int, done.stdout.split())
    assert together > 50
    assert refused > 0


@pytest.mark.kind("programs")
def test_a_tail_that_is_opened_as_it_quits_has_a_descriptor(tmp_path: Path) -> None:
    """The pool of descriptors quits a tail while the holder of the append token opens it: it is open with its
    descriptor, or paused.
    """
    done = stressed("quitting", 2_000_000, tmp_path)
    assert done is not None
    assert (done.returncode, done.stderr) == (0, "")
    opened, quits = map(int, done.stdout.split())
    assert opened > 0
    assert quits > 0
