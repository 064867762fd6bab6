"""diskcache: a dictionary in SQLite; keys are offsets, a `transact()` a batch.

On disk: one directory. Threads: each has a connection of its own, which diskcache makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from itertools import count
from pathlib import Path

from diskcache import Cache

from .peer import POLLS, Log, Peer, packed, polled, unpacked
from .records import Batch, Row

SETTINGS = {
    "page cache": "sqlite_synchronous=0 (OFF): no sync at all",
    "synced": "sqlite_synchronous=2 (FULL): fdatasync of the WAL a transaction",
    "follower": POLLS,
    "other": "eviction_policy='none', cull_limit=0, statistics off; one transact() a batch; else its "
    "defaults (WAL, cache_size 8,192 pages, mmap_size 64 MiB)",
}


class CacheLog(Log):
    def __init__(self, directory: Path, synced: bool) -> None:
        self._cache = Cache(
            str(directory), eviction_policy="none", cull_limit=0, sqlite_synchronous=2 if synced else 0
        )
        self._next = 0

    def append(self, batch: Batch) -> None:
        add = self._cache.add
        with self._cache.transact():
            for at, stamp, value in zip(count(self._next), batch.timestamps, batch.values):
                add(at, packed(stamp, value))
        self._next += len(batch)

    def rows(self) -> Iterator[Row]:
        return (unpacked(self._cache[key]) for key in self._cache.iterkeys())

    def read(self, offset: int) -> Row:
        return unpacked(self._cache[offset])

    def follow(self) -> Iterator[list[Row]]:
        return followed(self._cache)

    def apart(self) -> tuple[str, ...]:
        return "with_diskcache:follow_apart", self._cache.directory

    def close(self) -> None:
        self._cache.close()


def followed(cache: Cache) -> Iterator[list[Row]]:
    def rows_from(offset: int) -> list[Row]:
        found = []
        while (data := cache.get(offset + len(found))) is not None:
            found.append(unpacked(data))
        return found

    return polled(rows_from)


def follow_apart(directory: str) -> Iterator[list[Row]]:
    with Cache(directory) as cache:
        yield from followed(cache)


def peer(session: ExitStack, directory: Path) -> Peer:
    return Peer("diskcache", {"diskcache": version("diskcache")}, SETTINGS, CacheLog)
