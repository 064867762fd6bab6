"""Promise: a tail that C appends to is taken back whole by a close, a deletion, a fork, and the pool that
closes files.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults import CountingFiles
from native_tails import begun, tail_of, values
from native_tails import log as log

import segstore
from segstore import StorageError
from segstore._native import ffi, lib
from segstore.files import Handle
from segstore.files.native_write import NATIVE
from segstore.storage.log.publisher import Publisher
from segstore.storage.log.visibility import Visible
from segstore.storage.segment import native_tail
from segstore.storage.segment.native_tail import NativeTail

HERE = ffi.new("uint8_t[]", b"\1")


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
