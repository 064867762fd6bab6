"""A reader of a store in a storm: follows its log, and checks all that it sees."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from pathlib import Path

import segstore

from .member import TOPIC
from .notes import stamp_of

MOST = 2_000_000
_PACKED = 8


class Seen:
    """What a reader has seen at each offset: a mapped file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(MOST * _PACKED)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), MOST * _PACKED)
        self.at = memoryview(self._map).cast("q")


def packed(value: bytes) -> int:
    """Return a number that stands for a record, and is not 0."""
    member, number, part, _ = stamp_of(value)
    return member << 32 | number << 8 | (part + 1)


def follow(root: Path, stop: Callable[[], bool]) -> None:
    """Follow the log until all is read behind a stop. Raises AssertionError."""
    seen, position, end = Seen(root.parent / "seen").at, 0, 0
    with segstore.open(root, "r") as store:
        log = store.partition(TOPIC, 0)
        while True:
            last = stop()
            now = log.end_offset
            assert now >= end, f"the log ended at {end}, and ends at {now}"
            end = now
            again = max(0, position - 20)
            for record in log.read(again):
                assert record.offset == again, f"offset {record.offset} where {again} is next"
                found = packed(record.value)
                before = seen[record.offset]
                assert before in (0, found), f"offset {record.offset} was {before:x}, and is {found:x}"
                seen[record.offset] = found
                again += 1
            assert again >= position, f"{position} records were there, and {again} are"
            is_behind, position = again > position, again
            if last and not is_behind and position >= end:
                return
            if not is_behind:
                time.sleep(0.001)
