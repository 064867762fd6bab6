"""Creates the objects that all clients of an open store use together, such as coordinators, quotas and
committed offsets. A store has at most one object of each of these kinds: a "part" of the store.

Threads: any. A part is created once, under a lock of the store, and closed with the store. The creation may
take long, for example if the transaction coordinator reads and writes its logs. A caller does not wait for
the lock if the part exists already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from segstore.errors import StoreClosedError
from segstore.mutex import nesting, refused, under_way
from segstore.storage.store.store import Store


class StorePart(Protocol):
    """A part of a store: an object that a store has at most once."""

    def close(self) -> None:
        """Close the part. The store calls this when its own close begins, so this can still use the store."""


P = TypeVar("P", bound=StorePart)


class _StoreParts:
    def __init__(self) -> None:
        # The owner may take this lock again, because the creation of a part may call `shared` for another
        # part.
        self.lock = nesting()
        self.made: dict[Callable[[Store], Any], StorePart] = {}
        self.making: set[Callable[[Store], Any]] = set()
        self.closed = False

    def close(self) -> None:
        """Close the parts in the reverse order of their creation, because a part may use older parts. No part
        is created after this call begins, because a new part could use a closed part.
        """
        with self.lock:
            self.closed = True
        while (part := self._last()) is not None:
            part.close()

    def _last(self) -> StorePart | None:
        with self.lock:
            return self.made.popitem()[1] if self.made else None


def existing(store: Store, make: Callable[[Store], P]) -> P | None:
    """Return the part that `shared` has created for `make`; None if there is none, or if it was closed."""
    part: P | None = store.attach(_StoreParts).made.get(make)  # type: ignore[assignment]
    return part


def shared(store: Store, make: Callable[[Store], P], build: Callable[[Store], P] | None = None) -> P:
    """Return the store's part for the key `make`. If there is none, create it by `build(store)`, or by
    `make(store)` if `build` is None. Raises ReadOnlyError, StoreClosedError, ForkedError, and
    IllegalStateError in a guest of a shared store, because only the host has parts.
    """
    store.context.check_writable()
    parts = store.attach(_StoreParts)
    found: P | None = parts.made.get(make)  # type: ignore[assignment]
    if found is not None:
        return found
    with parts.lock:
        if make not in parts.made:
            if parts.closed:
                raise StoreClosedError(f"{store.path} is being closed")
            parts.made[make] = _made(parts, store, make, build or make)
        part: P = parts.made[make]  # type: ignore[assignment]
        return part


def _made(parts: _StoreParts, store: Store, make: Callable[[Store], P], build: Callable[[Store], P]) -> P:
    """Create a part, and return it. The caller must have the lock. If a signal handler asks for the same part
    during the creation, it gets ReentrantCallError.
    """
    if make in parts.making:
        raise refused(under_way())
    store.check_keeps(make.__name__)
    try:
        # This is inside `try`: if an interrupt comes right after this line, `finally` undoes the line.
        parts.making.add(make)
        return build(store)
    finally:
        parts.making.discard(make)
