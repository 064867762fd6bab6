"""`PublicNames`: limits `dir()` of a class or object, and so tab completion, to the names for applications.

Nothing is on disk. Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterable


def _public(cls: type, listed: Iterable[str]) -> list[str]:
    inner = {name for each in cls.__mro__ for name in vars(each).get("_inner", ())}
    return [name for name in listed if name not in inner and (name[0] != "_" or name.startswith("__"))]


class _Listing(type):
    """The metaclass of `PublicNames`, whose `__dir__` is called by `dir()` of a class."""

    def __dir__(cls) -> list[str]:
        return _public(cls, super().__dir__())


class PublicNames(metaclass=_Listing):
    """The base of classes whose `dir()` lists only the names for applications. `_inner` has the names that do
    not begin with an underscore, but that only this package uses.
    """

    __slots__ = ()
    _inner: frozenset[str] = frozenset()

    def __dir__(self) -> list[str]:
        return _public(type(self), super().__dir__())
