"""Every partition that a real broker wrote, read in place: all of it comes back, nothing changes."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from partitions import GOLDEN, Expected, Partition, read_expected

import segstore


@pytest.fixture(scope="module")
def untouched() -> Iterator[dict[Path, dict[str, object]]]:
    """Fingerprints of directories as they were before any test here; they must be so afterwards."""
    before: dict[Path, dict[str, object]] = {}
    yield before
    for root, fingerprint in before.items():
        assert fingerprint_of(root) == fingerprint, root


@pytest.fixture
def log(
    broker_partition: Partition, untouched: dict[Path, dict[str, object]]
) -> Iterator[segstore.PartitionLog]:
    if broker_partition.root not in untouched:
        untouched[broker_partition.root] = fingerprint_of(broker_partition.root)
    with segstore.open(broker_partition.root, mode="r") as store:
        yield store.partition(broker_partition.topic, broker_partition.index)


@pytest.mark.kind("costly unit tests")
def test_every_record_is_what_a_consumer_received(
    broker_partition: Partition, log: segstore.PartitionLog
) -> None:
    expected = broker_partition.expected()
    assert list(read_all(log, log.start_offset, 1 << 20)) == [as_read(record) for record in expected]


@pytest.mark.kind("costly unit tests")
def test_one_byte_at_a_time_is_the_same(
    broker_partition: Partition, log: segstore.PartitionLog, rng: random.Random
) -> None:
    """At least one record each time, however small the limit; offsets that are gone give the next one."""
    expected = broker_partition.expected()
    for start in rng.sample(range(log.start_offset, log.end_offset), 25 if len(expected) > 25 else 3):
        following = [as_read(record) for record in expected if record.offset >= start]
        records = list(log.read(start, max_bytes=1))
        assert records == following[: len(records)]
        assert bool(records) == bool(following)


@pytest.mark.kind("costly unit tests")
def test_look_up_by_time_finds_the_first_record_at_or_after(
    broker_partition: Partition, log: segstore.PartitionLog, rng: random.Random
) -> None:
    expected = broker_partition.expected()
    stamps = [record.timestamp for record in expected]
    for stamp in [
        min(stamps) - 1,
        min(stamps),
        max(stamps),
        max(stamps) + 1,
        *rng.sample(stamps, min(20, len(stamps))),
    ]:
        first = next((record.offset for record in expected if record.timestamp >= stamp), None)
        assert log.offset_for_time(stamp) == first, stamp


def test_the_log_ends_where_the_broker_said(broker_partition: Partition, log: segstore.PartitionLog) -> None:
    last = broker_partition.expected()[-1].offset
    markers = 1 if broker_partition.topic in ("flights-txn", "txn") else 0
    assert log.end_offset == log.high_watermark == last + 1 + markers
    with pytest.raises(segstore.errors.OffsetOutOfRangeError) as caught:
        log.read(log.end_offset + 1)
    assert (caught.value.start, caught.value.end) == (log.start_offset, log.end_offset)


@pytest.mark.parametrize("txn_index", [True, False], ids=["by .txnindex", "by control batches"])
def test_read_committed_hides_aborted_transactions(txn_index: bool, tmp_path: Path) -> None:
    """The third and fourth of six transactions are aborted: offsets 52 to 103 with their markers."""
    partition = tmp_path / "flights-txn-0"
    shutil.copytree(GOLDEN / "clean" / "flights-txn-0", partition, copy_function=shutil.copyfile)
    if not txn_index:
        (partition / f"{0:020d}.txnindex").unlink()
    expected = read_expected(GOLDEN / "records" / "flights-txn-0.jsonl.gz")
    committed = [as_read(record) for record in expected if not 52 <= record.offset <= 103]
    assert 0 < len(committed) < len(expected)
    with segstore.open(tmp_path, mode="r") as store:
        log = store.partition("flights-txn", 0)
        assert list(log.read(0, isolation_level="read_committed")) == committed
        assert list(log.read(0)) == [as_read(record) for record in expected]
        within = list(log.read(60, isolation_level="read_committed"))
        assert within == [record for record in committed if record[0] >= 60]


def read_all(log: segstore.PartitionLog, offset: int, max_bytes: int) -> Iterator[tuple[object, ...]]:
    while offset < log.end_offset:
        records = log.read(offset, max_bytes=max_bytes)
        yield from records
        assert records.next_offset > offset
        offset = records.next_offset


def as_read(record: Expected) -> tuple[object, ...]:
    """As a `Record`, which is a tuple."""
    return (record.offset, record.timestamp, record.key, record.value, record.headers)


def fingerprint_of(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            path = Path(directory, name)
            stat = path.stat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path)] = (stat.st_mode, stat.st_size, stat.st_mtime_ns, content)
    return found
