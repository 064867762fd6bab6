"""Promise: each way of appending asks the other replicas before it writes, and waits for them afterwards,
with no lock held; what is refused is not written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import FailingFiles
from replicated_writers import open_writer, topic

import segstore
from segstore import StorageError
from segstore.errors import NotEnoughReplicasError, NotLeaderOrFollowerError, RequestTimedOutError
from segstore.records import Columns, Template
from segstore.storage.log.acks import ALL, Acks
from segstore.storage.log.append import append_batches, append_columns, append_one, append_record
from segstore.storage.log.partition import Partition
from segstore.storage.log.transaction_markers import end_transaction
from segstore.storage.store.writer import StoreWriter

LEADER = Acks(1, 5.0)


class Asked:
    """Notes what it is asked, and whether a lock is held then."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.calls: list[tuple[object, ...]] = []
        self.refusal: Exception | None = None
        self.late: Exception | None = None

    def _note(self, *call: object) -> None:
        partition = self.partition
        locks = partition.token, partition.admin_lock, partition.rename_lock, partition.visible.publishing
        assert not any(lock.owned for lock in locks)
        self.calls.append((*call, partition.visible.log_end_offset))

    def check(self, acks: int) -> None:
        self._note("check", acks)
        if self.refusal is not None:
            raise self.refusal

    def wait(self, end_offset: int, acks: int, timeout_ms: float) -> None:
        self._note("wait", end_offset, acks, timeout_ms)
        if self.late is not None:
            raise self.late

    def failed(self, error: StorageError) -> None:
        self._note("failed", error.errno)


class Log:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def partition_for_write(self) -> Partition:
        return self._partition


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    writer = open_writer(tmp_path / "d")
    writer.topic_admin.make(topic(partitions=(0, 1)))
    for n in (0, 1):
        writer.partitions.replica("t", n).lead(1)
    yield writer
    writer.close()
    assert segstore.check(tmp_path / "d") == []


@pytest.fixture
def asked(writer: StoreWriter) -> Asked:
    partition = writer.partition("t", 0)
    asked = Asked(partition)
    partition.acks = asked
    return asked


Way = Callable[[Partition, Acks], object]
WAYS: dict[str, tuple[Way, int]] = {
    "one": (lambda p, acks: append_one(p, b"1", None, (), None, acks), 1),
    "columns": (lambda p, acks: append_columns(p, [b"1"] * 3, None, None, None, None, 65536, acks), 3),
    "long": (lambda p, acks: append_columns(p, [bytes(900)] * 9000, None, None, None, None, 999, acks), 9000),
    "batches": (lambda p, acks: append_batches(Log(p), Columns([b"1"] * 3), acks=acks), 3),
    "record": (lambda p, acks: append_record(Log(p), b"1", None, (), 1, acks=acks), 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_r23_each_way_asks_and_waits(asked: Asked, way: str) -> None:
    append, n = WAYS[way]
    append(asked.partition, LEADER)
    append(asked.partition, ALL)
    assert asked.calls == [
        ("check", 1, 0),
        ("wait", n, 1, 5.0, n),
        ("check", -1, n),
        ("wait", 2 * n, -1, 30_000.0, 2 * n),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_r23_what_is_refused_is_not_written(asked: Asked, way: str) -> None:
    asked.refusal = NotEnoughReplicasError("too few")
    with pytest.raises(NotEnoughReplicasError):
        WAYS[way][0](asked.partition, ALL)
    assert asked.calls == [("check", -1, 0)]
    assert asked.partition.visible.log_end_offset == 0


@pytest.mark.parametrize("way", WAYS)
def test_r23_what_was_not_acknowledged_in_time_is_in_the_log(asked: Asked, way: str) -> None:
    asked.late = RequestTimedOutError("late")
    with pytest.raises(RequestTimedOutError):
        WAYS[way][0](asked.partition, ALL)
    assert asked.partition.visible.log_end_offset == WAYS[way][1]


def test_r23_a_duplicate_waits_for_its_old_end(asked: Asked) -> None:
    template = Template(producer_id=7, producer_epoch=0, base_sequence=0)
    log = Log(asked.partition)
    append_batches(log, Columns([b"1"] * 3), template=template)
    append_one(asked.partition, b"other", None, (), None)
    asked.calls.clear()
    assert append_batches(log, Columns([b"1"] * 3), template=template).duplicate
    assert asked.calls == [("check", -1, 4), ("wait", 3, -1, 30_000.0, 4)]


def test_r23_markers_wait_when_all_are_written(writer: StoreWriter, asked: Asked) -> None:
    other = Asked(writer.partition("t", 1))
    other.partition.acks = other
    end_transaction([Log(asked.partition), Log(other.partition)], 7, 0, 0, commit=True)
    for each in (asked, other):
        assert each.calls == [("check", -1, 0), ("wait", 1, -1, 30_000.0, 1)]
    other.refusal = NotEnoughReplicasError("too few")
    with pytest.raises(NotEnoughReplicasError):
        end_transaction([Log(asked.partition), Log(other.partition)], 7, 1, 0, commit=True)
    assert asked.partition.visible.log_end_offset == other.partition.visible.log_end_offset == 1
    other.refusal, asked.late = None, RequestTimedOutError("late")
    with pytest.raises(RequestTimedOutError):
        end_transaction([Log(asked.partition), Log(other.partition)], 7, 1, 0, commit=True)
    assert other.calls[-1] == ("wait", 2, -1, 30_000.0, 2)


def test_r32_an_append_that_fences_the_log_is_told(tmp_path: Path) -> None:
    files = FailingFiles(["sync"], OSError(5, "EIO"), nth=0)
    writer = open_writer(tmp_path / "d", files)
    writer.topic_admin.make(topic(flush_messages=1))
    replica, partition = writer.partitions.replica("t", 0), writer.partition("t", 0)
    replica.lead(1)
    assert replica.fenced is None
    asked = partition.acks = Asked(partition)
    files.arm(1)
    with pytest.raises(StorageError):
        append_one(partition, b"1", None, (), None)
    files.arm(0)
    assert asked.calls == [("check", -1, 0), ("failed", 5, 1)]
    assert replica.fenced is not None
    writer.let_go()


def test_an_append_is_below_the_end_that_follow_returns_or_refused(writer: StoreWriter) -> None:
    partition, replica = writer.partition("t", 0), writer.partitions.replica("t", 0)
    for epoch in range(2, 30):
        taken: list[int] = []
        refused: list[int] = []
        begun = threading.Barrier(4)
        threads = [
            threading.Thread(target=_append_until_refused, args=(partition, begun, taken, refused))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        begun.wait()
        end = replica.follow()
        for thread in threads:
            thread.join()
        assert len(refused) == 3
        assert all(offset < end for offset in taken)
        assert replica.log_end_offset == end
        replica.lead(epoch)


def _append_until_refused(
    partition: Partition, begun: threading.Barrier, taken: list[int], refused: list[int]
) -> None:
    begun.wait()
    try:
        # Many more than it takes.
        taken.extend(append_one(partition, b"1", None, (), None) for _ in range(20_000))
    except NotLeaderOrFollowerError:
        refused.append(1)
