"""Helpers for logs of replicas, which are opened, read and compared with their leader's bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stores import START_MS, Clock

import segstore
from segstore.records import scan
from segstore.storage.log.replica import Replica

SMALL = {"segment.bytes": 600, "index.interval.bytes": 100}


def log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def replica_of(log: segstore.PartitionLog, high_watermark: int = 0) -> Replica:
    store = log.store
    assert isinstance(store, segstore.Store)
    return store.engine.partitions.replica(log.topic, log.partition, high_watermark)  # type: ignore[union-attr]


def opened(path: Path, files: Any = None, config: dict[str, Any] = SMALL) -> segstore.PartitionLog:
    more = {} if files is None else {"files": files}
    store = segstore.open(path, clock=Clock(START_MS), **more)
    if "t" not in store.topics():
        store.create_topic("t", 1, config)
    return store.partition("t")


def closed(log: segstore.PartitionLog) -> None:
    """Close the store as a plain one, whose readers see all."""
    store = log.store
    assert isinstance(store, segstore.Store)
    if not log.context.closed:
        log.partition_for_write().visible.set_high_watermark(1 << 60)
    store.close()


def read(log: segstore.PartitionLog, isolation_level: str = "read_uncommitted") -> list[segstore.Record]:
    """All that a reader sees."""
    found, at = [], log.start_offset
    while at < log.end_offset:
        records = log.read(at, isolation_level=isolation_level)
        found += list(records)
        if records.next_offset == at:
            break
        at = records.next_offset
    return found


def ends(data: bytes) -> list[int]:
    return [int(last) + 1 for last in scan(data)[0]["last_offset"]]


def part_below(data: bytes, offset: int) -> bytes:
    """The batches that lie below an offset whole."""
    batches = scan(data)[0]
    return data[: int(batches["size"][batches["last_offset"] < offset].sum())]
