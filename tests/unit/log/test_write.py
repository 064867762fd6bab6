"""Promise: an append that C leaves to Python is written by its own thread, and what becomes of it is told to
that thread alone: all of it is in the log, visible, or nothing, and nothing of it is written later.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, FailingFiles
from paused_tails import let_tails_open
from producers import send
from stores import values
from token_waiters import counted, held_until_all_wait
from waiting import until

import segstore
from segstore import RecordTooLargeError, ReentrantCallError, StorageError, names
from segstore.records import single
from segstore.storage.log.partition import Partition

N = 6
Told = dict[bytes, "int | BaseException"]


@pytest.fixture
def files() -> CountingFiles:
    return CountingFiles()


@pytest.fixture
def store(store_dir: Path, files: CountingFiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[segstore.Store]:
    let_tails_open(monkeypatch, False)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        yield store


@pytest.fixture
def log(store: segstore.Store) -> segstore.PartitionLog:
    return store.partition("t")


def partition_of(log: segstore.PartitionLog) -> Partition:
    assert isinstance(log.source, Partition)
    return log.source


def appending(log: segstore.PartitionLog, told: Told, value: bytes) -> Callable[[], None]:
    def append() -> None:
        try:
            told[value] = log.append(value)
        except BaseException as error:
            told[value] = error

    return append


def all_appending(log: segstore.PartitionLog, count: int = N) -> Told:
    told: Told = {}
    appends = [appending(log, told, b"%d" % i) for i in range(count)]
    held_until_all_wait(partition_of(log).token, appends)
    return told


def raising_once(files: CountingFiles, error: type[BaseException]) -> None:
    """Raise an error in place of the next write to a log."""
    hooked = files.before

    def before(name: str, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        if name == "pwrite" and args[0].path.endswith(names.LOG):
            files.before = hooked  # type: ignore[method-assign]
            raise error
        hooked(name, args, kwargs)

    files.before = before  # type: ignore[assignment, method-assign]


def test_each_is_a_write_of_its_own(log: segstore.PartitionLog, files: CountingFiles) -> None:
    files.clear()
    told = all_appending(log)
    assert sorted(told.values()) == list(range(N))  # type: ignore[type-var]
    assert (files.count("pwritev"), files.count("pwrite")) == (0, N)
    assert {value: told[value] for value in told} == {
        bytes(value): offset
        for offset, value in enumerate(values(log))  # type: ignore[arg-type]
    }


def test_a_producer_with_an_id_among_them(log: segstore.PartitionLog) -> None:
    told: Told = {}
    appends = [appending(log, told, b"%d" % i) for i in range(4)]
    held_until_all_wait(partition_of(log).token, [*appends, lambda: send(log, 7, 0, 1)])
    again = send(log, 7, 0, 1)
    assert again.duplicate
    assert log.read(again.first).batches["producer_id"].tolist()[:1] == [7]
    assert sorted([again.first, *told.values()]) == list(range(5))  # type: ignore[type-var]


def test_a_failed_write_is_told_to_its_thread(store_dir: Path) -> None:
    files = FailingFiles(["pwritev", "pwrite"], OSError(errno.ENOSPC, "no"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        files.arm()
        with pytest.raises(StorageError, match="no"):
            partition_of(log).put([single(b"0", None, (), 0)], None)
        told = all_appending(log)
        assert sorted(told.values()) == list(range(N))  # type: ignore[type-var]


def test_one_that_no_segment_takes(store: segstore.Store) -> None:
    """It was checked by settings that are others by now."""
    store.create_topic("small", config={"segment.bytes": 1000})
    partition = partition_of(store.partition("small"))
    with pytest.raises(RecordTooLargeError):
        partition.put([single(b"x" * 5000, None, (), 0)])
    assert partition.put([single(b"after", None, (), 0)]) == 0


def test_one_whose_thread_has_gone(log: segstore.PartitionLog) -> None:
    """An append that an interrupt ends while it waits for the token is not written later."""
    token, told = partition_of(log).token, Told()
    acquire = token.acquire

    def interrupted(*args: object, **kwargs: object) -> bool:
        if not args:  # it would wait
            raise KeyboardInterrupt
        return bool(acquire(*args, **kwargs))

    thread = threading.Thread(target=appending(log, told, b"gone"))
    token.acquire = interrupted
    with counted(token) as waiters, token:
        thread.start()
        until(lambda: waiters)
        thread.join()
    del token.acquire
    assert isinstance(told[b"gone"], KeyboardInterrupt)
    assert log.append(b"after") == 0
    assert values(log) == [b"after"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, ReentrantCallError])
def test_an_interrupt_is_told_to_its_thread_alone(
    log: segstore.PartitionLog, files: CountingFiles, error: type[BaseException]
) -> None:
    """The last two are a signal handler's errors: of its own, and of an append that it made here."""
    raising_once(files, error)
    told = all_appending(log)
    assert [type(offset) for offset in told.values() if not isinstance(offset, int)] == [error]
    assert sorted(offset for offset in told.values() if isinstance(offset, int)) == list(range(N - 1))
    assert [told[bytes(value)] for value in values(log)] == list(range(N - 1))  # type: ignore[arg-type]


def test_an_interrupt_behind_the_write(log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is written, and visible."""
    writer = partition_of(log).writer
    attempt = writer._attempt

    def interrupted(*args: Any) -> None:
        monkeypatch.undo()
        attempt(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_attempt", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.append(b"mine")
    assert values(log) == [b"mine"]
    assert log.append(b"after") == 1


def test_an_error_of_a_handler_while_an_append_is_taken_back(
    log: segstore.PartitionLog, files: CountingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a number, as the disk's have, and comes before the end went back: nothing is fenced."""
    segments = partition_of(log).segments

    def handler(_: object) -> None:
        monkeypatch.undo()
        raise OSError(errno.EIO, "a signal handler's")

    monkeypatch.setattr(segments, "cut_after", handler)
    raising_once(files, KeyboardInterrupt)
    with pytest.raises(OSError, match="a signal handler's"):
        log.append(b"0")
    assert segments.fenced is None
    assert log.append(b"1") == 0
    assert values(log) == [b"1"]


def test_a_fenced_partition_tells_each(log: segstore.PartitionLog) -> None:
    partition_of(log).segments.fence(OSError(errno.EIO, "a sync failed"))
    told = all_appending(log)
    assert [type(error) for error in told.values()] == [StorageError] * N
    assert len({id(error) for error in told.values()}) == N
    assert log.end_offset == 0
    partition_of(log).segments.fenced = None


@pytest.mark.parametrize("refused", [False, True])
def test_c_appends_after_one_of_python(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Also after one that was refused, and after a long one."""
    let_tails_open(monkeypatch, True)
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 1000})
        log = store.partition("t")
        log.append(b"0")
        partition = partition_of(log)
        if refused:
            with pytest.raises(RecordTooLargeError):
                partition.put([single(b"x" * 5000, None, (), 0)])
        else:
            assert log.append_batch([b"1", b"2", b"3"], batch_bytes=1) == range(1, 4)
        assert partition.tail.may_be_open
