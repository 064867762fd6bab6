"""Waits and threads that Ctrl-C can't break. Nothing on disk.

Python runs signal handlers in the main thread, between its instructions: behind each call, at the beginning
of a function of Python's and at the end of a loop's turn. `with lock` on a lock of C has no such place
between taking the lock and the block that gives it back (CPython 3.10 to 3.13). `Event`, `Condition`,
`Semaphore`, `Queue`, `Future`, executors, and `start` and `join` of `Thread` are written in Python: an
exception that a handler raises within them may leave their lock taken for ever. What waits here waits in one
call of a `SimpleQueue`, which is C.

When the interpreter ends, it finalizes modules after all other threads have stopped for ever, wherever they
were (`others_are_gone`). What a finalizer calls then waits for none of them, and does itself what it would
have handed over. A lock that such a thread held stays taken: see `segstore.mutex`.

Threads: any.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from segstore.errors import IllegalStateError

T = TypeVar("T")
Lock = AbstractContextManager[object]

_LONGEST_WAIT = 1e9  # seconds; the wait of a `SimpleQueue` counts in nanoseconds
_NONE: Lock = nullcontext()

others_are_gone = sys.is_finalizing
"""Whether the interpreter ends: no other thread runs any more, and none can be started."""


def holding(locks: Sequence[Lock], run: Callable[[], T]) -> T:
    """Call `run` with all these locks held, taken in order. An `ExitStack` could lose one that it has just
    taken. Eight in each frame: thousands are fewer frames than Python allows.
    """
    if not locks:
        return run()
    a, b, c, d, e, f, g, h = (*locks[:8], *[_NONE] * 8)[:8]
    with a, b, c, d, e, f, g, h:
        return holding(locks[8:], run)


class Latch:
    """A gate that is opened once, and stays open. A wait that an exception ends keeps nobody else waiting,
    and an `open` that one ends may be called again. Where the others are gone nobody opens it any more, and
    only a wait of so many seconds waits.
    """

    __slots__ = ("_waiting", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: list[SimpleQueue[None]] = []

    def open(self) -> None:
        """Let all through, now and later."""
        self.is_open = True
        for waiter in list(self._waiting):
            waiter.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it is open; None waits as long as it takes."""
        if self.is_open or (seconds is None and others_are_gone()):
            return self.is_open
        mine: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(mine)
        try:
            if not self.is_open:  # whoever opens it from here on finds this one
                wait = _LONGEST_WAIT if seconds is None else min(max(seconds, 0), _LONGEST_WAIT)
                with contextlib.suppress(Empty):
                    mine.get(timeout=wait)
        finally:
            self._waiting.remove(mine)
        return self.is_open


