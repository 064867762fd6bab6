"""Grants over real logs: what the log has lost, transactions, batches and bytes (Q18 to Q27, Q41 to Q45; S8
to S12).
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from share_stores import ACCEPT, GAP, LOCK_MS, RELEASE, ShareStore, filled

import segstore
from segstore.coordinator.share.core.values import AcquireMode
from segstore.errors import CorruptRecordError
from segstore.records import Records

SEALING = {"segment.bytes": 512, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


def offsets(parts: object) -> list[int]:
    return [n for part in parts for n in part.offsets.tolist()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("sizes", [(1,) * 12, (10, 10, 10), (500, 500), (3, 500, 1, 7)], ids=str)
@pytest.mark.parametrize("want", [1, 3, 499, 500, 501])
@pytest.mark.parametrize("mode", list(AcquireMode), ids=str)
def test_s12_how_much_is_granted(
    store_dir: Path, sizes: tuple[int, ...], want: int, mode: AcquireMode
) -> None:
    ends = list(itertools.accumulate(sizes))
    with filled(store_dir, *sizes) as group:
        whole = next((end for end in ends if end >= want), ends[-1])
        expected = whole if mode is AcquireMode.BATCH_OPTIMIZED else min(want, ends[-1])
        found = group.acquire(want, mode=mode)
        assert found is not None
        granted = [n for first, last, _ in found.acquired for n in range(first, last + 1)]
        assert granted == list(range(expected))
        stretch = found.stretch
        assert stretch is not None
        assert stretch.next_offset == next(end for end in ends if end >= expected)
        data = stretch.read(group.store.context.files)
        assert data == group.log.stored(0, len(stretch))
        assert len(data) == len(stretch)
        assert offsets(found.reads()) == list(range(stretch.next_offset))


def test_q20_a_stretch_has_no_batches_before_and_behind_what_is_granted(store_dir: Path) -> None:
    with filled(store_dir, 4, 4, 4, 4) as group:
        group.runs(4)
        assert group.runs(2, mode=AcquireMode.RECORD_LIMIT) == [(4, 5, 1)]
        found = group.acquire(3, mode=AcquireMode.RECORD_LIMIT)
        assert found is not None
        assert found.acquired == ((6, 7, 1), (8, 8, 1))
        assert found.stretch is not None
        assert found.stretch.next_offset == 12
        records = list(found.reads())
        assert offsets(records) == list(range(6, 12))


def test_large_batches_and_small_ones_are_told_by_their_headers(store_dir: Path) -> None:
    with ShareStore(store_dir) as group:
        group.begin()
        for n in range(8):
            group.log.append_batch([bytes(20_000 if n % 2 else 10)] * 3)
        seen = []
        while (found := group.acquire(4)) is not None:
            assert found.stretch is not None
            seen += [(first, last) for first, last, _ in found.acquired]
            assert [n for n in offsets(found.reads()) if n <= found.last_offset][-1] == found.last_offset
        assert seen == [(0, 5), (6, 11), (12, 17), (18, 23)]


def test_a_fetch_goes_on_in_the_next_segment(store_dir: Path) -> None:
    with ShareStore(store_dir) as group:
        group.store.alter_topic("t", {"segment.bytes": 300})
        group.begin()
        for _ in range(12):
            group.log.append_batch([b"x" * 40] * 2)
        seen = []
        while runs := group.runs(100):
            seen += runs
        assert seen[0][0] == 0
        assert seen[-1][1] == 23
        assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(seen))


def test_s11_a_held_record_stops_the_partition_at_the_window(store_dir: Path) -> None:
    with filled(store_dir, 500, 50) as group:
        group.alter(share_partition_max_record_locks=100)
        assert group.runs() == [(0, 499, 1)]
        group.ack((10, 499, ACCEPT))
        assert group.runs(member="n") == []
        group.ack((0, 8, ACCEPT))
        assert group.runs(member="n") == []
        group.ack((9, 9, ACCEPT))
        assert group.runs(member="n") == [(500, 549, 1)]


def test_q27_bytes_are_divided_among_partitions_with_records(store_dir: Path) -> None:
    with ShareStore(store_dir, partitions=4) as group:
        for partition in range(3):
            for _ in range(10):
                group.store.partition("t", partition).append_batch([b"x" * 1000])
        group.begin()
        from segstore.coordinator.share.grants import AcquireTerms

        wanted = [(group.topic_id, number) for number in range(4)]
        found = group.share.acquire("g", "m", wanted, AcquireTerms(max_bytes=9900))
        assert [(each.partition, each.acquired) for each in found] == [(n, ((0, 2, 1),)) for n in range(3)]
        found = group.share.acquire("g", "m", wanted, AcquireTerms(max_bytes=1500))
        assert [each.partition for each in found] == [0]  # one batch in any case, and no other one has room


# --- transactions -----------------------------------------------------------------------------------


def transactions(group: ShareStore) -> segstore.Producer:
    """Commit 0-2 (marker 3), abort 4-6 (7), commit 8-10 (11); 12-14 are open while the producer lives."""
    producer = segstore.Producer(group.store, transactional_id="p")
    producer.init_transactions()
    for ends in ("commit", "abort", "commit", ""):
        producer.begin_transaction()
        for n in range(3):
            producer.send("t", value=b"%d" % n).get()
        if ends:
            getattr(producer, f"{ends}_transaction")()
    return producer


def test_s8_q44_read_committed_grants_no_aborted_records(store_dir: Path) -> None:
    with filled(store_dir) as group:
        group.alter(share_isolation_level="read_committed")
        producer = transactions(group)
        runs = group.runs()
        granted = [n for first, last, _ in runs for n in range(first, last + 1)]
        assert granted == [0, 1, 2, 3, 7, 8, 9, 10, 11]
        group.ack((0, 2, ACCEPT), (3, 3, GAP), (7, 7, GAP), (8, 10, ACCEPT))
        assert group.durable()[1] == [(0, 2, 2, 1), (3, 3, 4, 1), (7, 7, 4, 1), (8, 10, 2, 1)]
        assert group.start() == 11
        assert group.runs() == []
        producer.close()
    with ShareStore(store_dir) as group:  # Q21: what only memory knew is fetched again, and archived again
        group.ack(*((first, last, GAP) for first, last, _ in group.runs()))
        assert group.start() >= 12


def test_q44_a_fetch_goes_on_behind_aborted_records(store_dir: Path) -> None:
    """A record is held at the start, which does not move; the next reads have aborted records alone."""
    with filled(store_dir, 1) as group:
        group.alter(share_isolation_level="read_committed")
        assert group.runs() == [(0, 0, 1)]
        producer = segstore.Producer(group.store, transactional_id="p")
        producer.init_transactions()
        for ends in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            for _ in range(5):
                producer.send("t", value=bytes(500)).get()
            ends()
        assert group.runs(member="n", max_bytes=1000) == [(6, 6, 1)]
        producer.close()


def test_s8_read_uncommitted_grants_all(store_dir: Path) -> None:
    with filled(store_dir) as group:
        producer = transactions(group)
        granted = [n for first, last, _ in group.runs() for n in range(first, last + 1)]
        assert granted == list(range(15))
        producer.close()


def test_q45_isolation_acts_on_the_next_fetch(store_dir: Path) -> None:
    with filled(store_dir) as group:
        producer = transactions(group)
        group.runs(1, mode=AcquireMode.RECORD_LIMIT)
        group.alter(share_isolation_level="read_committed")
        granted = [n for first, last, _ in group.runs() for n in range(first, last + 1)]
        assert granted == [1, 2, 3, 7, 8, 9, 10, 11]
        producer.close()


# --- logs that lose records ---------------------------------------------------------------------------


def test_s10_q41_the_log_start_moves_below_inside_and_above_the_window(store_dir: Path) -> None:
    with filled(store_dir, *[5] * 6) as group:
        group.runs(10)
        group.ack(*((n, n, ACCEPT if n % 2 == 0 else RELEASE) for n in range(3, 8)))
        group.log.delete_records(6)
        assert group.runs(member="n") == [(7, 7, 2), (10, 29, 1)]
        assert group.start() == 7  # 6 was accepted
        group.ack((0, 2, ACCEPT))  # below the start: nothing to do
        group.log.delete_records(30)
        assert group.runs() == []
        assert group.start() == 30
        group.pass_ms(LOCK_MS)
        group.ack((8, 9, ACCEPT))
        group.log.append(b"next")
        assert group.runs() == [(30, 30, 1)]
    with ShareStore(store_dir) as group:
        assert group.runs() == [(30, 30, 1)]


def test_q23_a_start_above_the_end_waits_for_the_log(store_dir: Path) -> None:
    with filled(store_dir, 10) as group:
        group.begin(50, epoch=3)
        assert group.runs() == []
        assert group.share.offsets("g")[group.key()].lag == -40
        group.log.append_batch([b"x"] * 45)
        assert group.runs() == [(50, 54, 1)]


def test_q23_a_start_below_the_log_is_corrected(store_dir: Path) -> None:
    with filled(store_dir, 10, 10) as group:
        group.log.delete_records(10)
        assert group.runs() == [(10, 19, 1)]


def test_s9_q22_q42_compaction_under_locks(store_dir: Path) -> None:
    with ShareStore(store_dir) as group:
        group.store.alter_topic("t", SEALING)
        group.begin()
        for n in range(40):
            group.log.append(b"v%d" % n * 10, key=b"k%d" % (n % 2))
        while group.runs(1)[-1][1] < 19:
            """A batch at a time."""
        group.ack((4, 9, RELEASE))
        group.store.sweep()
        left = [n for part in group.log.scan().reads() for n in part.offsets.tolist()]
        assert left[0] > 20
        runs = group.runs(member="n")
        assert min(first for first, _, _ in runs) > 9  # what vanished is archived, not granted
        while group.runs(member="n"):
            """Until the log's end."""
        group.ack((0, 3, GAP), (10, 19, GAP))
        leader = group.share._leaders.get("g", group.topic_id, 0)
        assert leader is not None
        held = leader.core.acquired_by("n")
        group.ack(*((first, last, ACCEPT) for first, last, _ in held), member="n")
        assert group.start() == 40


def test_a_damaged_header_is_the_partitions_error(store_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    with filled(path, 4, 4):
        pass
    log = next((path / "t-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[16] = 9  # the magic
    log.write_bytes(data)
    with ShareStore(path) as group, pytest.raises(CorruptRecordError):
        group.acquire()


def test_reads_are_plain_records(store_dir: Path) -> None:
    with filled(store_dir, 3) as group:
        found = group.acquire()
        assert found is not None
        (part,) = found.reads()
        assert isinstance(part, Records)
        assert np.array_equal(part.offsets, [0, 1, 2])
        assert repr(found) == "<Acquisition of t-0: 0-2 x1>"
        assert segstore.__name__ == "segstore"
