"""Waits and threads that stay correct whenever Ctrl-C comes. It touches no files.

Python runs signal handlers in the main thread, between bytecode instructions: after each call, at the
beginning of a Python function and at the end of each loop iteration. `with lock`, on a lock written in C,
runs no handler between the acquisition of the lock and the block that releases it (CPython 3.10 to 3.13).
`Event`, `Condition`, `Semaphore`, `Queue`, `Future`, executors, and `start` and `join` of `Thread` are
written in Python, so an exception that a handler raises within them may leave their lock taken for ever. The
waits of this module are single calls of a lock or of a `SimpleQueue`, which are written in C.

`SimpleQueue.get(timeout=...)` may wait for ever (CPython 3.10 to 3.12): if `get` finds the queue's inner lock
free, or a signal comes, it computes the remaining time again, and takes a negative time for "for ever". So a
thread that loses the processor at the wrong moment never returns. The waits of `take` and `Latch` do return.

The interpreter's end first stops all other threads for ever, at any point, and then finalizes modules
(`others_are_gone`). A finalizer's call then waits for no other thread, and does the work itself. A lock that
a stopped thread held stays taken (`segstore.mutex`).

Threads: any.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from segstore.errors import IllegalStateError

T = TypeVar("T")
Lock = AbstractContextManager[object]

_LONGEST_WAIT = 1e9  # seconds; the wait of a `SimpleQueue` counts in nanoseconds
_NONE: Lock = nullcontext()

others_are_gone = sys.is_finalizing
"""Returns whether the interpreter is exiting; then all other threads are stopped, and none can be started."""


def holding(locks: Sequence[Lock], run: Callable[[], T]) -> T:
    """Call `run` with all these locks held, taken in order."""
    # No ExitStack is used, because an interrupt could make it lose a lock that it has just taken. A frame
    # takes eight locks, so that thousands of locks stay within Python's limit of frames.
    if not locks:
        return run()
    if len(locks) == 1:  # the usual case
        with locks[0]:
            return run()
    a, b, c, d, e, f, g, h = (*locks[:8], *[_NONE] * 8)[:8]
    with a, b, c, d, e, f, g, h:
        return holding(locks[8:], run)


def take(queue: SimpleQueue[T], seconds: float) -> T:
    """Return the next item of a queue; wait up to `seconds` for one. Only one thread may take from the queue.
    Raises queue.Empty.
    """
    # `get_nowait` takes the queue's inner lock first. A wait that found that lock free might never end (see
    # the docstring of the module).
    try:
        return queue.get_nowait()
    except Empty:
        if seconds <= 0:
            raise
        return queue.get(timeout=min(seconds, _LONGEST_WAIT))


class LiveSet(Generic[T]):
    """The added objects that still exist. One thread may look at all of them while other threads and signal
    handlers add more, because the set is copied in one step of C. Iteration over a `WeakSet` fails if an
    object is added.
    """

    __slots__ = ("refs",)

    def __init__(self) -> None:
        self.refs: set[weakref.ref[T]] = set()

    def add(self, member: T) -> None:
        self.refs.add(weakref.ref(member, self.refs.discard))

    def all(self) -> list[T]:
        """Return the objects that exist now."""
        return [member for ref in self.refs.copy() if (member := ref()) is not None]


class Latch:
    """A gate that is opened once, and stays open. An exception that interrupts one wait does not affect other
    waits, and an interrupted `open` may be called again. Once `others_are_gone`, no thread is left to open
    the latch, so a wait without a timeout returns at once.
    """

    __slots__ = ("_waiting", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: list[_thread.LockType] = []

    def open(self) -> None:
        """Open the latch: all waits return, and later waits return at once."""
        self.is_open = True
        for waiter in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # another `open` has released this lock
                waiter.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to `seconds`, or without a limit, until the latch is open; return whether it is."""
        if self.is_open or (seconds is None and others_are_gone()):
            return self.is_open
        mine = _thread.allocate_lock()
        mine.acquire()  # so that the `acquire` below waits until `open`
        self._waiting.append(mine)
        try:
            if not self.is_open:  # an `open` after this check finds the lock in the list
                wait = _LONGEST_WAIT if seconds is None else min(max(seconds, 0), _LONGEST_WAIT)
                mine.acquire(timeout=wait)
        finally:
            self._waiting.remove(mine)
        return self.is_open


