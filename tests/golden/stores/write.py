"""Writes the stores of this folder: `python write.py DIRECTORY`, with the version of segstore that is to be
remembered. Only public names are used, so that any version can run it.

Beside each store, `NAME.json.gz` says what the version that wrote the store has read back.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import segstore
from segstore import OffsetAndMetadata, TopicPartition

START_MS = 1_700_000_000_000
SMALL = {"segment.bytes": 2000, "index.interval.bytes": 200}
TOPICS: dict[str, dict[str, Any]] = {
    "plain": SMALL,
    "zstd": {"compression.type": "zstd"},
    "lz4": {"compression.type": "lz4"},
    "gzip": {"compression.type": "gzip"},
    "snappy": {"compression.type": "snappy"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01},
    "cut": SMALL,
    "txn": SMALL,
}


class Clock:
    """Goes on by 1 ms each time."""

    def __init__(self) -> None:
        self.now = START_MS

    def __call__(self) -> int:
        self.now += 1
        return self.now


def fill(store: segstore.Store) -> None:
    """Write something of each kind."""
    for name, config in TOPICS.items():
        store.create_topic(name, 2 if name == "txn" else 1, config)
        if name != "txn":
            log = store.partition(name)
            for i in range(40):
                key = b"key %d" % (i % 7) if name == "compacted" or i % 3 else None
                value = None if i % 11 == 5 else (b"%s %d " % (name.encode(), i)) * (1 + i % 5)
                log.append(value, key, [("n", b"%d" % i), ("none", None)] if i % 4 == 0 else ())
            log.append_batch(
                [b"many %d" % i for i in range(100)], keys=[b"m%d" % (i % 9) for i in range(100)]
            )
    store.sweep()
    store.partition("cut").delete_records(60)
    transactions(store)
    commits(store)


def transactions(store: segstore.Store) -> None:
    """One that is committed, one that is aborted, one that stays open in a killed store."""
    with segstore.Producer(store, transactional_id="golden", linger_ms=0) as producer:
        producer.init_transactions()
        for number, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
            producer.begin_transaction()
            for i in range(5):
                producer.send("txn", b"%d-%d" % (number, i), partition=i % 2, timestamp_ms=START_MS + i)
            end()
    with segstore.Producer(store, linger_ms=0) as producer:
        for i in range(5):
            producer.send("txn", b"idempotent %d" % i, partition=i % 2, timestamp_ms=START_MS + i)


def commits(store: segstore.Store) -> None:
    """Offsets of a group."""
    with segstore.Consumer(store, group_id="golden", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition("plain", 0), TopicPartition("txn", 1)])
        consumer.commit({TopicPartition("plain", 0): OffsetAndMetadata(17, "seventeen", -1)})
        consumer.commit({TopicPartition("txn", 1): OffsetAndMetadata(3, "", -1)})


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def records(log: segstore.PartitionLog, level: str) -> Iterator[list[Any]]:
    """What can be read of a partition."""
    at = log.start_offset
    while at < log.end_offset:
        found = log.read(at, isolation_level=level)
        for r in found:
            yield [r.offset, r.timestamp, text(r.key), text(r.value), [[k, text(v)] for k, v in r.headers]]
        if found.next_offset == at:
            return
        at = found.next_offset


def told(store: segstore.Store) -> dict[str, Any]:
    """All that a reader sees of a store."""
    partitions = {}
    for name, info in sorted(store.topics().items()):
        for number in range(info.partitions):
            log = store.partition(name, number)
            partitions[f"{name}-{number}"] = {
                "start": log.start_offset,
                "end": log.end_offset,
                "stable": log.last_stable_offset,
                "uncommitted": list(records(log, "read_uncommitted")),
                "committed": list(records(log, "read_committed")),
            }
    return {
        "topics": {
            name: [info.partitions, dict(sorted(info.config.items()))]
            for name, info in sorted(store.topics().items())
        },
        "partitions": partitions,
    }


def committed(store: segstore.Store) -> dict[str, Any]:
    """The offsets of the group."""
    with segstore.Consumer(store, group_id="golden", enable_auto_commit=False) as consumer:
        places = [TopicPartition("plain", 0), TopicPartition("txn", 1)]
        consumer.assign(places)
        return {f"{tp.topic}-{tp.partition}": consumer.committed(tp) for tp in places}


def write(path: Path, how: str) -> None:
    """Write one store; `how`: it is closed, or its process killed."""
    store = segstore.open(path, clock=Clock())
    fill(store)
    if how == "closed":
        store.close()
        return
    producer = segstore.Producer(store, transactional_id="open", linger_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("txn", b"open", partition=0, timestamp_ms=START_MS).get()
    store.partition("plain").append(b"the last one")
    os._exit(9)


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for how in ("closed", "killed"):
        path = target / how
        subprocess.run([sys.executable, __file__, str(path), how], check=False)
        with segstore.open(path, "r") as store:
            seen = told(store)
        with tarfile.open(target / f"{how}.tar.gz", "w:gz") as archive:
            archive.add(path, how)
        with segstore.open(path, clock=Clock()) as store:
            seen["offsets"] = committed(store)
        (target / f"{how}.json.gz").write_bytes(gzip.compress(json.dumps(seen).encode(), mtime=0))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        write(Path(sys.argv[1]), sys.argv[2])
    else:
        main(Path(sys.argv[1]))
