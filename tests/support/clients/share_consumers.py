"""Share consumers over stores: groups that begin at the earliest offset, and what they are given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from consumers import fill

import segstore
from segstore import AcknowledgeType, ConsumerRecord, ShareConsumer
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
RENEW = AcknowledgeType.RENEW
FEW = {
    "offsets.topic.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.share.min.record.lock.duration.ms": 1000,
}
"""Internal topics that are made fast, and locks that may be short."""
EARLIEST = {"share.auto.offset.reset": "earliest"}


@contextmanager
def opened(path: Path, records: int = 10, partitions: int = 1, **config: Any) -> Iterator[segstore.Store]:
    """An open store whose topic "t" has records, in batches of four, and whose groups g and h begin at its
    start.
    """
    with segstore.open(path, config={**FEW, **config}) as store:
        if "t" not in store.topics():
            fill(store, partitions=partitions, records=records)
            for group in ("g", "h"):
                set_group(store, group, **EARLIEST)
        yield store


def set_group(store: segstore.Store, group: str = "g", **config: Any) -> None:
    """Set settings of a group, whose names have dots."""
    admin = segstore.AdminClient(store)
    admin.alter_configs([segstore.ConfigResource("GROUP", group, config)])


def worker(store: segstore.Store, *topics: str, group: str = "g", **settings: Any) -> ShareConsumer:
    """A share consumer of topic "t", in explicit mode unless the settings say otherwise."""
    settings = {"share_acknowledgement_mode": "explicit", **settings}
    return ShareConsumer(store, *(topics or ("t",)), group_id=group, **settings)


def offsets(records: list[ConsumerRecord]) -> list[int]:
    return [record.offset for record in records]


def counts(records: list[ConsumerRecord]) -> dict[int, int | None]:
    """Delivery counts by offset."""
    return {record.offset: record.delivery_count for record in records}


def state(store: segstore.Store, group: str = "g", partition: int = 0) -> tuple[int, int]:
    """The durable start offset of a share partition, and its lag."""
    key = ShareKey(group, store.topics()["t"].topic_id, partition)
    found = shared(store, ShareCoordinator).offsets(group, [key])[key]
    return found.start, found.lag


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    """Topic "t" has ten records in three batches."""
    with opened(store_dir) as store:
        yield store


class Refusing:
    """Deserializes all but some values; counts its ends."""

    def __init__(self, *values: bytes) -> None:
        self.values, self.ends = values, 0

    def deserialize(self, _topic: str, data: bytes) -> bytes:
        if data in self.values:
            raise ZeroDivisionError(data)
        return data

    def close(self) -> None:
        self.ends += 1


def members(store: segstore.Store, group: str = "g") -> int:
    info = shared(store, GroupCoordinator).describe_share(group)
    return 0 if info is None else len(info.members)
