"""Partitions that a real Kafka 2.8.2 broker wrote as messages of magic 0 and 1: what is read of them, as they
are and after an upgrade, is what an ordinary consumer received.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import message_sets
import pytest
from drawn_sets import plain_batches
from oracle import decode_batches
from partitions import GOLDEN, Expected, read_expected
from stores import records

import segstore

OLD = GOLDEN / "old"
PARTITIONS = sorted(path.name for path in (OLD / "clean").iterdir())
TYPES = {"NoTimestamp": 0, "CreateTime": 0, "LogAppendTime": 1}

Row = tuple[int, int, int, "bytes | None", "bytes | None"]


def rows(log: segstore.PartitionLog, **options: int) -> Iterator[Row]:
    at = log.start_offset
    while at < log.end_offset:
        found = log.read(at, **options)
        for record, kind in zip(found, found.timestamp_types.tolist(), strict=True):
            yield record.offset, record.timestamp, kind, record.key, record.value
        at = found.next_offset


def expected(name: str) -> list[Row]:
    found: list[Expected] = read_expected(OLD / "records" / f"{name}.jsonl.gz")
    return [(r.offset, r.timestamp, TYPES[r.timestamp_type], r.key, r.value) for r in found]


def copied(path: Path, name: str) -> Path:
    shutil.copytree(OLD / "clean" / name, path / name, copy_function=shutil.copyfile)
    return path


def data_of(path: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(path.glob("*.log"))]


@pytest.mark.parametrize("name", PARTITIONS)
def test_it_is_read_in_place(name: str, tmp_path: Path) -> None:
    """Record for record, in large reads and in the smallest; nothing changes."""
    path = copied(tmp_path, name)
    before = data_of(path / name)
    with segstore.open(path, mode="r") as store:
        log = store.partition(name.removesuffix("-0"))
        assert list(rows(log)) == expected(name)
        assert list(rows(log, max_bytes=1)) == expected(name)
        offsets = [row[0] for row in expected(name)]
        assert [(r.offset, r.key, r.value) for r in log.read_many(offsets)] == [
            (offset, key, value) for offset, _, _, key, value in expected(name)
        ]
        stamps = [row[1] for row in expected(name) if row[1] >= 0]
        for stamp in stamps[:: max(len(stamps) // 7, 1)]:
            first = min(offset for offset, at, *_ in expected(name) if at >= stamp)
            assert log.offset_for_time(stamp) == first
    assert data_of(path / name) == before
    assert segstore.check(path) == []


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name.startswith("magic")])
def test_the_oracle_reads_the_same(name: str) -> None:
    """... and the bytes are of the magic that the partition is named for."""
    found = [m for data in data_of(OLD / "clean" / name) for m in message_sets.messages(data)]
    assert [(m.offset, m.timestamp, int(m.append_time), m.key, m.value) for m in found] == expected(name)
    entries = [e for data in data_of(OLD / "clean" / name) for _, e in message_sets.entries(data)]
    assert {e.magic for e in entries} == {int(name[5])}


def test_every_codec_is_there() -> None:
    """... in both magics, plain and nested; with gaps in wrappers, and magic 2 beside them."""
    seen, batches, gaps = set(), 0, 0
    for name in PARTITIONS:
        for data in data_of(OLD / "clean" / name):
            at = 0
            while at < len(data):
                if data[at + 16] == 2:
                    batches, at = batches + 1, at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
                    continue
                whole = message_sets.split(data, at)
                entry, at = message_sets.parse(whole), at + len(whole)
                seen.add((entry.magic, entry.codec))
                said = message_sets.said(entry)
                gaps += said[-1].offset - said[0].offset + 1 > len(said)
    assert seen == {(magic, codec) for magic in (0, 1) for codec in range(4)}
    assert batches > 10
    assert gaps >= 2


@pytest.mark.parametrize("name", PARTITIONS)
def test_it_says_the_same_after_an_upgrade(name: str, store_dir: Path) -> None:
    topic, path = name.removesuffix("-0"), copied(store_dir, name)
    with segstore.open(path) as store:
        log = store.partition(topic)
        assert list(rows(log)) == expected(name)
        end = log.append(b"behind the old ones")
        (done,) = store.upgrade()
        assert done.error is None
        # By segment.ms what was appended may lie in a segment of its own.
        assert done.records - len(expected(name)) in (0, 1)
        assert list(rows(log))[:-1] == expected(name)
        assert [r.offset for r in records(log)][-1] == end
        assert store.upgrade() == ()
    for left in (path / ".kafka_cleanshutdown", path / name / "leader-epoch-checkpoint"):
        left.unlink()
    with segstore.open(path) as store:
        assert list(rows(store.partition(topic)))[:-1] == expected(name)
    for data in data_of(path / name):
        decode_batches(plain_batches(data))
