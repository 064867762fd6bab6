"""Waits and threads that work whenever Ctrl-C comes. It touches no files.

Python runs signal handlers in the main thread, between bytecode instructions: after each call, at the
beginning of a Python function and at the end of each turn of a loop. `with lock`, on a lock written in C, has
no such place between the acquisition of the lock and the block that releases it (CPython 3.10 to 3.13).
`Event`, `Condition`, `Semaphore`, `Queue`, `Future`, executors, and `start` and `join` of `Thread` are
written in Python: an exception that a handler raises within them may leave their lock taken for ever. The
waits of this module are single calls of a lock or of a `SimpleQueue`, which are written in C.

`SimpleQueue.get(timeout=...)` may wait for ever (CPython 3.10 to 3.12): where it finds the queue's inner lock
free, or a signal comes, it counts anew what is left of the time, and less than nothing stands for ever. So a
thread that has to give the processor up at a bad moment never returns. Waits that end are `take` and `Latch`.

When the interpreter ends, it first stops all other threads for ever, wherever they are, and then finalizes
modules (`others_are_gone`). A call that a finalizer makes then waits for no other thread, and does itself
what it would have handed over. A lock that a stopped thread held stays taken: see `segstore.mutex`.

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
"""Returns whether the interpreter is ending: then no other thread runs any more, and none can be started."""


def holding(locks: Sequence[Lock], run: Callable[[], T]) -> T:
    """Call `run` with all these locks held, which are taken in order. An interrupt could make an `ExitStack`
    lose a lock that it has just taken. Each frame takes eight locks, so that thousands of locks need fewer
    frames than Python allows.
    """
    if not locks:
        return run()
    if len(locks) == 1:  # mostly
        with locks[0]:
            return run()
    a, b, c, d, e, f, g, h = (*locks[:8], *[_NONE] * 8)[:8]
    with a, b, c, d, e, f, g, h:
        return holding(locks[8:], run)


def take(queue: SimpleQueue[T], seconds: float) -> T:
    """Return the next item of a queue; wait up to `seconds` for one. Raises queue.Empty.

    The look without a wait takes the queue's inner lock, so that the wait does not find it free; see the
    module. One thread takes from the queue.
    """
    try:
        return queue.get_nowait()
    except Empty:
        if seconds <= 0:
            raise
        return queue.get(timeout=min(seconds, _LONGEST_WAIT))


class LiveSet(Generic[T]):
    """The objects that were added and still live, for code that looks at all of them while other threads and
    signal handlers add more: the set is copied in one step of C, where an iteration over a `WeakSet` fails.
    """

    __slots__ = ("refs",)

    def __init__(self) -> None:
        self.refs: set[weakref.ref[T]] = set()

    def add(self, member: T) -> None:
        self.refs.add(weakref.ref(member, self.refs.discard))

    def all(self) -> list[T]:
        """Return those that live now."""
        return [member for ref in self.refs.copy() if (member := ref()) is not None]


class Latch:
    """A gate that is opened once, and stays open. A wait that an exception ends does not affect other waits,
    and an `open` that an exception ends may be called again. Once `others_are_gone`, no thread is left to
    open it: then a wait without a timeout returns at once.
    """

    __slots__ = ("_waiting", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: list[_thread.LockType] = []

    def open(self) -> None:
        """Open the latch: all waits end, and later ones return at once."""
        self.is_open = True
        for waiter in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # another `open` has ended this wait
                waiter.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to `seconds`, or without a limit, until the latch is open; return whether it is."""
        if self.is_open or (seconds is None and others_are_gone()):
            return self.is_open
        mine = _thread.allocate_lock()
        mine.acquire()  # a second `acquire` waits for `open`
        self._waiting.append(mine)
        try:
            if not self.is_open:  # an `open` from here on finds this wait
                wait = _LONGEST_WAIT if seconds is None else min(max(seconds, 0), _LONGEST_WAIT)
                mine.acquire(timeout=wait)
        finally:
            self._waiting.remove(mine)
        return self.is_open


