"""The application's handlers of `logging` may do anything with the engine's messages, even write them into a
store: the engine neither waits for them, nor fails with them.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from stores import values
from waiting import PATIENCE, told, until

import segstore
from segstore.errors import StorageError
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.threads import Background

log = Logger("segstore")


class Calling(logging.Handler):
    """Calls a function with each message."""

    def __init__(self, call: Callable[[str], object]) -> None:
        super().__init__()
        self.call = call

    def emit(self, record: logging.LogRecord) -> None:
        self.call(record.getMessage())


@contextmanager
def handling(call: Callable[[str], object]) -> Iterator[None]:
    handler = Calling(call)
    logging.getLogger("segstore").addHandler(handler)
    try:
        yield
    finally:
        told()
        logging.getLogger("segstore").removeHandler(handler)


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.create_topic("logs")
        yield store


def test_a_message_is_where_it_was_told(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("%s and %d", "this", 2)
    with Mutex():
        log.warning("%s and %d", "this", 2)
        log.info("of no interest")
    told()
    for record in caplog.records:
        assert (record.name, record.levelno, record.getMessage()) == (
            "segstore",
            logging.WARNING,
            "this and 2",
        )
        assert (record.filename, record.funcName) == (
            Path(__file__).name,
            "test_a_message_is_where_it_was_told",
        )
    assert len(caplog.records) == 2


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that were started; each has ended before its `start` returns, as on a busy
    machine.
    """
    names: list[str] = []
    plain = Background.start

    def start(self: Background) -> None:
        names.append(self.name)
        plain(self)
        self.join(PATIENCE)

    monkeypatch.setattr(Background, "start", start)
    return names


def test_the_messages_of_many_rows_take_one_thread(
    caplog: pytest.LogCaptureFixture, started: list[str]
) -> None:
    """Before: a thread for each message of a record that a standby had cut. On a busy machine 8,000 of them
    took two minutes, in which nothing was fetched.
    """
    with Mutex():
        log.warnings("row %r", range(1000))
    told()
    assert started == ["segstore-log"]
    assert [record.getMessage() for record in caplog.records] == [f"row {n}" for n in range(1000)]
    assert {(record.filename, record.funcName) for record in caplog.records} == {
        (Path(__file__).name, "test_the_messages_of_many_rows_take_one_thread")
    }


def test_many_rows_are_passed_on_in_pieces(caplog: pytest.LogCaptureFixture, started: list[str]) -> None:
    """The records of a whole cut need not be in memory at once."""
    most = 0

    def rows() -> Iterator[int]:
        nonlocal most
        for n in range(2500):
            most = max(most, n + 1 - len(caplog.records))
            yield n

    with Mutex():
        log.warnings("row %r", rows())
    told()
    assert started == ["segstore-log"] * 3
    assert most == 1000
    assert [record.getMessage() for record in caplog.records] == [f"row {n}" for n in range(2500)]


ROWS: dict[str, Callable[[], Iterator[object]]] = {
    "none": lambda: iter(()),
    "one, then an error": lambda: map((1).__truediv__, (2, 0)),
    "an error first": lambda: map((1).__truediv__, (0, 2)),
}
LOGGED = {"none": [], "one, then an error": ["row 0.5"], "an error first": []}


@pytest.mark.parametrize("is_holding", [False, True])
@pytest.mark.parametrize("case", ROWS)
def test_rows_before_an_error_are_logged(
    caplog: pytest.LogCaptureFixture, case: str, is_holding: bool
) -> None:
    fails = pytest.raises(ZeroDivisionError) if "error" in case else nullcontext()
    with Mutex() if is_holding else nullcontext(), fails:
        log.warnings("row %r", ROWS[case]())
    told()
    assert [record.getMessage() for record in caplog.records] == LOGGED[case]


def test_rows_of_messages_that_nobody_wants_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("segstore"), "disabled", True)
    log.warnings("row %r", ROWS["an error first"]())


def test_a_handler_is_not_called_with_a_lock_held() -> None:
    """Before: another thread that had the handler's lock, and waited for the engine's, waited for ever."""
    lock, seen = Mutex(), []
    with handling(lambda message: seen.append((message, lock.owned))):
        with lock:
            log.warning("held")
            log.warning("held %s", "still")
        told()
        log.warning("free")
    assert seen == [("held", False), ("held still", False), ("free", False)]


