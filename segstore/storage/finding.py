"""`Finding`, a result of `check`, and `Repaired`, a repair by `repair` or by an open for writing. Nothing is
on disk.
"""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """A violated invariant. `path` is the faulty file or directory. `position` is the byte position of the
    fault in the file; None if the fault has no position. `offset` is the offset of the faulty record; None if
    no record is faulty.
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
    """The repair of a finding. `done` is a text about the action; all other fields are the fields of the
    `Finding`.
    """

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
