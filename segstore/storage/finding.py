"""Findings of `check`, and what a repair, or an open for writing, has done about them. Nothing is on disk."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """Something that is not as it must be: the file or directory, byte position and offset where there are
    any.
    """

    path: str
    position: int | None
    offset: int | None
    message: str

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path} at {self.position}"
        return (
            f"{where}: {self.message}"
            if self.offset is None
            else f"{where}, offset {self.offset}: {self.message}"
        )


class Repaired(NamedTuple):
    """Something that was not as it must be, as in a `Finding`, and what was done about it."""

    path: str
    position: int | None
    offset: int | None
    message: str
    done: str

    @classmethod
    def of(cls, finding: Finding, done: str) -> Repaired:
        return cls(*finding, done)

    def __str__(self) -> str:
        return f"{Finding(*self[:4])} -> {self.done}"