def test_a_thread_that_logs_and_appends_beside_one_that_appends_and_logs(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one has the handler's lock and needs the partition's, the other has that and needs the handler's.
    Before: both waited for ever.
    """
    logs, both = store.partition("logs"), threading.Barrier(2)
    writer: Any = logs.source.writer  # type: ignore[union-attr]
    plain, first = writer.write, [1]

    def write(*args: Any) -> int:
        if first:
            first.clear()
            both.wait(PATIENCE)
            log.warning("told with the partition's lock held")
        return plain(*args)

    def append(message: str) -> None:
        if message == "the application's":
            both.wait(PATIENCE)
        logs.append(message.encode())

    monkeypatch.setattr(writer, "write", write)
    with handling(append):
        threads = [
            threading.Thread(target=logs.append, args=(b"a record",), daemon=True),
            threading.Thread(
                target=logging.getLogger("segstore.application").warning,
                args=("the application's",),
                daemon=True,
            ),
        ]
        [thread.start() for thread in threads]
        [thread.join(PATIENCE) for thread in threads]
        assert not any(thread.is_alive() for thread in threads)
        told()
        assert sorted(map(bytes, values(logs))) == [
            b"a record",
            b"the application's",
            b"told with the partition's lock held",
        ]


def test_a_handler_that_waits_for_the_thread_that_has_told_it() -> None:
    """Before: both waited for ever. As a handler that flushes the producer whose sender tells something."""
    thread: list[Background] = []
    done: list[bool] = []

    def wait(message: str) -> None:
        thread[0].join(PATIENCE)
        done.append(not thread[0].is_alive())

    with handling(wait):
        thread.append(Background(lambda: log.warning("from a thread of ours"), "one"))
        thread[0].start()
        until(lambda: done)
    assert done == [True]


def test_what_a_handler_raises_is_told_and_changes_nothing(
    store: segstore.Store, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before: opening the store raised it, and a sender's thread ended by it."""

    def fail(message: str) -> None:
        raise LookupError(f"no place for {message!r}")

    path = Path(store.path)
    store.partition("t").append(b"x")
    store.close()
    (path / "t-0" / "leader-epoch-checkpoint").write_text("garbage")
    with handling(fail), segstore.open(path) as again:
        assert values(again.partition("t")) == [b"x"]
        assert len(again.mended) == 1
    assert "LookupError: no place for " in capfd.readouterr().err


def test_a_full_disk_that_is_logged_into_the_store_that_is_full(
    store_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(name: str, args: tuple) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = FailingFiles({"pwrite"}, full, 0, 1 << 30)
    seen = []
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        store.create_topic("logs")

        def append(message: str) -> None:
            try:
                store.partition("logs").append(message.encode())
            finally:
                seen.append(message)  # the disk is full until then

        producer = segstore.Producer(store, linger_ms=0, retry_backoff_ms=1)
        with handling(append):
            files.arm(1, 1 << 30)
            future = producer.send("t", b"x")
            until(lambda: seen)
            with pytest.raises(StorageError):
                store.partition("t").append(b"y")
            files.arm(0)
            assert future.get(timeout=PATIENCE).offset == 0
            producer.close()
            told()
        assert values(store.partition("t")) == [b"x"]
        assert any("appends fail" in each or "tried again" in each for each in seen)
    assert "No space left on device" in capfd.readouterr().err


@pytest.mark.kind("programs")
def test_what_is_told_at_the_end_of_the_interpreter_reaches_the_handlers() -> None:
    code = (
        "import logging\nfrom segstore.logger import Logger\nfrom segstore.mutex import Mutex\n"
        "logging.basicConfig(level=logging.WARNING, format='%(name)s %(message)s')\n"
        "with Mutex():\n    for n in range(100):\n        Logger('segstore').warning('number %d', n)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert run.stderr.splitlines() == [f"segstore number {n}" for n in range(100)]


@pytest.mark.kind("programs")
def test_a_child_does_not_tell_what_its_parent_has_to(store_dir: Path) -> None:
    seen: list[int] = []
    gate = threading.Event()
    reading, writing = os.pipe()

    def tell(message: str) -> None:
        gate.wait(PATIENCE)
        os.write(writing, f"{os.getpid()}\n".encode())
        seen.append(1)

    with handling(tell):
        with Mutex():
            log.warning("the parent's")
            log.warning("the parent's, too")
        pid = os.fork()
        if not pid:
            gate.set()
            with Mutex():
                log.warning("the child's")
            told()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        gate.set()
        until(lambda: len(seen) == 2)
    os.close(writing)
    with os.fdopen(reading) as file:
        assert file.read().split() == [str(pid), str(os.getpid()), str(os.getpid())]


@pytest.mark.parametrize("level", [logging.CRITICAL, logging.INFO, logging.DEBUG])
def test_the_lock_of_logging_may_be_lost(level: int) -> None:
    """An interrupt in a call of `logging`, as asyncio makes one for each loop, left it taken: a producer's
    thread, which had an aborted transaction to tell, waited for it for ever, and so did close().
    """
    logger, ours, handled = logging.getLogger("segstore.lost"), Logger("segstore.lost"), list[str]()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            handled.append(record.getMessage())

    handler = Handler()
    logger.addHandler(handler)
    before = logging.root.manager.disable
    logging.disable(level)
    over = threading.Event()

    def lose() -> None:
        with logging._lock:  # type: ignore[attr-defined]
            taken.set()
            over.wait(PATIENCE)

    taken = threading.Event()
    loser = threading.Thread(target=lose)
    loser.start()
    try:
        assert taken.wait(PATIENCE)
        teller = threading.Thread(target=lambda: ours.warning("a message"), daemon=True)
        teller.start()
        teller.join(PATIENCE)
        assert not teller.is_alive()
    finally:
        over.set()
        loser.join()
        logging.disable(before)
        logger.removeHandler(handler)
    assert handled == ([] if level >= logging.WARNING else ["a message"])
