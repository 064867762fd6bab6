"""Promise: a snapshot of the metadata is made when so much log, or so much time, has passed since the last
one, and says all that the metadata says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from metadata_logs import ALL, Quorum, assert_sound, snapshots_of
from stores import START_MS, Clock
from waiting import until

from segstore.files import Files
from segstore.replication.core.registration import BrokerRegistration
from segstore.replication.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
    PartitionKey,
)
from segstore.replication.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from segstore.replication.metadata.snapshot_generator import SnapshotGenerator
from segstore.replication.metadata.snapshots import records_of

D0, D1, D2 = (f"AAAAAAAAAAAAAAAAAAAAA{letter}" for letter in "Qgw")
TOPIC_IDS = ("OqyzI-goTjC51rYcKxyWJw", "OqyzI-goTjC51rYcKxyWJg")
ORDERED: list[MetadataRecord] = [
    FeatureLevelRecord("metadata.version", 27),
    FeatureLevelRecord("eligible.leader.replicas.version", 1),
    RegisterBrokerRecord(0, TOPIC_IDS[0], 11, False, False, None, (D0,)),
    RegisterBrokerRecord(1, TOPIC_IDS[1], 12, True, False, None, (D1,)),
    RegisterBrokerRecord(2, TOPIC_IDS[0], 13, False, True, None, (D2,)),
    TopicRecord("a", TOPIC_IDS[0]),
    PartitionRecord(0, TOPIC_IDS[0], (0, 1), (0,), (), (), 0, 5, 9, 0, (D0, D1), (1,), None),
    PartitionRecord(1, TOPIC_IDS[0], (1, 2), (1,), (2,), (1,), -1, 6, 8, 1, (D1, D2), None, (2,)),
    TopicRecord("b", TOPIC_IDS[1]),
    PartitionRecord(3, TOPIC_IDS[1], (2,), (2,), (), (), 2, 0, 0, 0, (D2,)),
    ConfigRecord(BROKER_RESOURCE, "", "x", "y"),
    ConfigRecord(TOPIC_RESOURCE, "a", "retention.ms", "7"),
    ConfigRecord(TOPIC_RESOURCE, "a", "segment.bytes", ""),
]  # fmt: skip
"""Everything that an image can hold, in Kafka's order."""


def image() -> MetadataImage:
    made = MetadataImage()
    for offset, record in enumerate(ORDERED):
        made.apply(record, offset)
    return made


def test_an_image_is_written_in_kafkas_order_and_read_back() -> None:
    made = image()
    written = list(made.records())
    assert written[0] == ORDERED[0]
    assert sorted(map(repr, written)) == sorted(map(repr, ORDERED))
    kinds = [type(record).__name__ for record in written]
    assert kinds == [type(record).__name__ for record in ORDERED]
    again = MetadataImage()
    for record in written:
        again.apply(record, made.next_offset - 1)
    assert vars(again) == vars(made)
    assert again.brokers[2] == BrokerRegistration(13, TOPIC_IDS[0], False, True)
    assert again.partitions[PartitionKey("a", 1)].last_known_elr == (2,)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert_sound(tmp_path)


DUE: dict[str, tuple[dict[str, int], float, bool]] = {
    "so many bytes": ({"max_record_bytes_between_snapshots": 400}, 0, True),
    "too few bytes": ({"max_record_bytes_between_snapshots": 1 << 20}, 0, False),
    "so much time": ({"max_snapshot_interval_ms": 60_000}, 60.0, True),
    "too early": ({"max_snapshot_interval_ms": 60_000}, 59.0, False),
    "never by time": ({"max_snapshot_interval_ms": 0}, 1e9, False),
    "an hour by default": ({}, 3_600.0, True),
}


@pytest.mark.parametrize("name", DUE)
def test_a_snapshot_is_made_when_it_is_due(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    settings, passes, due = DUE[name]
    opened = Quorum(root, clock=Clock(START_MS), **settings)
    made, now = MetadataImage(), time.monotonic()
    for offset, record in opened.log.replay():
        made.apply(record, offset)
    generator = SnapshotGenerator(opened.log, Clock(START_MS + 5))
    first = opened.log.append(ORDERED)
    for offset, record in enumerate(ORDERED, first):
        made.apply(record, offset)
    monkeypatch.setattr(time, "monotonic", lambda: now + passes + 0.5)
    generator.look(made)
    monkeypatch.undo()
    assert generator._making or opened.log.uncovered_bytes == 0 or not due
    if due:
        until(lambda: all(snapshots_of(root, voter) for voter in ALL))
    generator.look(made)  # nothing more counts
    opened.close()
    if not due:
        assert snapshots_of(root, 0) == []
        return
    (found,) = snapshots_of(root, 0)
    assert found.end_offset == made.next_offset
    path = root / "0/__cluster_metadata-0" / found.name
    assert list(records_of(Files(), str(path))) == list(made.records())
    bytes_ = [(root / str(voter) / "__cluster_metadata-0" / found.name).read_bytes() for voter in ALL]
    assert bytes_[0] == bytes_[1] == bytes_[2]
    assert_goes_on(root, made, opened.log.next_offset)


def assert_goes_on(root: Path, made: MetadataImage, next_offset: int) -> None:
    """The next open begins with the snapshot, and counts only the bytes behind it."""
    opened = Quorum(root)
    again = MetadataImage()
    for offset, record in opened.log.replay():
        again.apply(record, offset)
    said: list[dict[str, Any]] = [{**vars(each), "next_offset": 0} for each in (again, made)]
    assert said[0] == said[1]
    assert again.next_offset == next_offset + 1
    assert 0 < opened.log.uncovered_bytes < 100
    opened.close()
