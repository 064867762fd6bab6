"""Where a consumer is: where it begins, seeks, pauses, ranges, and what it looks up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumers import LONG_MS, append, drain, earliest, fill, offsets, tp

import segstore
from segstore.client.consumer import Consumer, ConsumerRecord
from segstore.coordinator.structs import OffsetAndMetadata, OffsetAndTimestamp
from segstore.errors import (
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

# --- positions -------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "begins"), [("earliest", 0), ("latest", 10)])
def test_where_a_consumer_begins(store: segstore.Store, policy: str, begins: int) -> None:
    fill(store)
    consumer = Consumer(store, "t", auto_offset_reset=policy)
    consumer.poll()
    consumer.seek_to_beginning()
    assert consumer.position(tp()) == 0
    consumer.seek_to_end(tp())
    assert consumer.position(tp()) == 10
    fresh = Consumer(store, auto_offset_reset=policy)
    fresh.assign([tp()])
    assert fresh.position(tp()) == begins


def test_a_poll_may_leave_the_position_where_it_is(store: segstore.Store) -> None:
    fill(store)
    with earliest(store, "t", max_poll_records=4) as consumer:
        for _ in range(2):
            assert offsets(consumer.poll(update_offsets=False)[tp()]) == [0, 1, 2, 3]
            assert consumer.position(tp()) == 0
        assert offsets(consumer.poll()[tp()]) == [0, 1, 2, 3]
        assert offsets(consumer.poll(update_offsets=False)[tp()]) == [4, 5, 6, 7]
        consumer.seek(tp(), 8)
        assert offsets(consumer.poll()[tp()]) == [8, 9]
        for _ in range(2):  # at the end, where a record that comes alone takes a short way
            assert consumer.poll() == {}
            append(store, 1)
            at = consumer.position(tp())
            assert offsets(consumer.poll(LONG_MS, update_offsets=False)[tp()]) == [at]
            assert offsets(consumer.poll(LONG_MS)[tp()]) == [at]


def test_without_a_policy_a_position_must_be_given(store: segstore.Store) -> None:
    fill(store, partitions=2)
    consumer = Consumer(store, "t", auto_offset_reset="none")
    for look in (consumer.poll, consumer.poll_arrow, lambda: next(consumer), lambda: consumer.position(tp())):
        with pytest.raises(NoOffsetForPartitionError) as caught:
            look()
        assert caught.value.partitions == {tp(0), tp(1)}
    consumer.seek(tp(0), 8)
    with pytest.raises(NoOffsetForPartitionError, match="partition=1"):
        consumer.poll()
    consumer.seek(tp(1), 9)
    got = drain(consumer)
    assert (offsets(got, 0), offsets(got, 1)) == ([8, 9], [9])


OUT_OF_RANGE = {
    "behind the end, earliest": ("earliest", 11, list(range(4, 10))),
    "behind the end, latest": ("latest", 99, []),
    "before the start, earliest": ("earliest", 3, list(range(4, 10))),
    "before the start, latest": ("latest", 0, []),
    "at the end": ("none", 10, []),
    "at the start": ("none", 4, list(range(4, 10))),
}


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_a_position_that_is_not_there_is_dealt_with_by_the_policy(store: segstore.Store, case: str) -> None:
    policy, to, seen = OUT_OF_RANGE[case]
    fill(store)
    store.partition("t").delete_records(4)
    consumer = Consumer(store, auto_offset_reset=policy)
    consumer.assign([tp()])
    consumer.seek(tp(), to)
    assert offsets(drain(consumer)) == seen
    assert consumer.position(tp()) == 10


@pytest.mark.parametrize("to", [3, 11])
def test_out_of_range_without_a_policy_is_an_error_each_time(store: segstore.Store, to: int) -> None:
    fill(store, partitions=2)
    store.partition("t").delete_records(4)
    consumer = Consumer(store, auto_offset_reset="none")
    consumer.assign([tp(0), tp(1)])
    consumer.seek(tp(0), to)
    consumer.seek(tp(1), 0)
    got: list[ConsumerRecord] = []
    raised = []
    for _ in range(6):  # the other partition has its turns
        try:
            got += drain_some(consumer, 1)
        except OffsetOutOfRangeError as error:
            raised.append((error.offset, error.start, error.end))
    assert len(raised) >= 4
    assert set(raised) == {(to, 4, 10)}
    assert offsets(got, 1) == list(range(10))
    assert consumer.position(tp(0)) == to
    consumer.seek(tp(0), 4)
    assert offsets(drain(consumer)) == list(range(4, 10))


def test_records_that_go_under_the_reader(store: segstore.Store) -> None:
    fill(store)
    consumer = earliest(store, "t", max_poll_records=2)
    assert offsets(drain_some(consumer, 1)) == [0, 1]
    store.partition("t").delete_records(6)
    # What was read before the records went is still given, as a broker's answer on its way would be.
    rest = offsets(drain(consumer))
    assert rest == sorted(rest)
    assert set(range(6, 10)) <= set(rest)
    consumer.seek(tp(), 5)
    assert offsets(drain(consumer)) == list(range(6, 10))


def drain_some(consumer: Consumer, polls: int) -> list[ConsumerRecord]:
    return [r for _ in range(polls) for records in consumer.poll().values() for r in records]


def test_a_seek_takes_an_offset_and_metadata(store: segstore.Store) -> None:
    fill(store)
    consumer = earliest(store)
    consumer.assign([tp()])
    consumer.seek(tp(), OffsetAndMetadata(7, "note", 0))
    assert offsets(drain(consumer)) == [7, 8, 9]


def test_pause_and_resume(store: segstore.Store) -> None:
    fill(store, partitions=2)
    consumer = earliest(store, "t", max_poll_records=4)
    consumer.poll()
    consumer.pause(tp(0))
    assert consumer.paused() == {tp(0)}
    assert {record.partition for record in drain(consumer)} == {1}
    before = consumer.position(tp(0))
    consumer.resume(tp(0))
    assert consumer.paused() == set()
    assert offsets(drain(consumer)) == list(range(before, 10))


def test_a_partition_that_stays_assigned_keeps_position_and_pause(store: segstore.Store) -> None:
    fill(store, partitions=3)
    consumer = earliest(store)
    consumer.assign([tp(0), tp(1)])
    consumer.seek(tp(0), 5)
    consumer.pause(tp(1))
    consumer.assign([tp(0), tp(1), tp(2)])
    assert (consumer.position(tp(0)), consumer.paused()) == (5, {tp(1)})
    consumer.assign([])
    assert (consumer.assignment(), consumer.subscription()) == (set(), None)


# --- looking up ------------------------------------------------------------------------------


def test_offsets_that_are_looked_up(store: segstore.Store) -> None:
    store.create_topic("t", partitions=2)
    store.partition("t", 0).append_batch([b"a", b"b", b"c"], timestamps=[10, 20, 30])
    consumer = earliest(store)
    both = [tp(0), tp(1)]
    assert consumer.beginning_offsets(both) == {tp(0): 0, tp(1): 0}
    assert consumer.end_offsets(both, timeout_ms=5) == {tp(0): 3, tp(1): 0}
    assert consumer.offsets_for_times({tp(0): 11, tp(1): 11}) == {
        tp(0): OffsetAndTimestamp(1, 20, 0),
        tp(1): None,
    }
    assert consumer.offsets_for_times({tp(0): 31}) == {tp(0): None}
    assert consumer.assignment() == set()
    assert consumer.topics() == {"t"}
    assert consumer.partitions_for_topic("t") == {0, 1}
    assert consumer.partitions_for_topic("u") == set()
    consumer.assign([tp(0)])
    assert consumer.highwater(tp(0)) == 3


# --- a log that was restored from an older copy ----------------------------------------------------


@pytest.fixture
def restored(store_dir: Path, tmp_path: Path) -> Iterator[segstore.Store]:
    """Offsets 0 to 9 are of the copy, 10 to 29 were appended behind the restore; the group had read the 20
    that the original had. Its commit is not of the copy, as that of another cluster's log.
    """
    with segstore.open(tmp_path / "original") as store:
        fill(store)
    shutil.copytree(tmp_path / "original", store_dir, dirs_exist_ok=True)
    with segstore.open(store_dir) as store:
        append(store, 20)
        assert store.partition("t").epoch_end(0) == (0, 10)
        with Consumer(store, group_id="g") as consumer:
            consumer.assign([tp()])
            consumer.commit({tp(): OffsetAndMetadata(20, "", 0)})
        yield store


def test_a_committed_offset_beside_a_restored_log(restored: segstore.Store) -> None:
    """It goes on where the logs part (KIP-320), and does not pass over what came behind the restore."""
    with earliest(restored, group_id="g") as consumer:
        consumer.assign([tp()])
        assert consumer.position(tp()) == 10
        assert offsets(drain(consumer)) == list(range(10, 30))


def test_a_committed_offset_beside_a_restored_log_is_told(restored: segstore.Store) -> None:
    with Consumer(restored, group_id="g", auto_offset_reset="none") as consumer:
        consumer.assign([tp()])
        with pytest.raises(LogTruncationError) as raised:
            consumer.poll()
        assert raised.value.diverging == 10


@pytest.mark.parametrize(("epoch", "at"), [(-1, 20), (7, 0), (None, 20)])
def test_epochs_of_committed_offsets(restored: segstore.Store, epoch: int | None, at: int) -> None:
    """Without one nothing can be told; one that the log has not reached is of a log that went on."""
    if epoch is None:
        epoch = restored.partition("t").leader_epoch
    elif epoch > 0:
        epoch += restored.partition("t").leader_epoch
    with earliest(restored, group_id="g") as consumer:
        consumer.assign([tp()])
        consumer.commit({tp(): OffsetAndMetadata(20, "", epoch)})
    with earliest(restored, group_id="g") as consumer:
        consumer.assign([tp()])
        assert consumer.position(tp()) == at
