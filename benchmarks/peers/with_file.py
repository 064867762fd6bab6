"""A bare file: os.write of whole batches, os.pread of one record. It is no store, but what stores build on.

On disk: one file of records of one size, a timestamp before each value. Threads: one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from platform import python_version

from .peer import PACKED, Log, Peer, packed, unpacked
from .records import Batch, Row, Seen
from .turn import APPEND, DURABLE, DURABLE_ONE, ONE, READ, SCAN

READ_BYTES = 1 << 20
SETTINGS = {
    "page cache": "os.write",
    "synced": "os.write, os.fdatasync",
    "follower": "none",
    "other": "records of one size; a scan reads 1 MiB at a time into one buffer, and looks at nothing; "
    "no checksums",
}


class FileLog(Log):
    def __init__(self, directory: Path, synced: bool) -> None:
        self._fd = os.open(directory / "records", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._synced, self._size = synced, 0

    def append(self, batch: Batch) -> None:
        data = b"".join(map(packed, batch.timestamps, batch.values))
        self._size = len(data) // len(batch)
        assert os.write(self._fd, data) == len(data)
        if self._synced:
            os.fdatasync(self._fd)

    def rows(self) -> Iterator[Row]:
        at = 0
        while data := os.pread(self._fd, self._size, at):
            yield unpacked(data)
            at += len(data)

    def scan(self) -> Seen:
        room, at = bytearray(READ_BYTES), 0
        while got := os.preadv(self._fd, [room], at):
            at += got
        count = at // self._size
        return Seen(count, None, at - count * PACKED.size)

    def read(self, offset: int) -> Row:
        return unpacked(os.pread(self._fd, self._size, offset * self._size))

    def close(self) -> None:
        os.close(self._fd)


def peer(session: ExitStack, directory: Path) -> Peer:
    works = (APPEND, SCAN, READ, ONE, DURABLE, DURABLE_ONE)
    return Peer("bare file", {"Python": python_version()}, SETTINGS, FileLog, works)
