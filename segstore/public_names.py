"""`PublicNames`: `dir()`, and so tab completion, lists the names of a class that applications use.

Nothing is on disk. Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterable


def _public(cls: type, listed: Iterable[str]) -> list[str]:
    inner = {name for each in cls.__mro__ for name in vars(each).get("_inner", ())}
    return [name for name in listed if name not in inner and (name[0] != "_" or name.startswith("__"))]


class _Listing(type):
    """The class of such classes: `dir()` of a class asks its class."""

    def __dir__(cls) -> list[str]:
        return _public(cls, super().__dir__())


class PublicNames(metaclass=_Listing):
    """Base of such classes. `_inner` of a class has its names without an underscore that only this package
    uses.
    """

    __slots__ = ()
    _inner: frozenset[str] = frozenset()

    def __dir__(self) -> list[str]:
        return _public(type(self), super().__dir__())
