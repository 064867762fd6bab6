"""LMDB: a B+tree in a mapped file; keys are offsets, appended in order by a cursor's `putmulti`.

On disk: one environment. Threads: the follower has read transactions of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import lmdb

from .peer import PACKED, POLLS, Log, Peer, packed, polled, unpacked
from .records import Batch, Row, Seen
from .turn import APPEND, SCAN

MAP_BYTES = 4 << 30
VERSIONS = {"lmdb (Python)": lmdb.__version__, "LMDB": ".".join(map(str, lmdb.version()))}
SETTINGS = {
    "page cache": "sync=False, metasync=False",
    "synced": "sync=True, metasync=True, its defaults: fdatasync and a synchronous meta page a transaction",
    "follower": POLLS,
    "other": "one transaction a batch, cursor.putmulti(append=True); keys 8 bytes big-endian; "
    "writemap=False; no checksums",
}


class LmdbLog(Log):
    def __init__(self, directory: Path, synced: bool) -> None:
        self._env = lmdb.open(str(directory), map_size=MAP_BYTES, sync=synced, metasync=synced)
        self._next = 0

    def append(self, batch: Batch) -> None:
        pairs = [
            (at.to_bytes(8, "big"), packed(stamp, value))
            for at, stamp, value in zip(count(self._next), batch.timestamps, batch.values)
        ]
        with self._env.begin(write=True) as transaction:
            transaction.cursor().putmulti(pairs, append=True)
        self._next += len(batch)

    def rows(self) -> Iterator[Row]:
        with self._env.begin() as transaction:
            yield from map(unpacked, transaction.cursor().iternext(keys=False, values=True))

    def read(self, offset: int) -> Row:
        with self._env.begin() as transaction:
            return unpacked(transaction.get(offset.to_bytes(8, "big")))

    def follow(self) -> Iterator[list[Row]]:
        return followed(self._env)

    def apart(self) -> tuple[str, ...]:
        return "with_lmdb:follow_apart", self._env.path()

    def close(self) -> None:
        self._env.close()


def followed(env: lmdb.Environment) -> Iterator[list[Row]]:
    def rows_from(offset: int) -> list[Row]:
        with env.begin() as transaction:
            cursor = transaction.cursor()
            if not cursor.set_range(offset.to_bytes(8, "big")):
                return []
            return [unpacked(value) for value in cursor.iternext(keys=False, values=True)]

    return polled(rows_from)


def follow_apart(path: str) -> Iterator[list[Row]]:
    with lmdb.open(path, map_size=MAP_BYTES, readonly=True) as env:
        yield from followed(env)


class BareLog(LmdbLog):
    """The same, but a scan looks at no timestamp: what LMDB's cursor alone can do."""

    def scan(self) -> Seen:
        count = size = 0
        with self._env.begin() as transaction:
            for value in transaction.cursor().iternext(keys=False, values=True):
                count += 1
                size += len(value)
        return Seen(count, None, size - count * PACKED.size)


def bare_peer(session: ExitStack, directory: Path) -> Peer:
    return Peer("LMDB, bare cursor", VERSIONS, SETTINGS, BareLog, works=(APPEND, SCAN))


def peer(session: ExitStack, directory: Path) -> Peer:
    return Peer("LMDB", VERSIONS, SETTINGS, LmdbLog)
