"""What a member notes of its appends, in a mapped file that a kill of the member does not reach."""

from __future__ import annotations

import mmap
from pathlib import Path

MOST = 20_000
"""Appends of a member, and transactions: then it appends no more."""
ID, SLOT, BEGUN, DONE, TXN_BEGUN, HOSTS, REFUSED = range(7)
_SLOTS, _TXNS = 16, 16 + MOST
UNKNOWN, NOT_THERE = 0, -1
"""Of an append: nothing is known; it was refused. Else its first offset, plus 1."""
COMMITTED, ABORTED = 1, 2
"""Of a transaction."""


class Notes:
    """The notes of one member: of each append, by its number, what became of it."""

    def __init__(self, path: Path) -> None:
        size = 8 * (16 + 2 * MOST)
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._words = memoryview(self._map).cast("q")

    def __getitem__(self, field: int) -> int:
        return self._words[field]

    def __setitem__(self, field: int, value: int) -> None:
        self._words[field] = value

    def outcome(self, number: int) -> int:
        """Return what became of an append."""
        return self._words[_SLOTS + number]

    def begin(self, number: int) -> None:
        """Note that an append is under way."""
        self._words[BEGUN] = number

    def end(self, number: int, outcome: int) -> None:
        """Note what became of it."""
        self._words[_SLOTS + number] = outcome
        self._words[DONE] = number

    def txn(self, number: int) -> int:
        """Return what became of a transaction."""
        return self._words[_TXNS + number]

    def end_txn(self, number: int, outcome: int) -> None:
        """Note it."""
        self._words[_TXNS + number] = outcome

    def close(self) -> None:
        """Let go of the mapping."""
        self._words.release()
        self._map.close()


def of_directory(directory: Path) -> dict[int, Notes]:
    """Return the notes of all members, by their numbers."""
    return {int(path.name): Notes(path) for path in directory.iterdir()}


def value_of(member: int, number: int, part: int, parts: int, room: int) -> bytes:
    """Return a record's value."""
    return b"@%d %d %d %d|" % (member, number, part, parts) + bytes([number & 255]) * room


def stamp_of(value: bytes) -> tuple[int, int, int, int]:
    """Return member, number, part and parts of a record; raises ValueError where it was not written so."""
    head, mark, rest = value.partition(b"|")
    member, number, part, parts = map(int, head.removeprefix(b"@").split())
    if not mark or rest.strip(bytes([number & 255])):
        raise ValueError(f"a record of {member}:{number} has strange bytes")
    return member, number, part, parts
