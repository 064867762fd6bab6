"""Locks that know their owner. If a call interrupts an earlier call of the same thread, and needs a lock that
the earlier call has, the new call is refused with an error that names both calls.

"Handler" here means a signal handler, a finalizer, or a callback of a weak reference or of the garbage
collector. A handler interrupts its thread at any point. Suppose that it interrupts a call of this package
that has a lock, and itself calls this package. If the lock were a `threading.Lock`, the thread would wait for
itself for ever. A `Mutex` raises ReentrantCallError instead, before anything is changed.

A handler's call could also wait for another thread that waits for a lock of the interrupted call. So if the
interrupted call has a lock, the handler's call waits for a `Mutex` at most `PATIENCE` seconds, and never
waits for a thread of this package (`check_apart`).

If the interpreter's end stops a thread that has a lock, the lock stays taken, and the guarded state may be
half changed. Calls that need this lock then raise IllegalStateError.

Threads: any. Locks are only taken by `with`: then no interrupt leaves a lock taken, except in CPython 3.10,
where such locks are released later (`LEAVES_OPEN`). No files are touched.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from inspect import CO_GENERATOR
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from segstore.errors import IllegalStateError, ReentrantCallError
from segstore.threads import LiveSet, others_are_gone

if TYPE_CHECKING:
    OwnedLock: Any = object
else:
    # An RLock knows its owner. It is taken by a single call in C, and released by another single call in C.
    OwnedLock = type(threading.RLock())

PATIENCE = 2.0
"""The longest wait, in seconds, of a handler's call for a `Mutex`, and of any call for a `BoundedLock`. The
owner of a lock has it for a shorter time, unless it waits for a disk that does not answer.
"""

LEAVES_OPEN = sys.version_info < (3, 11)
"""True if interrupts may leave a lock taken at the end of a `with` block. CPython 3.10 checks for signals
before the code that releases the lock. If one interrupt ends the block by an exception, and a second
interrupt raises an exception at that check, the lock stays taken.
"""

_all: LiveSet[Any] = LiveSet()
_on_purpose: set[CodeType] = set()
F = TypeVar("F", bound=Callable[..., Any])


class Mutex(OwnedLock):  # type: ignore[misc]
    """A lock for `with`. An owner that tries to take it again gets ReentrantCallError."""

    on_taken: Callable[[], None] | None = None
    """A function that is called after each acquisition. If it raises an exception, the lock is released."""
    entered = 0
    """If LEAVES_OPEN, the `id` of the frame that has taken the lock last, else 0. It is 0 also if that frame
    belongs to a generator, because a suspended generator that has the lock is not on the stack.
    """

    def __init__(self) -> None:
        # This line is the body of `LiveSet.add`, without a call of it, for speed.
        _all.refs.add(weakref.ref(self, _all.refs.discard))

    def __enter__(self) -> bool:
        if self._is_owned():
            if (outer := under_way()) is not None:
                raise refused(outer)
            if self.on_taken is not None:
                self.on_taken()
            return True  # An interrupt has prevented an earlier release of the lock (LEAVES_OPEN).
        try:
            # After a call has returned, CPython runs no signal handler before the next call or backward jump.
            # So if the last call of this block succeeds, the caller's `with` block begins, and releases the
            # lock at its end.
            if not self.acquire(False):
                self._wait()
            if LEAVES_OPEN:
                self.entered = _frame_id(sys._getframe(1))
            if self.on_taken is not None:
                self.on_taken()
        except BaseException:
            try:
                # This is the first call of the block, so no second interrupt can come before it.
                self.release()
            except RuntimeError:
                """The lock was not taken."""
            raise
        return True

    def _wait(self) -> None:
        if others_are_gone():
            raise _ended()
        if LEAVES_OPEN:
            _let_go_of_dead()
        outer = under_way()
        if outer is None or not holds_any():
            self.acquire()
        elif not self.acquire(timeout=PATIENCE):
            raise refused(outer)

    @property
    def owned(self) -> bool:
        """Return whether the calling thread has the lock."""
        return bool(self._is_owned())


def nesting() -> threading.RLock:
    """Return a lock that its owner may take again. Its owner must call other functions only while the guarded
    state is consistent.
    """
    lock = threading.RLock()
    _all.add(lock)
    return lock


class BoundedLock(OwnedLock):  # type: ignore[misc]
    """A lock that its owner may take again. Another thread waits for it at most `PATIENCE` seconds, and then
    raises the error that the function `late` returns.
    """

    def __init__(self, late: Callable[[], Exception]) -> None:
        self._late = late
        _all.add(self)

    def __enter__(self) -> bool:
        try:
            taken = self.acquire(timeout=PATIENCE)
        except BaseException:
            try:
                self.release()  # No interrupt can come before this first call of the block.
            except RuntimeError:
                """The lock was not taken."""
            raise
        if not taken:
            raise self._late()
        return True


# --- interrupted calls -------------------------------------------------------------------------------


class Outer(NamedTuple):
    """A call of this package that a handler has interrupted."""

    call: str
    innermost: FrameType
    asked: str
    """The name of the call that the handler made."""

    def frames(self) -> Iterator[FrameType]:
        """Yield the frames of the call, the innermost first, and then those of its callers."""
        frame: FrameType | None = self.innermost
        while frame is not None:
            yield frame
            frame = frame.f_back


def calls_out(function: F) -> F:
    """Mark a function of this package that calls the application's code on purpose, without a lock. Calls of
    this package by that code are then not refused.
    """
    _on_purpose.add(function.__code__)
    return function


_FRONTS = {"cli", "demo", "spark", "bench"}
"""The subpackages that use this package as an application would; their calls don't count as calls of it."""
_BETWEEN = {"contextlib", "functools", "threading"}
"""The modules whose frames may be on the stack between two functions of the same call of this package."""


