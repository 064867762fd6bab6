"""Locks that know their owner, so that a call that has interrupted another call of the same thread is
refused, with an error that names both calls.

A signal handler, a finalizer, or the callback of a weak reference or of the garbage collector (all called
handlers here) interrupts its thread at any point. If a handler interrupts a call of this package that holds a
lock, and calls this package itself, with a plain lock it would wait for its own thread for ever. A `Mutex`
raises ReentrantCallError instead, before anything is changed.

A call from a handler could also wait for another thread, which waits for a lock that the interrupted call
holds. So a call from a handler whose thread has a lock waits for a `Mutex` at most `PATIENCE` seconds, and
does not wait for a thread of this package at all (`check_apart`).

If the interpreter's end stops a thread that has a lock, the lock stays taken, and the guarded state may be
half changed. Calls that need the lock then raise IllegalStateError.

Threads: any. Interrupts: `with` is the only way to take a lock, and no interrupt leaves the lock taken. No
files are touched.
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
    # An RLock knows its owner. One call in C takes the lock, and another, at the end of `with`, releases it.
    OwnedLock = type(threading.RLock())

PATIENCE = 2.0
"""The longest wait for a lock, in seconds, of a call from a handler or for a `BoundedLock`. No lock is held
that long, unless its owner waits for a disk that does not answer.
"""

LEAVES_OPEN = sys.version_info < (3, 11)
"""True if interrupts may leave a lock taken at the end of a `with` block. CPython 3.10 checks for signals at
the beginning of the code that leaves the block. If one interrupt breaks off the block, and a second interrupt
comes there, the lock stays taken.
"""

_all: LiveSet[Any] = LiveSet()
_on_purpose: set[CodeType] = set()
F = TypeVar("F", bound=Callable[..., Any])


class Mutex(OwnedLock):  # type: ignore[misc]
    """A lock that its owner can't take again; the attempt raises ReentrantCallError."""

    on_taken: Callable[[], None] | None = None
    """Called after each acquisition; if it raises, the lock is released."""
    entered = 0
    """The id of the frame that took the lock last if LEAVES_OPEN, else 0. For the frame of a generator, which
    is not on the stack while the generator is suspended with the lock, `entered` is 0 too.
    """

    def __init__(self) -> None:
        _all.refs.add(weakref.ref(self, _all.refs.discard))  # `LiveSet.add`, inlined for speed

    def __enter__(self) -> bool:
        if self._is_owned():
            if (outer := under_way()) is not None:
                raise refused(outer)
            if self.on_taken is not None:
                self.on_taken()
            return True  # an interrupt left the lock with this thread (LEAVES_OPEN)
        try:
            # Between the return of a call and the next instruction that calls or jumps back, CPython runs no
            # signal handler. So after the last call of this block, the caller's `with` releases the lock.
            if not self.acquire(False):
                self._wait()
            if LEAVES_OPEN:
                self.entered = _frame_id(sys._getframe(1))
            if self.on_taken is not None:
                self.on_taken()
        except BaseException:
            try:
                # the first call of this block, so that a second interrupt can only come after it
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
    """Return a lock that its owner may take again, for state that is consistent at each call made while the
    lock is held.
    """
    lock = threading.RLock()
    _all.add(lock)
    return lock


class BoundedLock(OwnedLock):  # type: ignore[misc]
    """A lock that its owner may take again; other threads wait for it at most `PATIENCE` seconds, then get
    the error that `late` makes.
    """

    def __init__(self, late: Callable[[], Exception]) -> None:
        self._late = late
        _all.add(self)

    def __enter__(self) -> bool:
        try:
            taken = self.acquire(timeout=PATIENCE)
        except BaseException:
            try:
                self.release()  # the first call, as in `Mutex`
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
        """Yield the frames of the call, and of all its callers."""
        frame: FrameType | None = self.innermost
        while frame is not None:
            yield frame
            frame = frame.f_back


def calls_out(function: F) -> F:
    """Mark a function that intentionally calls the application's code, with no lock held, so that this code
    may call the package again.
    """
    _on_purpose.add(function.__code__)
    return function


_FRONTS = {"cli", "demo", "spark", "bench"}
"""Applications of this package."""
_BETWEEN = {"contextlib", "functools", "threading"}
"""Modules whose frames may lie on the stack between two functions of this package."""


def _is_ours(frame: FrameType) -> bool:
    return _is_our_module(frame.f_globals.get("__name__") or "")


@lru_cache(maxsize=4096)
def _is_our_module(name: str) -> bool:
    return name.startswith("segstore.") and name.split(".", 2)[1] not in _FRONTS


def _is_between(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _BETWEEN


def under_way() -> Outer | None:
    """Return the call of this package that a handler has interrupted, if the caller runs in a handler;
    otherwise None. Calls marked with `calls_out` don't count.
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
    """Return (first frame outside of the call, outermost frame of the call), for the call of this package
    that has `frame`. The first is None if all outer frames belong to the call.
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
    """Return whether this thread holds one of the locks `of`, by default any lock of this package; the lock
    `but` does not count.
    """
    return any(m is not but and m._is_owned() for m in _locks(of))


def _locks(of: Iterable[Any] | None = None) -> list[Any]:
    """Return the locks in `of`, or all locks of this package."""
    return _all.all() if of is None else list(of)


def _is_free(lock: Any) -> bool:
    """Return whether this thread has the lock, or no thread has it."""
    if not lock.acquire(False):
        return False
    lock.release()
    return True


def check_apart(call: str, but: Mutex | None = None, of: Iterable[Any] | None = None) -> None:
    """Raise ReentrantCallError if `call` came from a handler that interrupted a call which holds a lock.

    Without this check a call that takes several locks could be refused midway, and a call that waits for
    another thread could wait for its own thread. Only the locks `of` count, by default all locks of this
    package; the lock `but` does not count. Raises IllegalStateError if the interpreter's end stopped a thread
    that has one of the locks `of`.
    """
    if others_are_gone() and not all(map(_is_free, _locks(of))):
        raise _ended(call)
    outer = under_way()
    if outer is not None and holds_any(but, of):
        raise refused(outer, call)


def let_go_of_left() -> None:
    """Release the locks that interrupts of this thread's calls left taken (LEAVES_OPEN), unless a call of
    this package is under way. A caller that is going to wait for another thread must call this first, because
    that thread may need the locks.
    """
    if under_way() is None:
        _let_go(_locks())


def _let_go_of_dead() -> None:
    """Release the locks that interrupts left taken, also during a call: the locks that this thread owns, but
    that no running `with` block has taken.
    """
    # A finished frame and a running frame may have the same id: then the lock is not released. Nor is a lock
    # that a call is just taking, because its `entered` is not set yet.
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
    """Return the error that refuses `call`, made by a handler that has interrupted the call `outer`."""
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
