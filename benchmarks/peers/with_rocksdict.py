"""RocksDB through rocksdict: an LSM tree in raw mode; keys are offsets, a WriteBatch a batch.

On disk: one database. Threads: RocksDB flushes and compacts on threads of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from rocksdict import AccessType, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from .peer import POLLS, Log, Peer, packed, polled, unpacked
from .records import Batch, Row

SETTINGS = {
    "page cache": "WriteOptions.sync=False: written to the WAL's file, not synced",
    "synced": "WriteOptions.sync=True: fdatasync of the WAL a WriteBatch",
    "follower": POLLS,
    "other": "raw mode, one WriteBatch a batch; keys 8 bytes big-endian; no compression, 2 background jobs; "
    "block and WAL checksums on, as by default",
}


class RocksLog(Log):
    def __init__(self, directory: Path, synced: bool) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(DBCompressionType.none())
        options.increase_parallelism(2)
        self._db = Rdict(str(directory), options)
        writing = WriteOptions()
        writing.sync = synced
        self._db.set_write_options(writing)
        self._next = 0

    def append(self, batch: Batch) -> None:
        together = WriteBatch(raw_mode=True)
        put = together.put
        for at, stamp, value in zip(count(self._next), batch.timestamps, batch.values):
            put(at.to_bytes(8, "big"), packed(stamp, value))
        self._db.write(together)
        self._next += len(batch)

    def rows(self) -> Iterator[Row]:
        return map(unpacked, self._db.values())

    def read(self, offset: int) -> Row:
        return unpacked(self._db[offset.to_bytes(8, "big")])

    def follow(self) -> Iterator[list[Row]]:
        return polled(lambda at: list(map(unpacked, self._db.values(from_key=at.to_bytes(8, "big")))))

    def apart(self) -> tuple[str, ...]:
        return "with_rocksdict:follow_apart", self._db.path()

    def close(self) -> None:
        self._db.close()


def follow_apart(path: str) -> Iterator[list[Row]]:
    """A secondary instance, which reads the primary's WAL when it is told to."""
    with TemporaryDirectory() as own:
        db = Rdict(path, Options(raw_mode=True), access_type=AccessType.secondary(own))

        def rows_from(offset: int) -> list[Row]:
            db.try_catch_up_with_primary()
            return list(map(unpacked, db.values(from_key=offset.to_bytes(8, "big"))))

        yield from polled(rows_from)


def peer(session: ExitStack, directory: Path) -> Peer:
    return Peer("RocksDB", {"rocksdict": version("rocksdict")}, SETTINGS, RocksLog)
