"""Mirrors of our own server in this process: what they must have, and a source that can be set back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, until

import segstore
from segstore.records import scan
from segstore.testing import Broker

QUICK = {
    "metadata.max.age.ms": 100,
    "fetch.max.wait.ms": 50,
    "retry.backoff.ms": 5,
    "reconnect.backoff.ms": 5,
    "sync.group.offsets.interval.seconds": 1,
    "sync.topic.configs.interval.seconds": 1,
}
"""Settings of a mirror that hears of everything at once."""


def mirror(broker: Broker, directory: Path, topics: Any = ".*", **options: Any) -> segstore.Mirror:
    """Return a mirror that hears of everything at once; `config` is added to its settings."""
    config = {**QUICK, "sync.group.offsets.enabled": False, **options.pop("config", {})}
    few = {"offsets.topic.num.partitions": 1}
    return segstore.mirror(
        broker.bootstrap_servers, directory, topics, config=config, store_config=few, **options
    )


def stored(root: str | Path, topic: str, partition: int | str) -> bytes:
    """Return the batches of a partition as they are on disk, one segment after the other."""
    found = b""
    for path in sorted((Path(root) / f"{topic}-{partition}").glob("*.log")):
        data = path.read_bytes()
        batches, _ = scan(data)
        found += data[: int(batches["size"].sum())]
    return found


def await_equal(running: segstore.Mirror, source: segstore.Store) -> None:
    """Wait until the mirror has what the source has, of all topics that are not internal."""
    wanted = {
        (name, n): source.partition(name, n).end_offset
        for name, info in source.topics().items()
        if not info.internal
        for n in info.partition_ids
    }

    def there() -> bool:
        running._check()
        return {(each.topic, each.partition): each.end_offset for each in running.partitions()} == wanted

    until(there)


def assert_equal(directory: Path, source: str | Path) -> None:
    """The same bytes, leader epochs and ids of topics in each partition that is mirrored."""
    names = [path.name for path in directory.iterdir() if path.is_dir() and path.name != ".segstore"]
    mirrored = [name.rpartition("-") for name in names if not name.startswith("__")]
    assert mirrored
    for topic, _, number in mirrored:
        assert stored(directory, topic, int(number)) == stored(source, topic, int(number)), (topic, number)
        ours, theirs = (Path(root) / f"{topic}-{number}" for root in (directory, source))
        assert epochs(ours) == epochs(theirs), (topic, number)
        metadata = [(path / "partition.metadata").read_text().strip() for path in (ours, theirs)]
        assert metadata[0] == metadata[1], (topic, number)


def epochs(partition: Path) -> list[tuple[int, int]]:
    """Return the leader epochs in which anything was written: a follower hears of no others."""
    lines = (partition / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    found = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines)]
    topic, _, number = partition.name.rpartition("-")
    batches, _ = scan(stored(partition.parent, topic, number))
    written = set(batches["leader_epoch"].tolist())
    return [each for each in found if each[0] in written]


@contextmanager
def mirrored(
    broker: Broker, directory: Path, topics: Any = ".*", **options: Any
) -> Iterator[segstore.Mirror]:
    """Run a mirror that has caught up."""
    with mirror(broker, directory, topics, **options) as running:
        assert running.wait_caught_up(PATIENCE * 1000)
        yield running


@pytest.fixture
def directory(store_dir: Path) -> Path:
    """The directory of a mirror, which is checked at the end."""
    return store_dir
