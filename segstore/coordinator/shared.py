"""The parts of an open store that all its clients share, one of each kind: coordinators, quotas, committed
offsets.

Threads: any. A part is made once, under a lock of the store, and closed with the store. Making a part may
take long, for example because the transaction coordinator reads and writes its logs. A caller that needs a
part which is already made does not wait for the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from segstore.errors import StoreClosedError
from segstore.mutex import nesting, refused, under_way
from segstore.storage.store.store import Store


class StorePart(Protocol):
    """A part of a store that is made once per store."""

    def close(self) -> None:
        """Close the part; the store calls this when it begins to close, while its other parts still work."""


P = TypeVar("P", bound=StorePart)


class _StoreParts:
    def __init__(self) -> None:
        self.lock = nesting()  # a part may ask for another part while it is made
        self.made: dict[Callable[[Store], Any], StorePart] = {}
        self.making: set[Callable[[Store], Any]] = set()
        self.closed = False

    def close(self) -> None:
        """Close the parts, the last made first, because a part may use parts that were made before it. From
        now on no part is made, because a new part could rely on a closed part.
        """
        with self.lock:
            self.closed = True
        while (part := self._last()) is not None:
            part.close()

    def _last(self) -> StorePart | None:
        with self.lock:
            return self.made.popitem()[1] if self.made else None


def existing(store: Store, make: Callable[[Store], P]) -> P | None:
    """Return the store's part `make(store)`; None if it was not made, or the store is being closed."""
    part: P | None = store.attach(_StoreParts).made.get(make)  # type: ignore[assignment]
    return part


def shared(store: Store, make: Callable[[Store], P], build: Callable[[Store], P] | None = None) -> P:
    """Return the store's only part of the kind `make`. A missing part is made by `build(store)`, by default
    `make(store)`. Raises ReadOnlyError, StoreClosedError, ForkedError;
    IllegalStateError in a guest of a shared store, because only the host has these parts.
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
    """Make the part, and return it; the caller holds the lock. A signal handler that asks for the same part
    while it is made gets ReentrantCallError.
    """
    if make in parts.making:
        raise refused(under_way())
    store.check_keeps(make.__name__)
    try:
        parts.making.add(make)  # inside `try`, so that `finally` undoes it after an interrupt right here
        return build(store)
    finally:
        parts.making.discard(make)
