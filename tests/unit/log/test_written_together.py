"""Promise: appends that wait together are written by one call of the system, and each of them is told what
became of it alone.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, FailingFiles
from producers import send
from stores import values
from waiting import until

import segstore
from segstore import RecordTooLargeError, StorageError, names
from segstore.records import single
from segstore.storage.log.partition import Partition
from segstore.storage.log.writer import Pending

N = 6
Told = dict[bytes, "int | BaseException"]


@pytest.fixture
def files() -> CountingFiles:
    return CountingFiles()


@pytest.fixture
def store(store_dir: Path, files: CountingFiles) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, files=files) as store:
        yield store


def partition_of(log: segstore.PartitionLog) -> Partition:
    assert isinstance(log._source, Partition)
    return log._source


def together(log: segstore.PartitionLog, *appends: Callable[[], object]) -> None:
    """Make these appends in threads, which all wait for the append token before one of them gets it; they
    wait in the order in which they are given.
    """
    queue = partition_of(log).queue
    threads = [threading.Thread(target=append) for append in appends]
    with queue.token:
        for n, thread in enumerate(threads, 1):
            thread.start()
            until(lambda n=n: len(queue._queue) == n)
    for thread in threads:
        thread.join()


def appending(log: segstore.PartitionLog, told: Told, value: bytes) -> Callable[[], None]:
    def append() -> None:
        try:
            told[value] = log.append(value)
        except BaseException as error:
            told[value] = error

    return append


def all_appending(log: segstore.PartitionLog, count: int = N) -> Told:
    told: Told = {}
    together(log, *(appending(log, told, b"%d" % i) for i in range(count)))
    return told


def queued(log: segstore.PartitionLog, *values: bytes) -> list[Pending]:
    """Queue appends of these values, for which no thread waits."""
    waiting = [Pending([single(value, None, (), 0)], None) for value in values]
    partition_of(log).queue._queue.extend(waiting)
    return waiting


def test_one_call_for_all(store: segstore.Store, files: CountingFiles) -> None:
    store.create_topic("t")
    log = store.partition("t")
    log.append(b"first")
    files.clear()
    told = all_appending(log)
    assert told == {b"%d" % i: i + 1 for i in range(N)}
    assert (files.count("pwritev"), files.count("pwrite")) == (1, 0)
    assert values(log) == [b"first", *(b"%d" % i for i in range(N))]


def test_more_than_the_system_takes_at_once(store: segstore.Store, files: CountingFiles) -> None:
    """A vector has at most 1,024 parts (IOV_MAX)."""
    store.create_topic("t")
    log = store.partition("t")
    queued(log, *(b"%d" % i for i in range(2500)))
    files.clear()
    with partition_of(log).queue.token:
        partition_of(log).queue.drain()
    assert (files.count("pwritev"), files.count("pwrite")) == (3, 0)
    assert values(log) == [b"%d" % i for i in range(2500)]


def test_a_roll_lies_between(store: segstore.Store, files: CountingFiles) -> None:
    """What goes into one segment is one call."""
    store.create_topic("t", config={"segment.bytes": 150})  # two batches of 69 bytes
    log = store.partition("t")
    files.clear()
    told = all_appending(log)
    assert told == {b"%d" % i: i for i in range(N)}
    assert files.count("pwritev") == N // 2
    assert len(log._source.view.segments) == N // 2
    assert values(log) == [b"%d" % i for i in range(N)]


def test_a_producer_with_an_id_between_them(store: segstore.Store) -> None:
    """Its sequence is judged behind those that were queued before."""
    store.create_topic("t")
    log = store.partition("t")
    told: Told = {}
    first = [appending(log, told, b"%d" % i) for i in range(2)]
    rest = [appending(log, told, b"%d" % i) for i in range(2, 4)]
    together(log, *first, lambda: send(log, 7, 0, 1), *rest)
    assert told == {b"0": 0, b"1": 1, b"2": 3, b"3": 4}
    assert log.read(2).batches["producer_id"].tolist()[:1] == [7]
    again = send(log, 7, 0, 1)
    assert (again.first, again.duplicate) == (2, True)


def test_a_failed_write_is_tried_for_each_alone(store_dir: Path) -> None:
    """The disk refuses the one call, and then the second of the single ones."""
    files = FailingFiles(["pwritev", "pwrite"], OSError(errno.ENOSPC, "no"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        seen: list[str] = []
        hooked = files.before

        def before(name: str, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
            # The note of a full disk is written too.
            if name in ("pwritev", "pwrite") and args[0].path.endswith(names.LOG):
                seen.append(name)
                if len(seen) in (1, 3):
                    files.arm()
            hooked(name, args, kwargs)

        files.before = before  # type: ignore[assignment, method-assign]
        told = all_appending(log)
        files.before = hooked  # type: ignore[method-assign]
        assert seen == ["pwritev", *["pwrite"] * N]
        refused = [value for value, offset in told.items() if isinstance(offset, StorageError)]
        assert refused == [b"1"]
        written = [value for value in told if value != b"1"]
        assert {log.read(told[value])[0].value for value in written} == set(written)  # type: ignore[arg-type]
        assert len(values(log)) == len(written)


def test_one_that_no_segment_takes(store: segstore.Store) -> None:
    """It was checked by settings that are others by now; those beside it are written."""
    store.create_topic("t", config={"segment.bytes": 1000})
    log = store.partition("t")
    waiting = queued(log, b"0", b"1", b"x" * 5000, b"3")
    with partition_of(log).queue.token:
        partition_of(log).queue.drain()
    assert [each.result for each in waiting[:2]] == [0, 1]
    assert isinstance(waiting[2].result, RecordTooLargeError)
    assert waiting[3].result == 2
    assert values(log) == [b"0", b"1", b"3"]


def test_one_whose_thread_has_gone(store: segstore.Store, files: CountingFiles) -> None:
    """An append that an interrupt ended while it waited is not written later."""
    store.create_topic("t")
    log = store.partition("t")
    waiting = queued(log, b"0", b"1", b"2")
    waiting[1].abandoned = True
    with partition_of(log).queue.token:
        partition_of(log).queue.drain()
    assert [each.result for each in waiting] == [0, None, 1]
    assert values(log) == [b"0", b"2"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, segstore.ReentrantCallError])
def test_an_interrupt_is_told_to_its_thread_alone(
    store: segstore.Store, files: CountingFiles, error: type[BaseException]
) -> None:
    """The others' appends are written by the next of them. The last two are a signal handler's errors: of its
    own, and of an append that it made here.
    """
    store.create_topic("t")
    log = store.partition("t")
    hooked = files.before
    armed = [True]

    def before(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if name == "pwritev" and armed:
            armed.clear()
            raise error
        hooked(name, args, kwargs)

    files.before = before  # type: ignore[assignment, method-assign]
    told = all_appending(log)
    files.before = hooked  # type: ignore[method-assign]
    assert [type(offset) for offset in told.values() if not isinstance(offset, int)] == [error]
    assert sorted(offset for offset in told.values() if isinstance(offset, int)) == list(range(N - 1))
    assert [told[bytes(value)] for value in values(log)] == list(range(N - 1))  # type: ignore[index, arg-type]


@pytest.mark.parametrize("count", [1, 3])
def test_an_interrupt_behind_the_last_write(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """It comes before the offsets are noted: all is written, and each is told its offset."""
    store.create_topic("t")
    log = store.partition("t")
    writer = partition_of(log).writer
    attempt = writer._attempt

    def interrupted(*args: Any) -> None:
        monkeypatch.undo()
        attempt(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_attempt", interrupted)
    waiting = queued(log, *(b"%d" % i for i in range(count)))
    with pytest.raises(KeyboardInterrupt), partition_of(log).queue.token:
        partition_of(log).queue.drain()
    assert [each.result for each in waiting] == list(range(count))
    assert log.append(b"after") == count
    assert values(log) == [*(b"%d" % i for i in range(count)), b"after"]


def test_an_error_of_a_handler_while_they_are_taken_back(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a number, as the disk's have, and comes before the end went back: nobody is told an offset, and
    nothing is fenced.
    """
    files = FailingFiles(["pwritev"], OSError(errno.ENOSPC, "no"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        waiting = queued(log, b"0", b"1")
        segments = partition_of(log).segments

        def handler(_: object) -> None:
            monkeypatch.undo()
            raise OSError(errno.EIO, "a signal handler's")

        monkeypatch.setattr(segments, "cut_behind", handler)
        files.arm()
        with pytest.raises(OSError, match="a signal handler's"):
            log.append(b"2")
        assert ([each.result for each in waiting], segments.fenced) == ([None, None], None)
        assert log.append(b"3") == 2
        assert [each.result for each in waiting] == [0, 1]
        assert values(log) == [b"0", b"1", b"3"]


def test_a_fenced_partition_tells_each(store: segstore.Store) -> None:
    store.create_topic("t")
    log = store.partition("t")
    partition_of(log).segments.fence(OSError(errno.EIO, "a sync failed"))
    told = all_appending(log)
    assert [type(error) for error in told.values()] == [StorageError] * N
    assert len({id(error) for error in told.values()}) == N
    assert log.end_offset == 0
    partition_of(log).segments.fenced = None
