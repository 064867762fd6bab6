"""`PartitionLog.stretch`: whole batches as a part of one segment's file, which stays open until released."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compaction import clean, open_compacted, put, roll
from faults import CountingFiles
from producers import send
from stores import Clock
from transfers import fill, stored

import segstore
from segstore import errors
from segstore.records import scan
from segstore.storage.log.transaction_markers import end_transaction
from segstore.storage.transfer.stretch import Stretch

FIELDS = ("position", "size", "base_offset", "last_offset")


@pytest.fixture
def log(store_dir: Path, rng: random.Random) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 20_000})
        log = store.partition("t", 0)
        fill(log, rng, 60_000)
        yield log


def content(stretch: Stretch) -> bytes:
    return os.pread(stretch.fileno(), len(stretch), stretch.position) if len(stretch) else b""


def test_random_stretches_are_the_stored_bytes(log: segstore.PartitionLog, rng: random.Random) -> None:
    """Each begins with the batch that holds its offset, and has as many whole ones as fit its segment."""
    data = stored(log)
    begin: dict[int, tuple[int, int]] = {}
    for at, size, base, last in zip(*(scan(data)[0][f].tolist() for f in FIELDS), strict=True):
        begin.update(dict.fromkeys(range(base, last + 1), (at, size)))
    for _ in range(60):
        offset, most = rng.randrange(log.end_offset), rng.choice([0, 1, 5000, rng.randrange(60_000), 1 << 62])
        with log.stretch(offset, most) as stretch:
            at, size = begin[offset]
            assert content(stretch) == data[at : at + len(stretch)]
            assert len(stretch) == size or size <= len(stretch) <= most
            after = stretch.next_offset
            assert after == log.end_offset or begin[after][0] == at + len(stretch)
            new_segment = after in {segment.base_offset for segment in log.view.segments}
            assert after == log.end_offset or new_segment or len(stretch) + begin[after][1] > most
            assert (stretch.high_watermark, stretch.last_stable_offset) == (log.end_offset, log.end_offset)
            assert (stretch.log_start_offset, stretch.aborted) == (0, None)
        assert stretch.fileno() == -1


def test_stretches_lead_from_the_start_to_the_end(log: segstore.PartitionLog) -> None:
    data, at = b"", 0
    while True:
        with log.stretch(at, 3000) as stretch:
            if not len(stretch):
                break
            data, at = data + content(stretch), stretch.next_offset
    assert (data, at) == (stored(log), log.end_offset)


def test_an_empty_stretch(log: segstore.PartitionLog) -> None:
    at_end, small = log.stretch(log.end_offset, 100), log.stretch(5, 10, min_one=False)
    assert [(len(s), s.fileno(), s.position) for s in (at_end, small)] == [(0, -1, 0)] * 2
    assert (at_end.next_offset, small.next_offset) == (log.end_offset, 5)
    assert len(log.stretch(5, 10)) > 10
    at_end.release()


def test_refused(log: segstore.PartitionLog) -> None:
    for offset in (-1, log.end_offset + 1):
        with pytest.raises(errors.OffsetOutOfRangeError):
            log.stretch(offset, 100)
    for arguments in ((0, -1), (0, 1.5), ("0", 1), (True, 1)):
        with pytest.raises((errors.InvalidArgumentError, errors.InvalidTypeError)):
            log.stretch(*arguments)
    with pytest.raises(errors.InvalidArgumentError, match="isolation_level"):
        log.stretch(0, 1, isolation_level="serializable")
    log.delete_records(10)
    with pytest.raises(errors.OffsetOutOfRangeError):
        log.stretch(9, 100)
    assert log.stretch(10, 100).log_start_offset == 10
    log.store.close()
    with pytest.raises(errors.StoreClosedError):
        log.stretch(10, 100)


def test_read_committed_ends_at_the_last_stable_offset_and_names_aborted_transactions(
    store_dir: Path,
) -> None:
    with segstore.open(store_dir, clock=Clock(step=1)) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"before")  # 0
        for pid in (7, 8):  # 1, 2
            send(log, pid, 0, txn=True)
        end_transaction([log], 7, 0, 0, commit=False)  # 3
        send(log, 7, 1, txn=True)  # 4
        end_transaction([log], 7, 0, 0, commit=True)  # 5
        committed, all_ = (
            log.stretch(0, 1 << 20, isolation_level=level) for level in ("read_committed", "read_uncommitted")
        )
        assert (committed.next_offset, committed.last_stable_offset, committed.aborted) == (2, 2, [(7, 1)])
        assert (all_.next_offset, all_.high_watermark, all_.aborted) == (6, 6, None)
        beyond = log.stretch(4, 100, isolation_level="read_committed")
        assert (len(beyond), beyond.next_offset, beyond.aborted) == (0, 4, [])
        end_transaction([log], 8, 0, 0, commit=False)  # 6
        log.append(b"after")  # 7
        found = {
            at: log.stretch(at, 1 << 20, isolation_level="read_committed").aborted for at in (0, 2, 4, 7)
        }
        assert found == {0: [(7, 1), (8, 2)], 2: [(7, 1), (8, 2)], 4: [(8, 2)], 7: []}
        assert log.stretch(0, 1, isolation_level="read_committed").aborted == []


def test_a_stretch_stays_readable_when_retention_has_removed_its_segment(log: segstore.PartitionLog) -> None:
    log.store.alter_topic("t", {"file.delete.delay.ms": 0})
    stretch = log.stretch(0, 1 << 20)
    before = content(stretch)
    log.delete_records(log.end_offset)
    assert not Path(log.store.path, "t-0", "00000000000000000000.log").exists()
    log.context.pool.close()
    assert content(stretch) == before
    assert len(before) == len(stretch) > 10_000
    fd = stretch.fileno()
    stretch.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_stretch_stays_readable_when_compaction_has_replaced_its_segment(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        log = store.partition("t")
        for i in range(20):
            put(log, (b"k%d" % (i % 3), b"%d" % i))
        roll(store)
        stretch = log.stretch(0, 1 << 20)
        before = content(stretch)
        clean(store)
        assert content(stretch) == before
        after = log.stretch(0, 1 << 20)
        assert content(after) != before
        assert after.next_offset > 0
        last = log.stretch(after.next_offset - 1, 1)
        assert last.next_offset >= after.next_offset


def test_a_stretch_stays_readable_when_its_topic_was_deleted(log: segstore.PartitionLog) -> None:
    stretch = log.stretch(0, 5000)
    before = content(stretch)
    log.store.delete_topic("t")
    assert content(stretch) == before
    with pytest.raises(errors.StoreClosedError):
        log.stretch(0, 5000)


def test_a_stretch_of_another_process_s_store(log: segstore.PartitionLog) -> None:
    log.append(b"last")
    with segstore.open(log.store.path, "r") as reading:
        there = reading.partition("t").stretch(5, 3000)
        assert content(there) == content(log.stretch(5, 3000))
        assert there.high_watermark == log.end_offset


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_it_reads_no_records_and_opens_no_file(store_dir: Path, rng: random.Random, level: str) -> None:
    files = CountingFiles()
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 20_000})
        fill(store.partition("t", 0), rng, 60_000)
    with segstore.open(store_dir, files=files) as store:  # no segment that was rolled is still to be flushed
        log = store.partition("t", 0)
        log.stretch(1, 1 << 20, isolation_level=level)
        files.clear()
        called: list[str] = []

        def profile(frame: object, event: str, function: Any) -> None:
            if event == "c_call" and getattr(function, "__name__", "").startswith("seg_"):
                called.append(function.__name__)

        sys.setprofile(profile)
        try:
            log.stretch(1, 1 << 20, isolation_level=level)
        finally:
            sys.setprofile(None)
        headers = ["attributes"] if level == "read_committed" else []
        assert [name for name, _ in files.calls] == ["find_stretch", *headers]
        assert called[-1 - len(headers) :] == ["seg_find_stretch", *(f"seg_{name}" for name in headers)]
