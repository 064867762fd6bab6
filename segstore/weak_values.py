"""`WeakValues`: a mapping whose values are weak references to objects.

`weakref.WeakValueDictionary` is not used, because it removes an entry by a Python callback when the object is
freed. CPython prints the exceptions of such callbacks and ignores them, so Ctrl-C would be lost during a
callback. A `WeakValues` removes the entries of freed objects when the number of entries has doubled since the
last cleanup.

Nothing is on disk. Threads: any; each entry is read, set and removed by one call in C.
"""

from __future__ import annotations

import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]  # typeshed lacks it
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

FEW = 64
"""No cleanup takes place while there are at most this many entries."""


class WeakValues(Generic[K, V]):
    """A mapping from keys to objects, to which it has only weak references."""

    __slots__ = ("_most", "_refs")

    def __init__(self) -> None:
        self._refs: dict[K, weakref.ref[V]] = {}
        self._most = FEW

    def get(self, key: K) -> V | None:
        """Return the object of a key; None if the key is missing, or if the object was freed."""
        ref = self._refs.get(key)
        return None if ref is None else ref()

    def __setitem__(self, key: K, value: V) -> None:
        self._refs[key] = weakref.ref(value)
        if len(self._refs) > self._most:
            self._drop_dead()

    def pop(self, key: K) -> None:
        """Remove the entry of a key, if there is one."""
        self._refs.pop(key, None)

    def keys(self) -> list[K]:
        """Return all keys, including those whose objects were freed."""
        return list(self._refs)

    def items(self) -> list[tuple[K, V]]:
        """Return (key, object) for each object that was not freed."""
        return [(key, value) for key, ref in list(self._refs.items()) if (value := ref()) is not None]

    def _drop_dead(self) -> None:
        for key in self.keys():
            _remove_dead_weakref(self._refs, key)
        self._most = max(2 * len(self._refs), FEW)