class Background(threading.Thread):
    """A daemon thread that calls `run` once.

    After an interrupt of `start` the thread may run, not run, or be about to begin; `join` waits for it, or
    makes sure that it never calls `run`.
    """

    def __init__(self, run: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._do, self._gate, self._ended = run, threading.Lock(), Latch()
        self._begun = self._over = False
        self._told: SimpleQueue[list[BaseException]] = SimpleQueue()

    def start(self) -> None:
        """Start the thread, and return once it runs. Raises IllegalStateError where the system has no more
        threads, or the interpreter is ending; CPython 3.12.0 and 3.12.1 start no thread from the end of the
        main thread on.
        """
        if others_are_gone():
            raise self._refused("the interpreter ends")
        # `Thread.start` waits for an event, so it is called in another thread, where no signal handler runs.
        try:
            _thread.start_new_thread(self._start, ())
        except RuntimeError as error:
            raise self._refused(error) from None
        if failed := self._told.get():
            # The error is taken out of the list, so that this frame, to which the traceback refers, does not
            # refer to it.
            if isinstance(failed[0], RuntimeError):
                raise self._refused(failed.pop())
            raise failed.pop()

    def _refused(self, reason: object) -> IllegalStateError:
        return IllegalStateError(
            f"the thread {self.name} can't be started: {reason}. Open stores and make producers before the "
            "main thread ends (let it join the others), and where the system has threads left"
        )

    def is_alive(self) -> bool:
        """Return whether the thread runs. It does not after `join` has seen its end, nor once the interpreter
        has stopped it.
        """
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
        """Wait up to `timeout` seconds until the thread has ended, unless the thread itself calls this. A
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
    """Call `run` in a thread of its own, where no signal handler runs; return its result, or raise its
    exception. Where an exception ends the wait, `run` goes on in that thread to its end. Where no thread can
    be started, the calling thread calls it.
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
    """A thread that does the work that it is given, in order. One thread calls `do`, and `result` once for
    each `do`.

    `end` may be called repeatedly and by any thread: once it has returned, no work is under way, and none
    will be done. Where no thread can be started, `do` does the work itself.
    """

    def __init__(self, name: str) -> None:
        self._asked: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._done: SimpleQueue[list[BaseException]] = SimpleQueue()
        self._over = self._alone = False
        self._thread = Background(self._run, name)

    def start(self) -> None:
        """Start the thread; this is called before the first `do`."""
        try:
            self._thread.start()
        except IllegalStateError:
            self._alone = True

    def do(self, work: Callable[[], object]) -> None:
        """Queue work, which is done after all work queued before it."""
        if self._alone or others_are_gone():
            # When the interpreter ends, CPython 3.13's queue would hand the work to the stopped thread that
            # waits for it.
            self._do(work)
        else:
            self._asked.put(work)

    def result(self) -> None:
        """Wait for the oldest work that was not waited for, and raise its exception, if it failed. Raises
        IllegalStateError where the interpreter has stopped the thread before it had done that work.
        """
        if others_are_gone() and self._done.empty():
            raise IllegalStateError(f"the interpreter ends: {self._thread.name} has stopped within its work")
        if failed := self._done.get():
            raise failed.pop()

    def end(self) -> None:
        """Wait for the work that is under way; the rest is never done."""
        self.leave()
        self._thread.join()

    def leave(self) -> None:
        """Do what `end` does, but wait for nothing: a finalizer may call this."""
        self._over = True
        self._asked.put(None)

    def _run(self) -> None:
        while (work := self._asked.get()) is not None and not self._over:
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
    """Makes calls in a thread of its own, where no signal handler runs, in the order in which they are
    requested.

    Where an exception ends the wait for a call, the call goes on to its end, and the next one comes behind
    it. Only the main thread needs this, since signal handlers run in no other: in other threads `call` makes
    the call directly. The thread begins with the first call, and ends at `end`, or when the shelter is freed.
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
            self._started = True  # last: after an interrupt before this line, it is started again

    def end(self) -> None:
        """End the thread once all queued work is done. Later calls are made in the thread that requests
        them.
        """
        self._ended = True
        self._served.asked.put(None)

    def close(self) -> None:
        """End the thread, as `end` does, and wait until it has ended."""
        self.end()
        if others_are_gone():
            self._served.finish()
        elif self._served.ident != threading.get_ident():
            with self._served.running:
                """The thread has ended; one that begins late finds no work."""

    def __del__(self) -> None:
        if hasattr(self, "_served"):
            self._served.asked.put(None)


class _Served:
    """What a shelter shares with its thread, which must not refer to the shelter itself. The thread holds
    `running` as long as it runs.
    """

    def __init__(self) -> None:
        self.asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.running, self.ident = threading.Lock(), -1

    def run(self) -> None:
        if self.running.acquire(blocking=False):  # else another thread runs already
            self.ident = threading.get_ident()
            try:
                while (work := self.asked.get()) is not None:
                    work()
                    del work
                self.finish()
            finally:
                self.running.release()

    def finish(self) -> None:
        """Do the work that is left in the queue: work that is queued while the thread ends is done by this
        thread or by the other one.
        """
        with contextlib.suppress(Empty):
            while True:
                work = self.asked.get_nowait()
                if work is not None:
                    work()


def answer(run: Callable[[], T], later: Callable[[Callable[[], None]], object]) -> T:
    """Return the result of `run`, or raise its exception; `later` has another thread call it. Where an
    exception ends the wait, that thread calls it all the same.
    """
    told: SimpleQueue[tuple[list[T], list[BaseException]]] = SimpleQueue()
    later(partial(_tell, run, told))
    found, failed = told.get()
    if failed:
        raise failed.pop()
    return found.pop()


def _tell(run: Callable[[], T], told: SimpleQueue[tuple[list[T], list[BaseException]]]) -> None:
    try:
        told.put(([run()], []))
    except BaseException as error:  # raised in the waiting thread
        told.put(([], [error]))
