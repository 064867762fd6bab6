"""What all clients of one open store share: coordinators, quotas, offsets of groups. One of each a store.

Nothing on disk. Threads: any; a part is made once, under a lock of the store's, and closed with the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from segstore.storage.store import Store


class Part(Protocol):
    """Something of which a store has one."""

    def close(self) -> None:
        """The store is being closed: nothing was let go yet."""


P = TypeVar("P", bound=Part)


class _Parts:
    def __init__(self) -> None:
        self.lock = threading.RLock()  # a part may ask for another while it is made
        self.made: dict[Callable[[Store], Any], Part] = {}

    def close(self) -> None:
        """Last made, first closed: a part may use those that it asked for."""
        with self.lock:
            parts = list(self.made.values())
            self.made.clear()
        for part in reversed(parts):
            part.close()


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
            parts.made[make] = make(store)
        part: P = parts.made[make]  # type: ignore[assignment]
        return part
