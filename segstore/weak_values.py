"""`WeakValues`: a mapping to objects that others keep.

It is no `weakref.WeakValueDictionary`: that one removes an entry by a callback in Python when the object
dies, and CPython prints and forgets what is raised in such a callback, so Ctrl-C that came there would be
lost. Here entries of dead objects stay until there are twice as many as after the last look.

Nothing is on disk. Threads: any; each entry is read, set and removed in one step of C.
"""

from __future__ import annotations

import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]  # typeshed lacks it
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

FEW = 64
"""Entries up to which none is looked at."""


class WeakValues(Generic[K, V]):
    """Objects by keys, as long as they live."""

    __slots__ = ("_most", "_refs")

    def __init__(self) -> None:
        self._refs: dict[K, weakref.ref[V]] = {}
        self._most = FEW

    def get(self, key: K) -> V | None:
        """Return the object; None where there is none, or it lives no more."""
        ref = self._refs.get(key)
        return None if ref is None else ref()

    def __setitem__(self, key: K, value: V) -> None:
        self._refs[key] = weakref.ref(value)
        if len(self._refs) > self._most:
            self._drop_dead()

    def pop(self, key: K) -> None:
        """Remove an entry, if it is there."""
        self._refs.pop(key, None)

    def keys(self) -> list[K]:
        """Return the keys, those of objects that live no more, too."""
        return list(self._refs)

    def items(self) -> list[tuple[K, V]]:
        """Return the keys of the objects that live, and these."""
        return [(key, value) for key, ref in list(self._refs.items()) if (value := ref()) is not None]

    def _drop_dead(self) -> None:
        for key in self.keys():
            _remove_dead_weakref(self._refs, key)
        self._most = max(2 * len(self._refs), FEW)
