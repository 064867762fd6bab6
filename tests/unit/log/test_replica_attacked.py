"""Promise: a replica goes on where its leader's batches, or its disk, are unusual: wide gaps, large and empty
batches, appends that failed, high watermarks that go back, truncations below what was synced.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from faults import FailingFiles
from producers import committed, send, state_of
from replica_logs import closed, log_bytes, opened, read, replica_of
from replicated_writers import open_writer, topic
from stores import raw_batches

import segstore
from segstore import CorruptRecordError, StorageError
from segstore._native import crc32c
from segstore.records import scan
from segstore.records.control import ABORT, Marker, end_marker
from segstore.storage.log.replica import Replica
from segstore.storage.log.transaction_markers import end_transaction

COMPACTED = {"segment.bytes": 2000, "cleanup.policy": "compact"}


def with_epoch(data: bytes, epoch: int) -> bytes:
    """The batches under another leader epoch, which lies outside the CRC."""
    made = bytearray(data)
    for at in scan(data)[0]["position"].tolist():
        made[at + 12 : at + 16] = epoch.to_bytes(4, "big")
    return bytes(made)


def test_an_empty_control_batch_of_an_unknown_producer(tmp_path: Path) -> None:
    """Compaction leaves one where the whole transaction is gone."""
    chunk = end_marker(Marker(9, 0, ABORT, 3), 1)
    batch = bytearray(bytes(chunk.data)[:61])
    batch[8:12] = (61 - 12).to_bytes(4, "big")
    batch[57:61] = bytes(4)
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    log = opened(tmp_path / "f")
    assert replica_of(log).append_as_follower(bytes(batch)) == 1
    assert 9 not in state_of(log).producers
    closed(log)


def test_a_plain_append_that_failed_hides_no_producer(tmp_path: Path) -> None:
    leader = opened(tmp_path / "leader")
    send(leader, 7, 0, 3)
    closed(leader)
    files = FailingFiles(["pwrite", "pwritev"], OSError(errno.ENOSPC, "ENOSPC"), nth=0)
    log = opened(tmp_path / "f", files)
    replica = replica_of(log)
    files.arm(1)
    with pytest.raises(StorageError):
        replica.append_as_follower(raw_batches(range(20)))
    files.arm(0)
    replica.append_as_follower(log_bytes(tmp_path / "leader" / "t-0"))
    assert state_of(log).producers[7].last_sequence == 2
    closed(log)


def test_epochs_of_an_append_that_failed_are_forgotten(tmp_path: Path) -> None:
    """The next fetch may end before the later epoch begins."""
    files = FailingFiles(["pwrite", "pwritev"], OSError(errno.ENOSPC, "ENOSPC"), nth=0)
    log = opened(tmp_path / "f", files)
    replica = replica_of(log)
    first, second = raw_batches(range(5), epoch=5), raw_batches(range(5, 10), epoch=6)
    first, second = with_epoch(first, 5), with_epoch(second, 6)
    before = replica.epochs
    files.arm(2)  # the file of epochs is written, the log is not
    with pytest.raises(StorageError):
        replica.append_as_follower(first + second)
    files.arm(0)
    assert replica.epochs == before
    assert replica.append_as_follower(first) == 5
    assert replica.epochs == ((5, 0),)
    assert replica.append_as_follower(second) == 10
    closed(log)


def test_a_recovery_point_is_not_behind_a_log_that_begins_lower(tmp_path: Path) -> None:
    log = opened(tmp_path / "f")
    replica = replica_of(log)
    replica.truncate_fully_and_start_at(1000)
    replica.append_as_follower(raw_batches(range(1000, 1010)))
    log.flush()
    replica.truncate_to(10)
    assert log.partition_for_write().recovery_point == 10
    replica.append_as_follower(raw_batches(range(10, 20)))
    log.flush()
    assert log.partition_for_write().recovery_point == 20
    closed(log)


def test_an_empty_log_that_begins_anew_is_closed_clean(tmp_path: Path) -> None:
    log = opened(tmp_path / "f")
    closed(log)
    log = opened(tmp_path / "f")
    replica_of(log).truncate_fully_and_start_at(1000)
    closed(log)
    assert (tmp_path / "f" / "t-0" / f"{1000:020d}.snapshot").exists()


@pytest.mark.parametrize("before", [True, False], ids=["behind batches", "in an empty segment"])
def test_a_gap_that_is_wider_than_a_segment(tmp_path: Path, before: bool) -> None:
    far = 3 << 31
    log = opened(tmp_path / "f", config=COMPACTED)
    replica = replica_of(log, 1 << 60)
    data = (raw_batches(range(5)) if before else b"") + raw_batches([far, far + 9])
    assert replica.append_as_follower(data) == far + 10
    assert [r.offset for r in read(log)] == [*(range(5) if before else ()), far, far + 9]
    assert log_bytes(tmp_path / "f" / "t-0") == data
    closed(log)
    assert segstore.check(tmp_path / "f") == []
    log = opened(tmp_path / "f")
    assert log.end_offset == far + 10
    assert [r.offset for r in read(log)][-1] == far + 9
    closed(log)


def test_a_batch_that_is_larger_than_a_segment(tmp_path: Path) -> None:
    """segment.bytes was larger when the leader wrote the batch."""
    log = opened(tmp_path / "f")
    data = raw_batches(range(5)) + raw_batches(range(5, 10), size=400) + raw_batches(range(10, 15))
    assert replica_of(log).append_as_follower(data) == 15
    assert log_bytes(tmp_path / "f" / "t-0") == data
    assert len(list((tmp_path / "f" / "t-0").glob("*.log"))) == 3
    closed(log)
    assert segstore.check(tmp_path / "f") == []


def aborted_in_the_middle(path: Path) -> tuple[segstore.PartitionLog, Replica]:
    """Offsets 0 to 4 plain, 5 to 14 of a transaction that is aborted at 15, 16 to 20 plain; all is seen."""
    leader = opened(path / "leader")
    leader.append_batch([b"x"] * 5)
    send(leader, 7, 0, 5, txn=True)
    send(leader, 7, 5, 5, txn=True)
    end_transaction([leader], 7, 0, 3, False)
    leader.append_batch([b"y"] * 5)
    closed(leader)
    log = opened(path / "f")
    replica = replica_of(log)
    replica.append_as_follower(log_bytes(path / "leader" / "t-0"))
    log.partition_for_write().visible.set_high_watermark(21)
    replica.append_as_follower(raw_batches(range(21, 26)))
    return log, replica


def test_a_high_watermark_that_goes_back_opens_transactions_again(tmp_path: Path) -> None:
    log, replica = aborted_in_the_middle(tmp_path)
    visible = log.partition_for_write().visible
    for high_watermark, stable in ((10, 5), (15, 5), (16, 16), (5, 5), (26, 26), (10, 5)):
        visible.set_high_watermark(high_watermark)
        assert log.last_stable_offset == stable
        assert committed(log) == [o for o in range(stable) if not 5 <= o <= 15]
        replica.append_as_follower(b"")
        with log.partition_for_write().token:
            visible.show()
        assert log.last_stable_offset == stable
    closed(log)


def test_no_reader_sees_an_open_transaction_while_the_log_is_cut(tmp_path: Path) -> None:
    log, replica = aborted_in_the_middle(tmp_path)
    seen: list[int] = []
    cut, producers = replica._cut_files, log.partition_for_write().producers

    def looked(*args: object) -> None:
        seen.append(log.last_stable_offset)
        cut(*args)  # type: ignore[arg-type]

    replica._cut_files = looked  # type: ignore[method-assign]
    replica.truncate_to(12)
    assert seen == [5]
    assert log.last_stable_offset == 5
    assert producers.state.ongoing == {7: 5}
    closed(log)


def test_a_high_watermark_shows_no_bytes_of_an_append_under_way(tmp_path: Path) -> None:
    log = opened(tmp_path / "f")
    replica = replica_of(log)
    replica.append_as_follower(raw_batches(range(5)))
    partition = log.partition_for_write()
    end = partition.segments.active.end
    size = end.position
    end.position += 1000  # as between `appended` and the write
    partition.visible.set_high_watermark(3)
    assert partition.view.end_position == size
    end.position = size
    closed(log)


def test_what_was_cut_is_no_segment_that_was_synced_or_compacted(tmp_path: Path) -> None:
    log = opened(tmp_path / "f")
    replica = replica_of(log, 1 << 60)
    replica.append_as_follower(raw_batches(range(40)))
    segments = log.partition_for_write().segments
    sealed = segments[0]
    sealed.durable = True  # as one that was adopted
    replica.truncate_to(5)
    assert not segments[0].durable
    replica.append_as_follower(raw_batches(range(5, 40)))
    assert not segments.lies_in([sealed])
    assert not sealed.writable
    closed(log)


def test_a_cut_lowers_the_cleaners_checkpoint(tmp_path: Path) -> None:
    log = opened(tmp_path / "f", config=COMPACTED)
    replica = replica_of(log, 1 << 60)
    replica.append_as_follower(raw_batches(range(200)))
    log.flush()
    store = log.store
    assert isinstance(store, segstore.Store)
    side = store.engine
    side._checkpoints.cleaner_offsets.update({("t", 0): 150})  # type: ignore[union-attr]
    replica.truncate_to(100)
    assert side.cleaned_offset("t", 0) == 100  # type: ignore[union-attr]
    closed(log)


def test_a_checkpoint_under_way_does_not_bring_a_recovery_point_back(tmp_path: Path) -> None:
    """The numbers of a checkpoint are taken when no other thread writes the files any more."""
    log = opened(tmp_path / "f")
    replica = replica_of(log)
    replica.append_as_follower(raw_batches(range(40)))
    log.flush()
    store = log.store
    assert isinstance(store, segstore.Store)
    partitions = store.engine.partitions  # type: ignore[union-attr]
    asked, offsets = [], partitions._offsets

    def owned() -> object:
        asked.append(partitions._checkpoints._lock._is_owned())
        return offsets()

    partitions._offsets = owned
    partitions.checkpoint()
    assert asked == [True]
    replica.truncate_to(10)
    partitions.checkpoint()
    assert partitions._checkpoints.recovery_points.get(("t", 0)) == 10
    closed(log)


# --- a gap at the log's end ----------------------------------------------------------------------


def test_r41_a_log_goes_on_behind_a_gap(tmp_path: Path) -> None:
    log = opened(tmp_path / "f", config=COMPACTED)
    replica = replica_of(log, 1 << 60)
    replica.append_as_follower(with_epoch(raw_batches(range(9)), 3))
    replica.go_on_at(60, 5)
    assert (replica.log_end_offset, replica.epochs, log.end_offset) == (60, ((3, 0), (5, 60)), 60)
    assert [record.offset for record in read(log)] == [*range(9)]
    assert replica.read(9, 60, 1000) == b""
    assert replica.is_gap(9, 60)
    assert not replica.is_gap(8, 60)
    closed(log)
    assert segstore.check(tmp_path / "f") == []
    log = opened(tmp_path / "f")
    replica = replica_of(log, 1 << 60)
    assert replica.append_as_follower(with_epoch(raw_batches([70, 71]), 5)) == 72
    assert replica.is_gap(9, 70)
    assert not replica.is_gap(9, 71)
    assert [record.offset for record in read(log)] == [*range(9), 70, 71]
    assert replica.truncate_to(60).end_offset == 60
    assert replica.truncate_to(30).end_offset == 9
    closed(log)


def test_r41_an_empty_log_goes_on_behind_a_gap(tmp_path: Path) -> None:
    log = opened(tmp_path / "f", config=COMPACTED)
    replica = replica_of(log, 1 << 60)
    replica.go_on_at(60, 5)
    assert (log.start_offset, log.end_offset, read(log)) == (0, 60, [])
    assert replica.append_as_follower(with_epoch(raw_batches([60]), 5)) == 61
    closed(log)
    assert segstore.check(tmp_path / "f") == []


def test_r41_damage_is_no_gap(tmp_path: Path) -> None:
    log = opened(tmp_path / "f", config=COMPACTED)
    replica = replica_of(log, 1 << 60)
    replica.append_as_follower(raw_batches(range(9)))
    replica.go_on_at(60, 5)
    path = tmp_path / "f" / "t-0" / f"{0:020d}.log"
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    with pytest.raises(CorruptRecordError):
        replica.is_gap(0, 60)
    log.store.close()


@pytest.mark.parametrize("call", ["open", "pwrite", "rename"])
def test_r41_a_disk_that_refuses_leaves_the_end_where_it_was(tmp_path: Path, call: str) -> None:
    files = FailingFiles([call], OSError(errno.ENOSPC, "ENOSPC"), nth=0)
    log = opened(tmp_path / "f", files, config=COMPACTED)
    replica = replica_of(log, 1 << 60)
    replica.append_as_follower(with_epoch(raw_batches(range(9)), 3))
    files.arm(1)
    with pytest.raises(StorageError):
        replica.go_on_at(60, 5)
    files.arm(0)
    assert (replica.log_end_offset, replica.epochs) == (9, ((3, 0),))
    replica.go_on_at(60, 5)
    assert (replica.log_end_offset, replica.epochs) == (60, ((3, 0), (5, 60)))
    closed(log)
    assert segstore.check(tmp_path / "f") == []


LOST = {
    "all behind the gap": ((9, 27, 60), 9),
    "the last ones alone": ((27, 60), 27),
    "none": ((60,), 60),
}


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("synced", [False, True], ids=["unsynced", "synced"])
def test_r41_a_replica_does_not_end_in_segments_that_lost_their_bytes(
    tmp_path: Path, name: str, synced: bool
) -> None:
    """A power cut has left the names. The end would say that the log has what others have up to there: a
    leader would not cut what it lacks, and goes on where others hold records. What was synced is kept: there
    Kafka's cleaner has left the gap.
    """
    emptied, end = LOST[name]
    writer = open_writer(tmp_path / "d")
    writer.topic_admin.make(topic(cleanup_policy="compact"))
    replica, partition = writer.partitions.replica("t", 0), writer.partition("t", 0)
    for first, last in ((0, 9), (9, 27), (27, 60)):
        replica.append_as_follower(raw_batches(range(first, last)))
        partition.roll()
    writer.close()
    (tmp_path / "d" / ".kafka_cleanshutdown").unlink()
    for base in emptied:
        (tmp_path / "d" / "t-0" / f"{base:020d}.log").write_bytes(b"")
    if not synced:
        for name in ("recovery-point-offset-checkpoint", ".segstore/checkpoints", ".segstore/ends"):
            (tmp_path / "d" / name).unlink()
    writer = open_writer(tmp_path / "d")
    assert writer.partitions.replica("t", 0).log_end_offset == (60 if synced else end)
    writer.close()
