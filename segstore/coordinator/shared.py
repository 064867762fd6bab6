"""What all clients of one open store share: coordinators, quotas, offsets of groups. One of each a store.

Nothing on disk. Threads: any; a part is made once, under a lock of the store's, and closed with the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from segstore.errors import StoreClosedError
from segstore.mutex import nesting, refused, under_way
from segstore.storage.store.store import Store


class Part(Protocol):
    """Something of which a store has one."""

    def close(self) -> None:
        """The store is being closed: nothing was let go yet."""


P = TypeVar("P", bound=Part)


class _Parts:
    def __init__(self) -> None:
        self.lock = nesting()  # a part may ask for another while it is made
        self.made: dict[Callable[[Store], Any], Part] = {}
        self.making: set[Callable[[Store], Any]] = set()
        self.closed = False

    def close(self) -> None:
        """Last made, first closed: a part may use those that it asked for. No other is made: it would not
        know what one that is being closed does.
        """
        with self.lock:
            self.closed = True
        while (part := self._last()) is not None:
            part.close()

    def _last(self) -> Part | None:
        with self.lock:
            return self.made.popitem()[1] if self.made else None


def existing(store: Store, make: Callable[[Store], P]) -> P | None:
    """The store's `make(store)` where somebody has asked for it, and the store is not being closed."""
    parts = store._attach(_Parts)
    with parts.lock:
        part: P | None = parts.made.get(make)  # type: ignore[assignment]
        return part


def shared(store: Store, make: Callable[[Store], P]) -> P:
    """The one `make(store)` of an open store. ReadOnlyError, StoreClosedError, ForkedError."""
    store._context.check_writable()
    parts = store._attach(_Parts)
    with parts.lock:
        if make not in parts.made:
            if parts.closed:
                raise StoreClosedError(f"{store.path} is being closed")
            parts.made[make] = _made(parts, store, make)
        part: P = parts.made[make]  # type: ignore[assignment]
        return part


def _made(parts: _Parts, store: Store, make: Callable[[Store], P]) -> P:
    """With the lock held, which a handler that comes into this has, too: ReentrantCallError."""
    if make in parts.making:
        raise refused(under_way())
    parts.making.add(make)
    try:
        return make(store)
    finally:
        parts.making.discard(make)
