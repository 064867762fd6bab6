"""Promise: a store works by a side of a layer above, over several directories, and its logs follow the
leader; what a transaction ends in several directories becomes visible at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replicated_writers import open_writer, topic

import segstore
from segstore import OffsetOutOfRangeError, Store
from segstore.coordinator.quotas import quotas
from segstore.errors import NotLeaderOrFollowerError
from segstore.storage.log.partition import Partition
from segstore.storage.log.transaction_markers import end_transaction
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.writer import StoreWriter


class MyLog(PartitionLog):
    """A layer's own kind of logs."""


class MyStore(Store):
    def _make_log(self, topic: str, partition: int, source: Any) -> PartitionLog:
        return MyLog(topic, partition, self, self.context, source)


class TwoDirectories:
    """The side of two writers, of which one leads."""

    def __init__(self, writers: list[StoreWriter]) -> None:
        self.writers, self.leader = writers, 0
        self.owner = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writers[0], name)

    def partition(self, topic: str, partition: int) -> Partition:
        return self.writers[self.leader].partition(topic, partition)

    def tail(self, keys: list[int]) -> None:
        return None

    def close(self) -> None:
        for writer in self.writers:
            writer.close(broker_epoch=1)


@pytest.fixture
def side(tmp_path: Path) -> Iterator[TwoDirectories]:
    writers = [open_writer(tmp_path / name) for name in "ab"]
    for writer in writers:
        writer.topic_admin.make(topic(partitions=(0, 1)))
    yield TwoDirectories(writers)
    for name in "ab":
        assert segstore.check(tmp_path / name) == []


def replicas(side: TwoDirectories, partition: int = 0) -> list[Any]:
    return [writer.partitions.replica("t", partition) for writer in side.writers]


def test_a_log_follows_its_leader(side: TwoDirectories) -> None:
    first, second = replicas(side)
    first.lead(1)
    with MyStore(side.writers[0].context, side) as store:  # type: ignore[arg-type]
        assert quotas(store).describe() == {}
        log = store.partition("t")
        assert isinstance(log, MyLog)
        for n in range(10):
            assert log.append(b"%d" % n) == n
        assert (log.end_offset, log.high_watermark, log.log_end_offset) == (0, 0, 10)
        assert (len(log.read(4)), log.read(4).next_offset) == (0, 4)
        assert log.read(10).next_offset == 10
        with pytest.raises(OffsetOutOfRangeError):
            log.read(11)
        second.append_as_follower(first.read(0, 10, 1 << 20))
        first.set_high_watermark(10)
        second.set_high_watermark(7)
        assert len(log.read(0)) == 10
        first.follow()
        with pytest.raises(NotLeaderOrFollowerError):
            log.append(b"refused")
        second.lead(2)
        side.leader = 1
        log.follow_leader(side.partition("t", 0))
        assert store.partition("t") is log
        assert (log.end_offset, log.log_end_offset) == (7, 10)
        assert len(log.read(0)) == 7
        assert log.append(b"10") == 10


def test_a_consumer_waits_where_the_high_watermark_has_gone_back(side: TwoDirectories) -> None:
    """After an election the new leader may know of less that is committed."""
    first, second = replicas(side)
    first.lead(1)
    with MyStore(side.writers[0].context, side) as store:  # type: ignore[arg-type]
        log = store.partition("t")
        log.append_batch([b"0", b"1", b"2"], batch_bytes=1)
        second.append_as_follower(first.read(0, 3, 1 << 20))
        first.set_high_watermark(3)
        tp = segstore.TopicPartition("t", 0)
        with segstore.Consumer(store, group_id=None, auto_offset_reset="none") as consumer:
            consumer.assign([tp])
            consumer.seek(tp, 0)
            assert len(consumer.poll()[tp]) == 3
            second.set_high_watermark(1)
            second.lead(2)
            side.leader = 1
            log.follow_leader(side.partition("t", 0))
            assert consumer.poll() == {}
            log.append(b"3")
            assert consumer.poll() == {}
            second.set_high_watermark(4)
            assert [record.value for record in consumer.poll()[tp]] == [b"3"]


def test_markers_in_several_directories(side: TwoDirectories, tmp_path: Path) -> None:
    a, b = replicas(side)[0], replicas(side, 1)[1]
    logs = []
    for replica, writer, number in ((a, side.writers[0], 0), (b, side.writers[1], 1)):
        replica.lead(1)
        replica.set_high_watermark(1 << 40)
        logs.append(Writable(writer.partition("t", number)))
    assert end_transaction(logs, 7, 0, 0, commit=True) == [0, 0]
    for name, number in (("a", 0), ("b", 1)):
        with segstore.open(tmp_path / name, "r") as store:
            assert [store.partition("t", n).end_offset for n in (0, 1)] == [1 - number, number]
    side.close()


class Writable:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def partition_for_write(self) -> Partition:
        return self._partition
