"""`segstore.restore`: a store out of an archive, as it was at its newest moment, or earlier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from made_archive import make_archive
from stores import Clock, records, transact_and_consume, value_of

import segstore
from segstore import names

SMALL = {"segment.bytes": 1000}


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Path]:
    """Where a store is restored; it must be sound, and alone."""
    path = tmp_path / "restored"
    yield path
    left = [each.name for each in tmp_path.iterdir() if names.RESTORING in each.name]
    assert left == []
    if path.exists():
        assert segstore.check(path) == []


def content(path: Path) -> dict[tuple[str, int], tuple[int, int, list[segstore.Record]]]:
    """Return start, end and records of all partitions."""
    found = {}
    with segstore.open(path, mode="r") as store:
        for name, info in store.topics().items():
            for number in info.partition_ids:
                log = store.partition(name, number)
                found[name, number] = log.start_offset, log.end_offset, list(records(log))
    return found


def logs(path: Path) -> dict[str, bytes]:
    """Return the content of all logs by partition: the bytes of their segments, one after the other."""
    found: dict[str, bytes] = {}
    for each in sorted(path.glob("*-*/*.log")):
        found[each.parent.name] = found.get(each.parent.name, b"") + each.read_bytes()
    return found


def fill(store: segstore.Store, topic: str, n: int, partition: int = 0) -> None:
    for i in range(n):
        store.partition(topic, partition).append(value_of(i, 100), key=b"k%d" % i)


def test_a_restored_store_is_the_archived_one(store_dir: Path, restored: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", 2, {**SMALL, "compression.type": "zstd"})
        store.create_topic("empty", 3)
        fill(store, "t", 40)
        fill(store, "t", 3, 1)
        store.partition("t").delete_records(12)
        transact_and_consume(store)
    archive = make_archive(store_dir, tmp_path / "archive")
    sizes: list[int] = []
    made = segstore.restore(archive.uri, restored, progress=sizes.append)
    assert content(restored) == content(store_dir)
    assert logs(restored) == logs(store_dir)
    assert (made.bytes, made.time) == (sum(map(len, logs(store_dir).values())), 1_000)
    assert sum(sizes) == made.bytes
    with segstore.open(restored) as store, segstore.open(store_dir) as source:
        assert {n: (t.topic_id, t.config) for n, t in store.topics().items()} == {
            n: (t.topic_id, t.config) for n, t in source.topics().items()
        }
        assert store.partition("t").append(b"goes on") == 40
