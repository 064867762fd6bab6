"""What a repair reports, and what an open for writing reports of small files that it found damaged. Nothing
on disk.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.storage.check.finding import Finding


class Repaired(NamedTuple):
    """What was not as it must be, as in a `Finding`, and what was done about it."""

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
