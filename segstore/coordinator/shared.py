"""The parts that all clients of one open store share, one of each: coordinators, quotas, committed offsets.

Threads: any. A part is made once, under a lock of the store's, and closed with the store. To make one may
take long: the coordinator of transactions reads its logs, and writes. Who asks for a part that is made does
not wait for the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from segstore.errors import StoreClosedError
from segstore.mutex import nesting, refused, under_way
from segstore.storage.store.store import Store


class StorePart(Protocol):
    """A part of which a store has one."""

    def close(self) -> None:
        """Close the part, as the store begins to close, while everything in it still works."""


P = TypeVar("P", bound=StorePart)


class _StoreParts:
    def __init__(self) -> None:
        self.lock = nesting()  # a part may ask for another while it is made
        self.made: dict[Callable[[Store], Any], StorePart] = {}
        self.making: set[Callable[[Store], Any]] = set()
        self.closed = False

    def close(self) -> None:
        """Close the parts, the last made first: a part may use those that it asked for. No part is made any
        more, because it could rely on one that is closed.
        """
        with self.lock:
            self.closed = True
        while (part := self._last()) is not None:
            part.close()

    def _last(self) -> StorePart | None:
        with self.lock:
            return self.made.popitem()[1] if self.made else None


def existing(store: Store, make: Callable[[Store], P]) -> P | None:
    """Return the store's `make(store)`; None where it is not made, or the store is being closed."""
    part: P | None = store.attach(_StoreParts).made.get(make)  # type: ignore[assignment]
    return part


def shared(store: Store, make: Callable[[Store], P], build: Callable[[Store], P] | None = None) -> P:
    """Return the one `make(store)` of an open store. If there is none yet, the part is made, by `build` if it
    is given. Raises ReadOnlyError, StoreClosedError, ForkedError; IllegalStateError in a guest of a shared
    store, since the host has these parts.
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
    """Make the part; the lock is held, also by a signal handler that interrupts this thread: it gets
    ReentrantCallError.
    """
    if make in parts.making:
        raise refused(under_way())
    store.check_keeps(make.__name__)
    try:
        parts.making.add(make)  # within the block: an interrupt may come before the next line
        return build(store)
    finally:
        parts.making.discard(make)
