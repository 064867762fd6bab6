"""Helpers for consumers: filled topics, and polls until records came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE

import segstore
from segstore.client.consumer import Consumer, ConsumerRecord
from segstore.coordinator.structs import TopicPartition
from segstore.storage.meta.tailed_ends import LOOK

LONG_MS = PATIENCE * 1000


def tp(partition: int = 0, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


def fill(
    store: segstore.Store, topic: str = "t", partitions: int = 1, records: int = 10, **config: Any
) -> None:
    """Create a topic whose partition p has the values b"p-0", b"p-1", ... in small batches."""
    store.create_topic(topic, partitions=partitions, config=config or None)
    for partition in range(partitions):
        append(store, records, topic, partition)


def append(store: segstore.Store, records: int, topic: str = "t", partition: int = 0) -> None:
    """Append more such values to a partition."""
    log = store.partition(topic, partition)
    first = log.end_offset
    for at in range(first, first + records, 4):
        log.append_batch([b"%d-%d" % (partition, i) for i in range(at, min(at + 4, first + records))])


def opened(path: Path, *topics: str, **settings: Any) -> tuple[segstore.Store, Consumer]:
    """Return a store opened read-only, and a consumer of it that begins at the log start offset."""
    store = segstore.open(path, mode="r")
    return store, Consumer(store, *topics, **{"auto_offset_reset": "earliest", **settings})


def earliest(store: segstore.Store, *topics: str, **settings: Any) -> Consumer:
    """Return a consumer that begins at the log start offset."""
    return Consumer(store, *topics, **{"auto_offset_reset": "earliest", **settings})


def drain(consumer: Consumer) -> list[ConsumerRecord]:
    """Return all records up to the present end."""
    return list(rounds(consumer))


def rounds(consumer: Consumer) -> Iterator[ConsumerRecord]:
    while polled := consumer.poll():
        for records in polled.values():
            yield from records


def offsets(records: list[ConsumerRecord], partition: int = 0) -> list[int]:
    return [record.offset for record in records if record.partition == partition]


def replace_waits(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[segstore.Store, float], object], *, then: bool = False
) -> None:
    """Have both ways in which a consumer waits call `wait` with the ms of the wait; with `then`, go on to
    wait after that.
    """
    wait_any, wait_for = segstore.Store.wait, segstore.Store.wait_for

    def any_(store: segstore.Store, seen: int, timeout_ms: float) -> None:
        wait(store, timeout_ms)
        if then:
            wait_any(store, seen, timeout_ms)

    def for_(store: segstore.Store, followed: Any, nudges: int, seconds: float) -> int:
        wait(store, seconds * 1000)
        return wait_for(store, followed, nudges, seconds) if then else LOOK

    monkeypatch.setattr(segstore.Store, "wait", any_)
    monkeypatch.setattr(segstore.Store, "wait_for", for_)
