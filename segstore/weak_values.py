"""`WeakValues`: a mapping to objects that other objects keep alive.

`WeakValues` is no `weakref.WeakValueDictionary`, which removes an entry by a Python callback when the object
dies. CPython prints and drops exceptions of such callbacks, so that a Ctrl-C in such a callback would be
lost. Here entries of dead objects stay until the number of entries has doubled since the last cleanup.

Nothing is on disk. Threads: any; each entry is read, set and removed in one step of C.
"""

from __future__ import annotations

import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]  # typeshed lacks it
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

FEW = 64
"""Number of entries up to which there is no cleanup."""


class WeakValues(Generic[K, V]):
    """Objects by keys, while the objects live."""

    __slots__ = ("_most", "_refs")

    def __init__(self) -> None:
        self._refs: dict[K, weakref.ref[V]] = {}
        self._most = FEW

    def get(self, key: K) -> V | None:
        """Return the object; None if the key is missing or the object is dead."""
        ref = self._refs.get(key)
        return None if ref is None else ref()

    def __setitem__(self, key: K, value: V) -> None:
        self._refs[key] = weakref.ref(value)
        if len(self._refs) > self._most:
            self._drop_dead()

    def pop(self, key: K) -> None:
        """Remove an entry if it exists."""
        self._refs.pop(key, None)

    def keys(self) -> list[K]:
        """Return all keys, also those of dead objects."""
        return list(self._refs)

    def items(self) -> list[tuple[K, V]]:
        """Return the keys and values of the living objects."""
        return [(key, value) for key, ref in list(self._refs.items()) if (value := ref()) is not None]

    def _drop_dead(self) -> None:
        for key in self.keys():
            _remove_dead_weakref(self._refs, key)
        self._most = max(2 * len(self._refs), FEW)
