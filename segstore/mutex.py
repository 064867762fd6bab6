"""Locks that know their thread: a call that comes into another one of its own thread is refused by name.

Nothing on disk. The handler of a signal, a finalizer, the callback of a weak reference or of the garbage
collector runs in the midst of whatever its thread does. Where that is a call of this package which holds a
lock, and the handler calls this package too, a plain lock would wait for itself. Here it raises
ReentrantCallError, before anything is changed.

A thread that was interrupted so may also wait for another thread that waits for it, by a lock that the
interrupted call holds. So whoever comes from such a handler, and has a lock, waits for a `Mutex` of another
thread up to `PATIENCE` seconds, and for a thread of ours not at all (`check_apart`).

A lock of a thread that the interpreter ended with itself stays taken, and what it guards may be half done. So
what needs it then is refused as well: IllegalStateError.

Threads: any. Interrupts: `with` is the only way to take a lock, and no interrupt leaves it taken.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from segstore.errors import IllegalStateError, ReentrantCallError
from segstore.threads import others_are_gone

if TYPE_CHECKING:
    OwnedLock: Any = object
else:
    # It knows its owner; one step of C takes it, and one, in `with`, lets go of it.
    OwnedLock = type(threading.RLock())

PATIENCE = 2.0
"""Seconds. Longer than any lock is held, but by who waits for a disk that stands still."""

LEAVES_OPEN = sys.version_info < (3, 11)
"""Whether a `with` block may stay open for ever. CPython 3.10 looks for signals where the code begins that is
to end the block: where an interrupt ends the block and a second one comes there, the lock stays taken.
"""

_all: set[weakref.ref[Any]] = set()
_on_purpose: set[CodeType] = set()
F = TypeVar("F", bound=Callable[..., Any])


class Mutex(OwnedLock):  # type: ignore[misc]
    """A lock that the thread which has it may not take again: ReentrantCallError."""

    entered = 0
    """Which frame took it last: its id. Known only where LEAVES_OPEN."""

    def __init__(self) -> None:
        _all.add(weakref.ref(self, _all.discard))

    def __enter__(self) -> bool:
        if self._is_owned():
            if (outer := under_way()) is not None:
                raise refused(outer)
            return True  # an interrupt has left it taken (LEAVES_OPEN): this thread has it, and goes on
        try:
            # Between a call's return and the next instruction that calls, or jumps back, CPython lets no
            # interrupt in: behind the last call of this block it is the caller's `with` that lets go.
            if not self.acquire(False):
                self._wait()
            if LEAVES_OPEN:
                self.entered = id(sys._getframe(1))
        except BaseException:
            try:
                self.release()  # the first call here: a second interrupt comes behind it
            except RuntimeError:
                """It was not taken."""
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
        """Whether this thread has it."""
        return bool(self._is_owned())


def nesting() -> threading.RLock:
    """A lock that the thread which has it may take again: what it guards is whole at each call within."""
    lock = threading.RLock()
    _all.add(weakref.ref(lock, _all.discard))
    return lock


# --- who is within what ------------------------------------------------------------------------------


class Outer(NamedTuple):
    """A call of this package into which a handler came."""

    call: str
    innermost: FrameType
    asked: str
    """The call that came from the handler."""

    def frames(self) -> Iterator[FrameType]:
        """Its frames, and all that are further out."""
        frame: FrameType | None = self.innermost
        while frame is not None:
            yield frame
            frame = frame.f_back


def calls_out(function: F) -> F:
    """Marks what calls the application's code on purpose, with no lock held: that may call us again."""
    _on_purpose.add(function.__code__)
    return function


_FRONTS = {"cli", "demo", "spark", "bench"}
"""Applications of this package."""
_BETWEEN = {"contextlib", "functools", "threading", "concurrent.futures.thread", "concurrent.futures._base"}
"""What stands on the stack between two functions of ours."""


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__") or ""
    return name.startswith("segstore.") and name.split(".", 2)[1] not in _FRONTS


def _is_between(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _BETWEEN


def under_way() -> Outer | None:
    """The call of ours that this thread is in further out than the one that asks, and did not come from on
    purpose; None: there is none.
    """
    frame, last = _past_ours(sys._getframe(1))
    asked = last
    while frame is not None:
        while frame is not None and not _is_ours(frame):
            frame = frame.f_back
        if frame is None:
            break
        innermost = frame
        frame, last = _past_ours(frame)
        if innermost.f_code not in _on_purpose:
            return Outer(_name(last), innermost, _name(asked))
    return None


def _past_ours(frame: FrameType) -> tuple[FrameType | None, FrameType]:
    """The first frame further out that is not of this call; the call's outermost frame."""
    last, at = frame, frame.f_back
    while last.f_code.co_name != "__del__" and at is not None and (_is_ours(at) or _is_between(at)):
        last, at = (at if _is_ours(at) else last), at.f_back
    return at, last


def _name(frame: FrameType) -> str:
    return str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))


def holds_any(but: Mutex | None = None, of: Iterable[Any] | None = None) -> bool:
    """Whether this thread has a lock of ours, or one `of` these."""
    return any(m is not but and m._is_owned() for m in _asked(of))


def _asked(of: Iterable[Any] | None = None) -> list[Any]:
    """These locks, or all of ours that there are."""
    return [lock for ref in _all.copy() if (lock := ref()) is not None] if of is None else list(of)


def _is_free(lock: Any) -> bool:
    """Whether no other thread has it."""
    if not lock.acquire(False):
        return False
    lock.release()
    return True


def check_apart(call: str, but: Mutex | None = None, of: Iterable[Any] | None = None) -> None:
    """ReentrantCallError where `call` came from a handler into a call that holds a lock: a call that takes
    several locks would stop midway, one that waits for another thread could wait for itself. `but`: a lock
    that is no matter; `of`: the only ones that are, where `call` needs no other (None: all are).
    IllegalStateError where the interpreter ended a thread that has one.
    """
    if others_are_gone() and not all(map(_is_free, _asked(of))):
        raise _ended(call)
    outer = under_way()
    if outer is not None and holds_any(but, of):
        raise refused(outer, call)


def let_go_of_left() -> None:
    """Let go of the locks that interrupts of this thread's calls left taken (LEAVES_OPEN), where no such call
    is under way: other threads, for which this one is about to wait, may wait for them.
    """
    if under_way() is None:
        _let_go(_asked())


def _let_go_of_dead() -> None:
    """The same in the midst of a call: locks that this thread has, but no `with` block of it.

    A frame that is gone may have left its id to a later one of the same function, whose lock is then kept.
    A lock that a handler's outer call is only taking does not know its block yet.
    """
    alive: set[int] = set()
    being_taken: set[int] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        alive.add(id(frame))
        if frame.f_code is Mutex.__enter__.__code__:
            being_taken.add(id(frame.f_locals["self"]))
        frame = frame.f_back
    held = [lock for lock in _asked() if isinstance(lock, Mutex) and id(lock) not in being_taken]
    _let_go([lock for lock in held if lock.entered not in alive])


def _let_go(locks: list[Any]) -> None:
    for lock in locks:
        while lock._is_owned():
            lock.release()


def refused(outer: Outer | None, call: str = "") -> ReentrantCallError:
    """What is said to who comes from a handler."""
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
        "call, which has the lock. The next open recovers; threads that end before let a store close in order"
    )
