"""Waits and threads that stay correct even if Ctrl-C comes at any moment. This module touches no files.

Python runs signal handlers in the main thread, between bytecode instructions: after each call, at the
beginning of a Python function and at the end of each loop iteration. In `with lock`, if the lock is written
in C, no handler runs between the acquisition of the lock and the block that releases it (CPython
3.10 to 3.13). `Event`, `Condition`, `Semaphore`, `Queue`, `Future`, executors, `Thread.start` and
`Thread.join` are written in Python: if a handler raises an exception in one of them, its lock may stay taken
for ever. The waits of this module are single calls of a lock or of a `SimpleQueue`, which are written in C.

`SimpleQueue.get(timeout=...)` may wait for ever in CPython 3.10 to 3.12. If `get` finds the queue's inner
lock free, or is interrupted by a signal, it computes the remaining time again. If that time is negative,
because other threads had the processor, `get` waits without a limit. The waits of `take` and `Latch` do not
have this problem.

The interpreter's end first stops all other threads for ever, each at any point of its code; then
`others_are_gone()` is True, and modules are finalized. A call by a finalizer then waits for no other thread,
and does the work of such a thread itself. A lock that a stopped thread had stays taken (`segstore.mutex`).

Threads: any.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from segstore.errors import IllegalStateError

T = TypeVar("T")
Lock = AbstractContextManager[object]

# This is in seconds. A `SimpleQueue` counts its wait in nanoseconds, and can't count a much longer wait.
_LONGEST_WAIT = 1e9
_NONE: Lock = nullcontext()

FIRST_SLEEP, SLEEP_PER_AGE = 1.0, 30

others_are_gone = sys.is_finalizing
"""Returns whether the interpreter is ending. If it is, all other threads are stopped, and none can start."""


def holding(locks: Sequence[Lock], run: Callable[[], T]) -> T:
    """Take all these locks in order, call `run`, release the locks, and return the result of `run`."""
    # ExitStack is not used, because after an interrupt it might not release the lock that it took last. Each
    # call takes eight locks, so that thousands of locks do not exceed Python's limit of recursion.
    if not locks:
        return run()
    if len(locks) == 1:  # This is the usual case.
        with locks[0]:
            return run()
    a, b, c, d, e, f, g, h = (*locks[:8], *[_NONE] * 8)[:8]
    with a, b, c, d, e, f, g, h:
        return holding(locks[8:], run)


def longest_sleep(age: float) -> float:
    """Return the longest sleep in C, in seconds, of a wait that began `age` seconds ago: a second at first,
    and then 30 times the age of the wait.
    """
    # Python checks for signals before the call of C, and after it. A signal that comes after the first check
    # and before the sleep does not end the sleep, and its handler runs only after the sleep.
    return max(FIRST_SLEEP, age * SLEEP_PER_AGE)


def sleeps(seconds: float) -> Iterator[float]:
    """Yield the lengths, in seconds, of the sleeps in C of a wait that begins now and lasts `seconds`. No
    sleep is longer than `longest_sleep`. After each sleep the caller takes the next length.
    """
    began = now = time.monotonic()
    while (left := began + seconds - now) > 0:
        yield min(left, longest_sleep(now - began))
        now = time.monotonic()


def take(queue: SimpleQueue[T], seconds: float) -> T:
    """Remove the next item of a queue, and return it; wait up to `seconds` for an item. Only one thread may
    call this for a queue. Raises queue.Empty.
    """
    # `get_nowait` is called because it takes the queue's inner lock. If `get` found this lock free, it might
    # wait for ever (see the docstring of the module).
    try:
        return queue.get_nowait()
    except Empty:
        if seconds <= 0:
            raise
        return queue.get(timeout=min(seconds, _LONGEST_WAIT))


class LiveSet(Generic[T]):
    """A set of weak references to objects. One thread may call `all` while other threads and signal handlers
    add objects, because `all` copies the set by one call in C. (An iteration over a `WeakSet` fails if an
    object is added during it.)
    """

    __slots__ = ("refs",)

    def __init__(self) -> None:
        self.refs: set[weakref.ref[T]] = set()

    def add(self, member: T) -> None:
        self.refs.add(weakref.ref(member, self.refs.discard))

    def all(self) -> list[T]:
        """Return the objects of the set that still exist."""
        return [member for ref in self.refs.copy() if (member := ref()) is not None]


class Latch:
    """An event that is set once, by `open`, and for which threads wait. If a signal handler's exception ends
    one wait, other waits go on; if it ends a call of `open`, `open` may be called again. If
    `others_are_gone()`, no other thread can open the latch, so a wait without a time limit returns at once.
    """

    __slots__ = ("_waiting", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: list[_thread.LockType] = []

    def open(self) -> None:
        """Open the latch: all waits return, and later waits return at once."""
        self.is_open = True
        for waiter in list(self._waiting):
            # RuntimeError means that another call of `open` has released this lock.
            with contextlib.suppress(RuntimeError):
                waiter.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the latch is open, or `seconds` have passed; None means no limit. Return whether the
        latch is open.
        """
        if self.is_open or (seconds is None and others_are_gone()):
            return self.is_open
        mine = _thread.allocate_lock()
        mine.acquire()  # The lock is taken now, so that the `acquire` below waits until `open` releases it.
        self._waiting.append(mine)
        try:
            # A call of `open` after this check finds the lock in the list, and releases it.
            if not self.is_open:
                wait = _LONGEST_WAIT if seconds is None else min(max(seconds, 0), _LONGEST_WAIT)
                mine.acquire(timeout=wait)
        finally:
            self._waiting.remove(mine)
        return self.is_open


