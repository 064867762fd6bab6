"""Promise: a data directory of a replicated store holds replicas from its opening on: no epoch of its own,
readers up to the high watermark, just the partitions that it was given, and the broker epoch of a clean
close.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from faults import FailingFiles
from replicated_writers import open_writer, topic

import segstore
from segstore import InvalidArgumentError, TopicAlreadyExistsError
from segstore.errors import NotLeaderOrFollowerError, OffsetOutOfRangeError, StorageError
from segstore.names import new_topic_id
from segstore.storage.log.append import append_one
from segstore.storage.log.replica import Replica
from segstore.storage.store.writer import StoreWriter


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "d"
    assert segstore.check(tmp_path / "d") == []


def led(writer: StoreWriter, records: int, epoch: int = 3, partition: int = 0) -> Replica:
    replica = writer.partitions.replica("t", partition)
    replica.lead(epoch)
    for n in range(records):
        append_one(writer.partition("t", partition), b"%d" % n, None, (), None)
    return replica


def epochs_file(path: Path) -> str:
    return (path / "t-0" / "leader-epoch-checkpoint").read_text()


# --- R7: no epoch of its own ----------------------------------------------------------------------


def test_r7_a_new_partition_has_no_epoch(path: Path) -> None:
    writer = open_writer(path)
    writer.topic_admin.make(topic())
    assert epochs_file(path) == "0\n0\n"
    assert writer.partitions.replica("t", 0).epochs == ()
    writer.close()


@pytest.mark.parametrize("lost", ["nothing", "the file", "its content"])
def test_r7_recovery_begins_no_epoch(path: Path, lost: str) -> None:
    writer = open_writer(path)
    writer.topic_admin.make(topic())
    led(writer, 4)
    led(writer, 0, epoch=5)  # begins at the log's end: what a crash may have cut
    writer.let_go()
    if lost == "the file":
        (path / "t-0" / "leader-epoch-checkpoint").unlink()
    elif lost == "its content":
        (path / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n9 9 9\n")
    writer = open_writer(path)
    assert writer.partitions.replica("t", 0).epochs == ((3, 0),)
    assert epochs_file(path) == "0\n1\n3 0\n"
    writer.close()


def test_r7_what_is_lost_below_the_recovery_point_is_not_skipped(path: Path) -> None:
    """A plain store would go on at the recovery point; a replica asks its leader for the rest."""
    writer = open_writer(path)
    writer.topic_admin.make(topic())
    replica = led(writer, 10)
    writer.partitions.flush()
    writer.let_go()
    log = path / "t-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[: 70 * 6 + 5])
    writer = open_writer(path)
    replica = writer.partitions.replica("t", 0)
    assert replica.log_end_offset == 6
    assert writer.partition("t", 0).recovery_point == 6
    replica.lead(4)
    append_one(writer.partition("t", 0), b"next", None, (), None)
    assert replica.epochs == ((3, 0), (4, 6))
    writer.close()


# --- the high watermark ---------------------------------------------------------------------------


def test_r39_a_reader_waits_where_the_high_watermark_has_gone_back(path: Path) -> None:
    """The writer was killed, and the checkpoint is older than what it showed. No reader begins anew for that:
    the replica has the offset, and will show it again.
    """
    writer = open_writer(path)
    writer.topic_admin.make(topic())
    led(writer, 10).set_high_watermark(10)
    with segstore.open(path, "r") as store:
        log = store.partition("t")
        consumer = segstore.Consumer(store, "t", auto_offset_reset="earliest")
        assert [len(records) for records in consumer.poll(60_000).values()] == [10]
        writer.let_go()
        writer = open_writer(path)
        replica = writer.partitions.replica("t", 0)
        assert (replica.high_watermark, log.end_offset, log.log_end_offset) == (0, 0, 10)
        assert (len(log.read(10)), len(log.read(3)), consumer.poll(0)) == (0, 0, {})
        log.stretch(10, 100).release()
        for offset in (-1, 11):
            with pytest.raises(OffsetOutOfRangeError):
                log.read(offset)
        replica.lead(4)
        append_one(writer.partition("t", 0), b"next", None, (), None)
        replica.set_high_watermark(11)
        assert [record.offset for records in consumer.poll(60_000).values() for record in records] == [10]
        consumer.close()
    writer.close()


def test_r36_the_high_watermark_is_that_of_the_checkpoint(path: Path) -> None:
    writer = open_writer(path)
    writer.topic_admin.make(topic())
    replica = led(writer, 10)
    assert replica.high_watermark == 0
    replica.set_high_watermark(6)
    with segstore.open(path, "r") as store:
        assert store.partition("t").end_offset == 6
        assert segstore.check(path) == []
        writer.close(broker_epoch=1)
        assert segstore.check(path) == []
        assert [record.offset for record in store.partition("t").read(0)] == list(range(6))
    for epoch in (2, None):  # left cleanly, and not
        writer = open_writer(path)
        replica = writer.partitions.replica("t", 0)
        assert (replica.high_watermark, replica.log_end_offset, replica.start_offset) == (6, 10, 0)
        with segstore.open(path, "r") as store:
            assert store.partition("t").end_offset == 6
        writer.partitions.checkpoint()
        writer.close(broker_epoch=epoch) if epoch else writer.let_go()
    writer = open_writer(path)
    assert writer.partitions.replica("t", 0).high_watermark == 6
    writer.close()


def test_r13_the_log_start_goes_up_to_the_high_watermark_only(path: Path) -> None:
    writer = open_writer(path)
    writer.topic_admin.make(topic(segment_bytes=200))
    replica = led(writer, 10)
    replica.set_high_watermark(6)
    replica.set_start_offset(8)
    assert replica.start_offset == 6
    replica.set_start_offset(2)
    assert replica.start_offset == 6
    writer.close()


# --- roles ----------------------------------------------------------------------------------------


def test_appends_are_refused_until_the_replica_leads_and_after_it_follows(path: Path) -> None:
    writer = open_writer(path)
    writer.topic_admin.make(topic())
    partition, replica = writer.partition("t", 0), writer.partitions.replica("t", 0)
    assert writer.partitions.replica("t", 0) is replica
    with pytest.raises(NotLeaderOrFollowerError):
        append_one(partition, b"", None, (), None)
    led(writer, 3)
    assert replica.follow() == 3
    with pytest.raises(NotLeaderOrFollowerError):
        append_one(partition, b"", None, (), None)
    assert replica.log_end_offset == 3
    replica.lead(3)  # again, in the same epoch
    assert append_one(partition, b"", None, (), None) == 3
    with pytest.raises(InvalidArgumentError, match="2"):
        replica.lead(2)
    assert replica.epochs == ((3, 0),)
    writer.close()


def test_r3_the_file_has_an_epoch_before_a_batch_does(path: Path) -> None:
    files = FailingFiles({"rename"}, OSError(errno.ENOSPC, "no room"), nth=0)
    writer = open_writer(path, files)
    writer.topic_admin.make(topic())
    replica, partition = led(writer, 1), writer.partition("t", 0)
    replica.lead(4)
    assert (replica.epochs, epochs_file(path)) == (((3, 0), (4, 1)), "0\n1\n3 0\n"), "an election is quick"
    files.arm()
    with pytest.raises(StorageError, match="no room"):
        append_one(partition, b"", None, (), None)
    assert (replica.log_end_offset, files.hits) == (1, 1), "nothing is written under it"
    assert append_one(partition, b"", None, (), None) == 1
    assert epochs_file(path) == "0\n2\n3 0\n4 1\n"
    writer.close()


@pytest.mark.parametrize("by", ["save_epochs", "close", "next epoch"])
def test_r3_the_file_gets_an_epoch_without_batches(path: Path, by: str) -> None:
    writer = open_writer(path)
    writer.topic_admin.make(topic())
    replica = led(writer, 1)
    replica.lead(4)
    if by == "save_epochs":
        replica.save_epochs()
        assert epochs_file(path) == "0\n2\n3 0\n4 1\n"
    elif by == "next epoch":
        replica.begin_epoch(6)
        assert epochs_file(path) == "0\n2\n3 0\n6 1\n"
    writer.close()
    assert epochs_file(path) == ("0\n2\n3 0\n6 1\n" if by == "next epoch" else "0\n2\n3 0\n4 1\n")


# --- the broker epoch -----------------------------------------------------------------------------


def test_r26_the_broker_epoch_of_a_clean_close(path: Path) -> None:
    assert open_and_close(path, 7) == -1
    assert json.loads((path / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 7}
    assert open_and_close(path, 8) == 7
    assert open_and_close(path, None) == 8
    assert open_and_close(path, 9) == -1
    open_writer(path).let_go()
    assert open_and_close(path, 10) == -1


def test_r26_a_brokers_clean_close_is_not_ours(path: Path) -> None:
    """Its broker epoch may be the same number."""
    open_and_close(path, 7)
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    assert open_and_close(path, 8) == -1


@pytest.mark.parametrize("epoch", [0, -1, 1 << 62])
def test_a_broker_epoch_that_can_not_be(path: Path, epoch: int) -> None:
    writer = open_writer(path)
    with pytest.raises(InvalidArgumentError, match=str(epoch)):
        writer.close(broker_epoch=epoch)
    assert not writer.closed
    writer.close()


def open_and_close(path: Path, broker_epoch: int | None) -> int:
    writer = open_writer(path)
    writer.close(broker_epoch)
    return writer.clean_epoch


# --- topics ---------------------------------------------------------------------------------------


def partitions_there(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir() if one.name.startswith("t-"))


def test_a_directory_holds_just_the_partitions_that_it_was_given(path: Path) -> None:
    writer = open_writer(path)
    first = topic(partitions=(1, 4))
    assert writer.topic_admin.make(first) == first
    led(writer, 3, partition=4)
    assert writer.topic_admin.make(first) == first
    assert partitions_there(path) == ["t-1", "t-4"]
    changed = replace(topic(partitions=(0, 4), segment_bytes=900), topic_id=first.topic_id)
    assert writer.topic_admin.make(changed) == changed
    assert partitions_there(path) == ["t-0", "t-4"]
    assert writer.partition("t", 4).config.segment_bytes == 900
    assert writer.partitions.replica("t", 4).log_end_offset == 3
    with pytest.raises(segstore.UnknownTopicOrPartitionError):
        writer.partition("t", 1)
    with pytest.raises(TopicAlreadyExistsError):
        writer.topic_admin.make(replace(changed, topic_id=new_topic_id()))
    writer.let_go()
    writer = open_writer(path)
    assert writer.topics == {"t": changed}
    others = replace(changed, partition_ids=(7,))
    assert writer.topic_admin.make(others) == others
    assert partitions_there(path) == ["t-7"]
    writer.close()


def test_a_partition_that_comes_back_is_empty(path: Path) -> None:
    writer = open_writer(path)
    writer.topic_admin.make(topic(partitions=(0, 1)))
    led(writer, 5)
    old = writer.partitions.replica("t", 0)
    writer.topic_admin.make(topic(partitions=(1,)))
    with pytest.raises(segstore.StoreClosedError):
        _ = old.log_end_offset
    writer.topic_admin.make(topic(partitions=(0, 1)))
    new = writer.partitions.replica("t", 0)
    assert (new.log_end_offset, new.epochs, new is old) == (0, (), False)
    writer.close()


def test_what_a_crash_leaves_of_a_removed_partition_is_not_taken_over(path: Path) -> None:
    writer = open_writer(path)
    both = topic(partitions=(0, 1))
    writer.topic_admin.make(both)
    led(writer, 5)
    writer.let_go()
    writer = open_writer(path)
    # As a crash leaves it: the settings are written, the directory is not buried yet.
    writer.topic_admin._topic_files.write(topic(partitions=(1,)))
    writer.let_go()
    writer = open_writer(path)
    assert writer.topics["t"].partition_ids == (1,)
    writer.topic_admin.make(both)
    assert writer.partitions.replica("t", 0).log_end_offset == 0
    writer.close()


def test_the_metadata_log_is_a_topic_like_others(path: Path) -> None:
    writer = open_writer(path)
    writer.topic_admin.make(topic("__cluster_metadata"))
    replica = writer.partitions.replica("__cluster_metadata", 0)
    replica.lead(1)
    append_one(writer.partition("__cluster_metadata", 0), b"x", None, (), None)
    assert replica.log_end_offset == 1
    writer.close(broker_epoch=4)


def test_nothing_is_made_without_an_id_or_partitions(path: Path) -> None:
    writer = open_writer(path)
    for wrong in (replace(topic(), topic_id=""), topic(partitions=())):
        with pytest.raises(InvalidArgumentError):
            writer.topic_admin.make(wrong)
    assert not writer.topics
    writer.close()
