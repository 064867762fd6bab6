"""segstore: lists of bytes in and records out, as all peers do it; and columns, which is how it does it best.

On disk: one topic of one partition. Threads: the follower is a `Consumer`, which waits for publications.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import numpy as np

import segstore

from .peer import Log, Peer
from .records import Batch, Row, Seen

READ_BYTES = 1 << 20
SETTINGS = {
    "page cache": "Kafka's defaults: flush.messages and flush.ms not set",
    "synced": "flush.messages=1: fdatasync before an append returns",
    "follower": "waits for a publication: Consumer.poll",
    "other": "compression.type=none; every CRC checked; 64 KiB batches",
}


class SegstoreLog(Log):
    def __init__(self, directory: Path, synced: bool) -> None:
        self._store = segstore.open(directory)
        self._store.create_topic("t", config={"flush.messages": 1} if synced else None)
        self._log = self._store.partition("t", 0)

    def append(self, batch: Batch) -> None:
        if len(batch) == 1:
            self._log.append(batch.values[0], timestamp=batch.timestamps[0])
        else:
            self._log.append_batch(batch.values, timestamps=batch.timestamps)

    def _reads(self) -> Iterator[segstore.Records]:
        at, end = 0, self._log.end_offset
        while at < end:
            records = self._log.read(at, READ_BYTES)
            yield records
            at = records.next_offset

    def rows(self) -> Iterator[Row]:
        for records in self._reads():
            yield from zip(records.timestamps.tolist(), records.values, strict=True)

    def read(self, offset: int) -> Row:
        record = self._log.read_one(offset)
        return record.timestamp, record.value

    def follow(self) -> Iterator[list[Row]]:
        return followed(self._store)

    def apart(self) -> tuple[str, ...]:
        return "with_segstore:follow_apart", self._store.path

    def close(self) -> None:
        self._store.close()


def followed(store: segstore.Store) -> Iterator[list[Row]]:
    with segstore.Consumer(store, "t", auto_offset_reset="earliest") as consumer:
        consumer.poll()
        yield []
        while True:
            found = consumer.poll(timeout_ms=100)
            yield [(record.timestamp, record.value) for records in found.values() for record in records]


def follow_apart(path: str) -> Iterator[list[Row]]:
    with segstore.open(path, mode="r") as store:
        yield from followed(store)


class ColumnLog(SegstoreLog):
    """Appends numpy columns, scans columns: no Python object per record."""

    def append(self, batch: Batch) -> None:
        self._log.append_batch(batch.column, timestamps=batch.stamps)

    def scan(self) -> Seen:
        count = stamps = size = touched = 0
        for records in self._reads():
            values = records.values
            count += len(records)
            stamps += int(records.timestamps.sum())
            size += int(values.lengths.sum())
            touched += int(np.frombuffer(values.arena, np.uint8)[values.at].sum())
        assert touched or not count
        return Seen(count, stamps, size)


VERSIONS = {"segstore": version("segstore")}


def peer(session: ExitStack, directory: Path) -> Peer:
    return Peer("segstore", VERSIONS, SETTINGS, SegstoreLog)


def column_peer(session: ExitStack, directory: Path) -> Peer:
    return Peer(
        "segstore, columns", VERSIONS, SETTINGS, ColumnLog, works=("append", "scan", "durable by 100")
    )
