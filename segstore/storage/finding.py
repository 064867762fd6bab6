"""Findings of `check`, and their repairs by `repair` or by an open for writing. Nothing is on disk."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """A violated invariant: the faulty file or directory, with the byte position and the offset of the fault,
    each None if it has none.
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
    """The repair of a finding: the finding's fields, and the action in words (`done`)."""

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