class Background(threading.Thread):
    """A thread that does not keep the process alive, and runs `run` once.

    Ctrl-C within `start` leaves a thread that runs, or none: `join` then sees to it that none comes late.
    """

    def __init__(self, run: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._do, self._gate, self._ended = run, threading.Lock(), Latch()
        self._begun = self._over = False
        self._told: SimpleQueue[list[BaseException]] = SimpleQueue()

    def start(self) -> None:
        """Return when it runs. IllegalStateError: the system has no more threads, or the interpreter ends,
        which CPython 3.12.0 and 3.12.1 take to begin when the main thread has come to its end.
        """
        if others_are_gone():
            raise self._refused("the interpreter ends")
        # In another thread, where no signal handler runs: `Thread.start` waits for an event.
        try:
            _thread.start_new_thread(self._start, ())
        except RuntimeError as error:
            raise self._refused(error) from None
        if failed := self._told.get():
            # A traceback that has this frame finds an empty list there.
            if isinstance(failed[0], RuntimeError):
                raise self._refused(failed.pop())
            raise failed.pop()

    def _refused(self, reason: object) -> IllegalStateError:
        return IllegalStateError(
            f"the thread {self.name} can't be started: {reason}. Open stores and make producers before the "
            "main thread ends (let it join the others), and where the system has threads left"
        )

    def is_alive(self) -> bool:
        """Whether it runs: not when `join` has seen its end, nor when the interpreter has ended it."""
        return super().is_alive() and not self._ended.is_open and not others_are_gone()

    def _start(self) -> None:
        try:
            super().start()
        except BaseException as error:
            self._told.put([error])

    def run(self) -> None:
        with self._gate:
            self._begun = not self._over
        self._told.put([])
        if not self._begun:
            return
        try:
            self._do()
        finally:
            self._ended.open()

    def join(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds until it has ended, unless this is it. Not begun, it never will be."""
        if others_are_gone():
            return
        with self._gate:
            self._over = not self._begun
            if self._over:
                return
        if threading.get_ident() != self.ident:
            self._ended.wait(timeout)


def apart(run: Callable[[], T], name: str) -> T:
    """Call `run` in a thread of its own, where no signal handler runs, and give what it gives. Where an
    exception ends the wait, it goes on there to its end. Where no thread can be started, it is called here.
    """
    if others_are_gone():
        return run()
    found: list[T] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            found.append(run())
        except BaseException as error:
            failed.append(error)

    thread = Background(call, name)
    try:
        thread.start()
    except IllegalStateError:
        return run()
    thread.join()
    if failed:
        raise failed.pop()
    return found.pop()


class Worker:
    """A thread that does what it is given, one after the other: `do`, then `result`. Used by one thread.

    `end` may be called again and again, and by any: when it returns nothing is done, and nothing will be.
    Where no thread can be started, `do` does the work where it is called.
    """

    def __init__(self, name: str) -> None:
        self._asked: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._done: SimpleQueue[list[BaseException]] = SimpleQueue()
        self._over = self._alone = False
        self._thread = Background(self._run, name)

    def start(self) -> None:
        """Before the first `do`."""
        try:
            self._thread.start()
        except IllegalStateError:
            self._alone = True

    def do(self, work: Callable[[], object]) -> None:
        """Have it done when what came before is."""
        if self._alone or others_are_gone():
            # In the end a queue of CPython 3.13 would give it to the thread that waits there for ever.
            self._do(work)
        else:
            self._asked.put(work)

    def result(self) -> None:
        """Wait for the oldest that was not waited for; raises what failed."""
        if failed := self._done.get():
            raise failed.pop()

    def end(self) -> None:
        """Wait for what is under way; the rest is never done."""
        self._over = True
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._asked.get()) is not None and not self._over:
            self._do(work)
            del work

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # the waiting thread's
            self._done.put([error])
        else:
            self._done.put([])


class Shelter:
    """Calls in a thread of its own, where no signal handler runs, in the order in which they were asked for.

    A call goes on to its end there where an exception ends the wait for it, and what is asked next comes
    behind it. Who asks in another thread than the main one is in no need of it, and calls by itself. The
    thread begins with the first call, and ends when it is told to, or its shelter was dropped.
    """

    def __init__(self, name: str) -> None:
        self._name, self._started, self._ended = name, False, False
        self._served = _Served()

    def call(self, run: Callable[[], T]) -> T:
        """What `run` gives, or raises."""
        if threading.get_ident() != threading.main_thread().ident:
            return run()
        if others_are_gone():
            self._served.finish()
            return run()
        told: SimpleQueue[tuple[list[T], list[BaseException]]] = SimpleQueue()
        self.later(partial(_tell, run, told))
        found, failed = told.get()
        if failed:
            raise failed.pop()
        return found.pop()

    def later(self, work: Callable[[], None]) -> None:
        """Have it done, whatever thread this is; nobody hears of what it raises."""
        if others_are_gone():  # as in `Worker.do`
            self._served.finish()
            work()
            return
        self._served.asked.put(work)
        if not self._started:
            self._start()
        if self._ended:
            self._served.finish()

    def _start(self) -> None:
        try:
            Background(self._served.run, self._name).start()
        except IllegalStateError:
            self._served.finish()
        else:
            self._started = True  # last: where that was interrupted, nobody knows whether it has begun

    def end(self) -> None:
        """End the thread when all that was asked for is done. Later calls are made where they are asked."""
        self._ended = True
        self._served.asked.put(None)

    def close(self) -> None:
        """As `end`, and wait for it."""
        self.end()
        if others_are_gone():
            self._served.finish()
        elif self._served.ident != threading.get_ident():
            with self._served.running:
                """It has ended, and one that comes late finds nothing."""

    def __del__(self) -> None:
        if hasattr(self, "_served"):
            self._served.asked.put(None)


class _Served:
    """What a shelter's thread knows of it. `running` is held by the thread, as long as it runs."""

    def __init__(self) -> None:
        self.asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.running, self.ident = threading.Lock(), -1

    def run(self) -> None:
        if self.running.acquire(blocking=False):  # else there is one that runs
            self.ident = threading.get_ident()
            try:
                while (work := self.asked.get()) is not None:
                    work()
                    del work
                self.finish()
            finally:
                self.running.release()

    def finish(self) -> None:
        """Do what is left: what was asked for as it ended finds either this thread, or the other."""
        with contextlib.suppress(Empty):
            while True:
                work = self.asked.get_nowait()
                if work is not None:
                    work()


def _tell(run: Callable[[], T], told: SimpleQueue[tuple[list[T], list[BaseException]]]) -> None:
    try:
        told.put(([run()], []))
    except BaseException as error:  # the waiting thread's
        told.put(([], [error]))