class Background(threading.Thread):
    """A daemon thread that calls `run` once.

    After an interrupted `start` the thread may run, not run, or be about to begin; `join` then waits for the
    thread, or prevents the call of `run`.
    """

    def __init__(self, run: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._do, self._gate, self._ended = run, threading.Lock(), Latch()
        self._begun = self._over = False
        self._start_result: SimpleQueue[list[BaseException]] = SimpleQueue()

    def start(self) -> None:
        """Start the thread, and return once it runs. Raises IllegalStateError if the system has no more
        threads, or the interpreter is ending; CPython 3.12.0 and 3.12.1 start no thread after the end of the
        main thread.
        """
        if others_are_gone():
            raise self._refused("the interpreter ends")
        # `Thread.start` waits for an event, so it is called in another thread, where no signal handler runs.
        try:
            _thread.start_new_thread(self._start, ())
        except RuntimeError as error:
            raise self._refused(error) from None
        if failed := self._start_result.get():
            # The error is taken out of the list: its traceback refers to this frame, and a frame that refers
            # to the error would make a reference cycle.
            if isinstance(failed[0], RuntimeError):
                raise self._refused(failed.pop())
            raise failed.pop()

    def _refused(self, reason: object) -> IllegalStateError:
        return IllegalStateError(
            f"the thread {self.name} can't be started: {reason}. Open stores and make producers before the "
            "main thread ends (let it join the others), and where the system has threads left"
        )

    def is_alive(self) -> bool:
        """Return whether the thread runs: False once `join` has seen it stop, or the interpreter has stopped
        it.
        """
        return super().is_alive() and not self._ended.is_open and not others_are_gone()

    def _start(self) -> None:
        try:
            super().start()
        except BaseException as error:
            self._start_result.put([error])

    def run(self) -> None:
        with self._gate:
            self._begun = not self._over
        self._start_result.put([])
        if not self._begun:
            return
        try:
            self._do()
        finally:
            self._ended.open()

    def join(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds until the thread has stopped; return at once in the thread itself. A
        thread that has not begun never calls `run` afterwards.
        """
        if others_are_gone():
            return
        with self._gate:
            self._over = not self._begun
            if self._over:
                return
        if threading.get_ident() != self.ident:
            self._ended.wait(timeout)


def apart(run: Callable[[], T], name: str) -> T:
    """Call `run` in a thread of its own, in which no signal handler runs; return its result, or raise its
    exception. If an exception interrupts the wait, `run` still completes. If no thread can be started, the
    calling thread calls `run`.
    """
    if others_are_gone():
        return run()
    result: list[T] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            result.append(run())
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
    return result.pop()


class Worker:
    """A thread that does queued work in order. One thread calls `do`, and `result` once for each `do`.

    `end` may be called repeatedly and by any thread: once it has returned, no work is under way, and none
    will be done. If no thread can be started, `do` does the work itself.
    """

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._done: SimpleQueue[list[BaseException]] = SimpleQueue()
        self._over = self._alone = False
        self._thread = Background(self._run, name)

    def start(self) -> None:
        """Start the thread, before the first `do`."""
        try:
            self._thread.start()
        except IllegalStateError:
            self._alone = True

    def do(self, work: Callable[[], object]) -> None:
        """Queue work, which is done after all work queued before."""
        if self._alone or others_are_gone():
            # When the interpreter exits, CPython 3.13's queue would hand the work to the stopped thread that
            # waits for work.
            self._do(work)
        else:
            self._work.put(work)

    def result(self) -> None:
        """Wait for the end of the next work, in the order of `do`, and raise its exception if it failed.
        Raises IllegalStateError if the interpreter stopped the thread before that work was done.
        """
        if others_are_gone() and self._done.empty():
            raise IllegalStateError(f"the interpreter ends: {self._thread.name} has stopped within its work")
        if failed := self._done.get():
            raise failed.pop()

    def end(self) -> None:
        """Wait for the work that is under way; queued work is never done."""
        self.leave()
        self._thread.join()

    def leave(self) -> None:
        """Stop the thread without waiting for it, so that a finalizer may call this."""
        self._over = True
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None and not self._over:
            self._do(work)
            del work

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # raised in the waiting thread
            self._done.put([error])
        else:
            self._done.put([])


class Shelter:
    """A thread of its own for calls, in which no signal handler runs. Calls are made in the order of
    requests.

    If an exception interrupts the wait for a call, that call still completes, and the next call is made after
    it. Only the main thread needs a shelter, since no other thread runs signal handlers; in other threads
    `call` makes the call directly. The thread starts with the first call, and stops after `end`, or once the
    shelter is freed.
    """

    def __init__(self, name: str) -> None:
        self._name, self._started, self._ended = name, False, False
        self._served = _Served()

    def call(self, run: Callable[[], T]) -> T:
        """Call `run` in the shelter's thread; return its result, or raise its exception."""
        if threading.get_ident() != threading.main_thread().ident:
            return run()
        if others_are_gone():
            self._served.finish()
            return run()
        return answer(run, self.later)

    def later(self, work: Callable[[], None]) -> None:
        """Queue work for the shelter's thread, from any thread, and do not wait. An exception of the work is
        not reported.
        """
        if others_are_gone():  # as in `Worker.do`
            self._served.finish()
            work()
            return
        self._served.queue.put(work)
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
            self._started = True  # set last, so that after an interrupt the next call starts the thread

    def end(self) -> None:
        """Stop the thread once all queued work is done. Later calls run in the calling thread."""
        self._ended = True
        self._served.queue.put(None)

    def close(self) -> None:
        """Stop the thread once all queued work is done, and wait until it has stopped."""
        self.end()
        if others_are_gone():
            self._served.finish()
        elif self._served.ident != threading.get_ident():
            with self._served.running:
                """The thread has ended; a thread that begins late finds no work."""

    def __del__(self) -> None:
        if hasattr(self, "_served"):
            self._served.queue.put(None)


class _Served:
    """The state that a shelter shares with its thread. The thread must not refer to the shelter, which would
    then never be freed. The thread holds `running` while it runs.
    """

    def __init__(self) -> None:
        self.queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.running, self.ident = threading.Lock(), -1

    def run(self) -> None:
        if self.running.acquire(blocking=False):  # False if another thread runs this already
            self.ident = threading.get_ident()
            try:
                while (work := self.queue.get()) is not None:
                    work()
                    del work
                self.finish()
            finally:
                self.running.release()

    def finish(self) -> None:
        """Do the queued work. Work that is queued while the shelter's thread stops is done by that thread, or
        by the thread that queued it.
        """
        with contextlib.suppress(Empty):
            while True:
                work = self.queue.get_nowait()
                if work is not None:
                    work()


def answer(run: Callable[[], T], later: Callable[[Callable[[], None]], object]) -> T:
    """Return the result of `run`, or raise its exception. `later` must make another thread call the function
    that it gets. If an exception interrupts the wait, that thread calls `run` all the same.
    """
    answers: SimpleQueue[tuple[list[T], list[BaseException]]] = SimpleQueue()
    later(partial(_answer, run, answers))
    result, failed = answers.get()
    if failed:
        raise failed.pop()
    return result.pop()


def _answer(run: Callable[[], T], answers: SimpleQueue[tuple[list[T], list[BaseException]]]) -> None:
    try:
        answers.put(([run()], []))
    except BaseException as error:  # raised in the waiting thread
        answers.put(([], [error]))
