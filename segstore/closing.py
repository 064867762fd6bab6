"""`Closing`: a base class for objects that a `with` block closes. Nothing is on disk. Threads: any."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Self


class _Closable(Protocol):
    def close(self) -> None: ...


class Closing:
    """The base class of context managers whose `close` is called at the end of the `with` block."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _Closable,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
