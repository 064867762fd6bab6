"""SQLite with a write-ahead log: a table whose INTEGER PRIMARY KEY is the offset.

On disk: one database. Threads: the follower has a connection of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

from .peer import POLLS, Log, Peer, polled
from .records import Batch, Row

SETTINGS = {
    "page cache": "journal_mode=WAL, synchronous=OFF: no sync at all",
    "synced": "journal_mode=WAL, synchronous=FULL: fdatasync of the WAL a transaction",
    "follower": POLLS,
    "other": "one transaction a batch, executemany; cache_size 64 MiB, mmap_size 1 GiB; no checksums",
}
TABLE = "create table log (at integer primary key, stamp integer not null, value blob not null)"
INSERT = "insert into log values (?, ?, ?)"
SELECT = "select stamp, value from log where at {} ? order by at"


class SqliteLog(Log):
    def __init__(self, directory: Path, synced: bool) -> None:
        self._path, self._synced = directory / "log.db", synced
        self._db = self._connect()
        self._db.execute(TABLE)
        self._next = 0

    def _connect(self) -> sqlite3.Connection:
        return connected(self._path, self._synced)

    def append(self, batch: Batch) -> None:
        rows = zip(count(self._next), batch.timestamps, batch.values)
        self._db.execute("begin immediate")
        self._db.executemany(INSERT, rows)
        self._db.execute("commit")
        self._next += len(batch)

    def rows(self) -> Iterator[Row]:
        return self._db.execute(SELECT.format(">="), (0,))

    def read(self, offset: int) -> Row:
        row: Row = self._db.execute(SELECT.format("="), (offset,)).fetchone()
        return row

    def follow(self) -> Iterator[list[Row]]:
        return followed(self._path, self._synced)

    def apart(self) -> tuple[str, ...]:
        return "with_sqlite:followed", str(self._path)

    def close(self) -> None:
        self._db.close()


def connected(path: Path | str, synced: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=wal", f"synchronous={'full' if synced else 'off'}"):
        db.execute(f"pragma {pragma}")
    for pragma in ("cache_size=-65536", "mmap_size=1073741824"):
        db.execute(f"pragma {pragma}")
    return db


def followed(path: Path | str, synced: bool = False) -> Iterator[list[Row]]:
    with closing(connected(path, synced)) as db:
        yield from polled(lambda at: db.execute(SELECT.format(">="), (at,)).fetchall())


def peer(session: ExitStack, directory: Path) -> Peer:
    return Peer("SQLite", {"SQLite": sqlite3.sqlite_version}, SETTINGS, SqliteLog)