def _is_ours(frame: FrameType) -> bool:
    return _is_our_module(frame.f_globals.get("__name__") or "")


@lru_cache(maxsize=4096)
def _is_our_module(name: str) -> bool:
    return name.startswith("segstore.") and name.split(".", 2)[1] not in _FRONTS


def _is_between(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _BETWEEN


def under_way() -> Outer | None:
    """If the present call of this package comes from a handler that has interrupted another call of this
    package, return that interrupted call; else return None. Functions marked by `calls_out` don't count as
    interrupted.
    """
    frame, last = _past_ours(sys._getframe(1))
    handler_call = last
    while frame is not None:
        while frame is not None and not _is_ours(frame):
            frame = frame.f_back
        if frame is None:
            break
        innermost = frame
        frame, last = _past_ours(frame)
        if innermost.f_code not in _on_purpose:
            return Outer(_name(last), innermost, _name(handler_call))
    return None


def _past_ours(frame: FrameType) -> tuple[FrameType | None, FrameType]:
    """Return (caller, outermost) of the call of this package to which `frame` belongs: the frame that has
    made the call, None if there is none, and the outermost frame of the call itself.
    """
    last, at = frame, frame.f_back
    while at is not None and last.f_code.co_name != "__del__":
        if _is_ours(at):
            last = at
        elif not _is_between(at):
            break
        at = at.f_back
    return at, last


def _name(frame: FrameType) -> str:
    return str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))


def holds_any(but: Mutex | None = None, of: Iterable[Any] | None = None) -> bool:
    """Return whether this thread has one of the locks in `of`, other than `but`. If `of` is None, all locks
    of this package are checked.
    """
    return any(m is not but and m._is_owned() for m in _locks(of))


def _locks(of: Iterable[Any] | None = None) -> list[Any]:
    """Return the locks in `of`; if `of` is None, all locks of this package."""
    return _all.all() if of is None else list(of)


def _is_free(lock: Any) -> bool:
    """Return whether no other thread has the lock."""
    if not lock.acquire(False):
        return False
    lock.release()
    return True


def check_apart(call: str, but: Mutex | None = None, of: Iterable[Any] | None = None) -> None:
    """Raise ReentrantCallError if the present call, whose name is `call`, comes from a handler that has
    interrupted a call with a lock in `of`. If `of` is None, all locks of this package count. The lock `but`
    does not count.

    Without this check a call that takes several locks could be refused after it has changed something, and a
    call that waits for another thread could wait for its own thread. Raises IllegalStateError if the
    interpreter's end has stopped a thread that has a lock in `of`.
    """
    if others_are_gone() and not all(map(_is_free, _locks(of))):
        raise _ended(call)
    outer = under_way()
    if outer is not None and holds_any(but, of):
        raise refused(outer, call)


def let_go_of_left() -> None:
    """Release the locks that this thread still has only because of interrupts (LEAVES_OPEN), unless this call
    comes from a handler that has interrupted a call of this package. Called before a store waits for other
    threads at its close, because these threads may need the locks.
    """
    if under_way() is None:
        _let_go(_locks())


def _let_go_of_dead() -> None:
    """Release the locks that this thread owns, but that no running `with` block has taken: an interrupt has
    prevented their release. This can be called during a call of this package.
    """
    # If the frame that took a lock has ended, and a running frame has its id now, the lock is not released.
    # A lock that a call is just taking is not released either, because its `entered` is not set yet.
    alive: set[int] = set()
    being_taken: set[int] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        alive.add(id(frame))
        if frame.f_code is Mutex.__enter__.__code__:
            being_taken.add(id(frame.f_locals["self"]))
        frame = frame.f_back
    locks = [lock for lock in _locks() if isinstance(lock, Mutex) and id(lock) not in being_taken]
    _let_go([lock for lock in locks if lock.entered and lock.entered not in alive])


def _frame_id(frame: FrameType) -> int:
    return 0 if frame.f_code.co_flags & CO_GENERATOR else id(frame)


def _let_go(locks: list[Any]) -> None:
    for lock in locks:
        while lock._is_owned():
            lock.release()


def refused(outer: Outer | None, call: str = "") -> ReentrantCallError:
    """Return the error by which `call`, a handler's call, is refused. `outer` is the interrupted call; None
    if it is not known.
    """
    call = call or (f"{outer.asked}()" if outer is not None else "the call")
    within = "a call of this thread" if outer is None else f"{outer.call}()"
    return ReentrantCallError(
        f"{call} was refused: it came from a signal's handler, a finalizer or a callback while {within} is "
        "under way in the same thread. Set a flag there, and call when that has returned; or let another "
        "thread call"
    )


def _ended(call: str = "") -> IllegalStateError:
    return IllegalStateError(
        f"{call or 'the call'} was refused: the interpreter ends, and has ended a thread in the midst of a "
        "call, which has the lock. The next open recovers. To close a store in order, let all threads end "
        "before the interpreter does"
    )
