"""persist-queue: its queue of files where the page cache is enough, its queue in SQLite where it is synced.

It takes one item a call and gives the oldest; reading takes items out, which only `task_done` makes final.
On disk: one directory. Threads: a queue is shared by them; `get` waits for `put`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from persistqueue import Empty, Queue, SQLiteQueue

from .peer import Log, NotOfferedError, Peer
from .records import Batch, Row

CHUNK = 1 << 20
SETTINGS = {
    "page cache": f"Queue of files, chunksize={CHUNK:,}: it syncs only a chunk that is full",
    "synced": "SQLiteQueue, auto_commit: WAL, synchronous=FULL, a transaction an item",
    "follower": "waits for a put: get",
    "other": "one item a call, as it takes no batches; pickle",
}


class FileLog(Log):
    def __init__(self, directory: Path, synced: bool) -> None:
        self._path = str(directory / "queue")
        self._queue = self._open()

    def _open(self) -> Queue:
        return Queue(self._path, chunksize=CHUNK, tempdir=self._path_made())

    def _path_made(self) -> str:
        Path(self._path).mkdir(exist_ok=True)
        return self._path

    def append(self, batch: Batch) -> None:
        put = self._queue.put
        for row in zip(batch.timestamps, batch.values, strict=True):
            put(row)

    def rows(self) -> Iterator[Row]:
        reader = self._open()
        for _ in range(reader.qsize()):
            yield reader.get()

    def read(self, offset: int) -> Row:
        raise NotOfferedError("a queue: no read by offset")

    def follow(self) -> Iterator[list[Row]]:
        yield []
        while True:
            try:
                yield [self._queue.get(timeout=0.1)]
            except Empty:
                yield []

    def apart(self) -> tuple[str, ...]:
        raise NotOfferedError("a queue sees what its own process has put")

    def close(self) -> None:
        del self._queue


class SqliteLog(FileLog):
    """A connection for putting and one for getting."""

    def _open(self) -> SQLiteQueue:
        return SQLiteQueue(self._path, multithreading=True)

    def rows(self) -> Iterator[Row]:
        return ((item["data"][0], item["data"][1]) for item in self._queue.queue())

    def close(self) -> None:
        self._queue.close()


def peer(session: ExitStack, directory: Path) -> Peer:
    def opened(at: Path, synced: bool) -> Log:
        return (SqliteLog if synced else FileLog)(at, synced)

    return Peer("persist-queue", {"persist-queue": version("persist-queue")}, SETTINGS, opened)
