"""The trace of a program: what was in its directory before, and each change, as trace.c writes it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEAD = struct.Struct("<IBBHIIQQ")

FILE_BEFORE, DIRECTORY_BEFORE = "E", "e"
CREATED, WRITTEN, SIZED, SYNCED, NOT_SYNCED = "O", "W", "T", "F", "f"
DIRECTORY_SYNCED, DIRECTORY_NOT_SYNCED = "D", "d"
MADE, RENAMED, LINKED, REMOVED, NOTED = "M", "R", "L", "U", "N"
SYNCS = SYNCED + NOT_SYNCED + DIRECTORY_SYNCED + DIRECTORY_NOT_SYNCED
NAMES = {
    FILE_BEFORE: "there was",
    DIRECTORY_BEFORE: "there was",
    CREATED: "create",
    WRITTEN: "write",
    SIZED: "resize",
    SYNCED: "sync",
    NOT_SYNCED: "failed sync",
    DIRECTORY_SYNCED: "sync of the directory",
    DIRECTORY_NOT_SYNCED: "failed sync of the directory",
    MADE: "mkdir",
    RENAMED: "rename",
    LINKED: "link",
    REMOVED: "remove",
    NOTED: "note",
}


class Event(NamedTuple):
    """One change. `first` is the data of a write or a note, or a path; `second` the new path of a rename or
    link, or the data of a file that was there. `mapped`: stored to a mapping. `at` is a position, or a size.
    """

    op: str
    mapped: bool = False
    process: int = 0
    inode: int = 0
    at: int = 0
    first: bytes = b""
    second: bytes = b""

    @property
    def path(self) -> str:
        return os.path.normpath(os.fsdecode(self.first))

    @property
    def target(self) -> str:
        return os.path.normpath(os.fsdecode(self.second))

    def packed(self) -> bytes:
        size = HEAD.size + len(self.first) + len(self.second)
        head = HEAD.pack(
            size, ord(self.op), self.mapped, 0, self.process, len(self.first), self.inode, self.at
        )
        return head + self.first + self.second


def read(path: Path) -> Iterator[Event]:
    """Yield the events of a trace, in their order."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        size, op, mapped, _, process, n, inode, position = HEAD.unpack_from(data, at)
        first = data[at + HEAD.size : at + HEAD.size + n]
        second = data[at + HEAD.size + n : at + size]
        yield Event(chr(op), bool(mapped), process, inode, position, first, second)
        at += size


def begin(path: Path, root: Path) -> None:
    """Begin a trace with the directory, and with what is in it."""
    with open(path, "wb") as file:
        file.write(Event(DIRECTORY_BEFORE, first=os.fsencode(root)).packed())
        for directory, directories, files in os.walk(root):
            for name in directories:
                file.write(Event(DIRECTORY_BEFORE, first=os.fsencode(os.path.join(directory, name))).packed())
            for name in files:
                there = Path(directory, name)
                first, inode = os.fsencode(there), there.lstat().st_ino
                file.write(Event(FILE_BEFORE, inode=inode, first=first, second=there.read_bytes()).packed())