class Background(threading.Thread):
    """A daemon thread that calls `run` once.

    If a signal handler's exception ends `start`, the thread may be running, may not exist, or may begin
    later. `join` then either waits for the thread, or ensures that it will not call `run`.
    """

    def __init__(self, run: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._do, self._gate, self._ended = run, threading.Lock(), Latch()
        self._begun = self._over = False
        self._start_result: SimpleQueue[list[BaseException]] = SimpleQueue()

    def start(self) -> None:
        """Start the thread, and return when it runs. Raises IllegalStateError if the system allows no more
        threads, or if the interpreter is ending. (CPython 3.12.0 and 3.12.1 start no thread after the end of
        the main thread.)
        """
        if others_are_gone():
            raise self._refused("the interpreter ends")
        # `Thread.start` waits for an `Event`, which an interrupt may leave locked. So a thread in which no
        # signal handler runs calls it.
        try:
            _thread.start_new_thread(self._start, ())
        except RuntimeError as error:
            raise self._refused(error) from None
        if failed := self._start_result.get():
            # `pop` removes the error from the list. If it stayed there, there would be a reference cycle: the
            # error's traceback refers to this frame, and the frame refers to the list.
            if isinstance(failed[0], RuntimeError):
                raise self._refused(failed.pop())
            raise failed.pop()

    def _refused(self, reason: object) -> IllegalStateError:
        return IllegalStateError(
            f"the thread {self.name} can't be started: {reason}. Open stores and make producers before the "
            "main thread ends (let it join the others), and where the system has threads left"
        )

    def is_alive(self) -> bool:
        """Return whether the thread is running. Return False if `run` has returned, or if the interpreter's
        end has stopped the thread.
        """
        return super().is_alive() and not self._ended.is_open and not others_are_gone()

    @property
    def has_begun(self) -> bool:
        """Return whether the thread has called `run`, or is about to."""
        return self._begun

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

    def settle(self) -> bool:
        """Return whether the thread has begun. If it has not, because `start` was interrupted or has failed,
        it will not call `run` afterwards.
        """
        self.join(0)
        return self._begun

    def join(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds until the thread has stopped. If the thread has not begun, it will not
        call `run` afterwards. If the thread itself calls this, return at once.
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
    """Call `run` in a new thread, in which no signal handler runs. Return the result of `run`, or raise its
    exception. If a signal handler's exception ends the wait for the thread, `run` still completes. If no
    thread can be started, the calling thread calls `run`.
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
    """A thread that calls queued functions in order. One thread queues them by `do`, and calls `result` once
    for each of them.

    `end` may be called repeatedly, and by any thread. After it has returned, no function is running, and none
    will be called. If no thread can be started, `do` itself calls the function.
    """

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._done: SimpleQueue[list[BaseException]] = SimpleQueue()
        self._over = self._alone = False
        self._thread = Background(self._run, name)

    def start(self) -> None:
        """Start the thread. Must be called before `do`."""
        try:
            self._thread.start()
        except IllegalStateError:
            self._alone = True

    def do(self, work: Callable[[], object]) -> None:
        """Queue the function `work`. The thread calls it after the functions that were queued before."""
        if self._alone or others_are_gone():
            # When the interpreter ends, CPython 3.13's queue would pass the function to the stopped thread,
            # which is still waiting in `get`.
            self._do(work)
        else:
            self._work.put(work)

    def result(self) -> None:
        """Wait until the next queued function, in the order of the calls of `do`, has returned; if it has
        raised an exception, raise this exception. Raises IllegalStateError if the interpreter's end has
        stopped the thread before that.
        """
        if others_are_gone() and self._done.empty():
            raise IllegalStateError(f"the interpreter ends: {self._thread.name} has stopped within its work")
        if failed := self._done.get():
            raise failed.pop()

    def end(self) -> None:
        """Stop the thread, and wait for the function that it is calling. Other queued functions are never
        called.
        """
        self.leave()
        self._thread.join()

    def leave(self) -> None:
        """Stop the thread, but do not wait for it. A finalizer may call this."""
        self._over = True
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None and not self._over:
            self._do(work)
            del work

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # `result` raises this error in the thread that waits.
            self._done.put([error])
        else:
            self._done.put([])


class Shelter:
    """A thread that calls functions for the main thread, in the order of the requests. No signal handler runs
    in this thread.

    If a signal handler's exception ends the wait for a function, this function still completes, and the next
    function is called after it. In other threads than the main thread no signal handler runs, so there `call`
    calls the function directly. The thread starts at the first request, and stops after `end`, or when the
    shelter is garbage-collected.
    """

    def __init__(self, name: str) -> None:
        self._name, self._started, self._ended = name, False, False
        self._served = _Served()

    def call(self, run: Callable[[], T]) -> T:
        """Call `run` in the shelter's thread. Return its result, or raise its exception."""
        if threading.get_ident() != threading.main_thread().ident:
            return run()
        if others_are_gone():
            self._served.finish()
            return run()
        return answer(run, self.later)

    def later(self, work: Callable[[], None]) -> None:
        """Queue the function `work` for the shelter's thread, and do not wait for it. Any thread may call
        this. If `work` raises an exception, this is not reported.
        """
        if others_are_gone():  # The interpreter's end has stopped the shelter's thread.
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
            # This is set after `start`: if an interrupt ends `start`, the next call starts the thread.
            self._started = True

    def end(self) -> None:
        """Stop the thread after all queued functions. Functions that are passed later are called by the
        calling thread itself.
        """
        self._ended = True
        self._served.queue.put(None)

    def close(self) -> None:
        """Stop the thread after all queued functions, and wait until it has stopped."""
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
    """The state that a shelter shares with its thread. The thread refers to this object, not to the shelter,
    so that the shelter can be garbage-collected. The thread has the lock `running` while it runs.
    """

    def __init__(self) -> None:
        self.queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.running, self.ident = threading.Lock(), -1

    def run(self) -> None:
        # `acquire` returns False if another thread already runs this method.
        if self.running.acquire(blocking=False):
            self.ident = threading.get_ident()
            try:
                while (work := self.queue.get()) is not None:
                    work()
                    del work
                self.finish()
            finally:
                self.running.release()

    def finish(self) -> None:
        """Call all queued functions. If a function is queued while the shelter's thread stops, that thread or
        the thread that has queued the function calls it.
        """
        with contextlib.suppress(Empty):
            while True:
                work = self.queue.get_nowait()
                if work is not None:
                    work()


def answer(run: Callable[[], T], later: Callable[[Callable[[], None]], object]) -> T:
    """Call `run` in another thread, and return its result, or raise its exception. `later` gets a function
    without arguments, and must make the other thread call that function. If a signal handler's exception ends
    the wait, the other thread still calls `run`.
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
    except BaseException as error:  # `answer` raises this error in the thread that waits.
        answers.put(([], [error]))
