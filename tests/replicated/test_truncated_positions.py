"""R37: a consumer whose position lies in what an unclean election has lost is told, or goes on where the logs
part; nobody else is (Kafka: KIP-320, LogTruncationException).
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from replicated_stores import Directories, append_alone, await_in_sync, elect_the_other, retrying
from waiting import until

import segstore
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.kind("replicated stores")

T0 = TopicPartition("t", 0)


def two_replicas(three: Directories) -> tuple[Any, Any]:
    store = three.open(auto_leader_rebalance_enable=False)
    store.create_topic("t", assignments={0: [0, 1]})
    return store, store.partition("t", 0)


def polled(consumer: Any, count: int) -> list[Any]:
    """The next `count` records. Another replica may be elected meanwhile; a truncation is an error."""
    seen: list[Any] = []

    def more() -> bool:
        try:
            for some in consumer.poll(100, max_records=count - len(seen)).values():
                seen.extend(some)
        except segstore.OffsetOutOfRangeError:
            raise
        except (segstore.SegstoreError, OSError):
            return False
        return len(seen) >= count

    until(more)
    return seen


def move_leader(store: Any) -> None:
    """Have the other replica elected, cleanly."""
    state = store.describe_partition("t", 0)
    order = [*state.replicas[1:], state.replicas[0]] if state.leader == state.replicas[0] else state.replicas
    retrying(lambda: store.reassign({("t", 0): order}))
    until(lambda: not store.reassignments())

    def moved() -> bool:
        store.elect_leaders("preferred", [("t", 0)])
        return bool(store.describe_partition("t", 0).leader == order[0])

    until(lambda: retrying(moved))


@pytest.mark.hangs
def test_r37_without_a_policy_the_consumer_is_told(three: Directories) -> None:
    store, log = two_replicas(three)
    log.append_batch([b"both have it"] * 3)
    with segstore.Consumer(store, auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        append_alone(three, store, log, 4)
        assert [record.offset for record in polled(consumer, 6)] == [0, 1, 2, 3, 4, 5]
        elect_the_other(three, store)
        retrying(lambda: log.append_batch([b"other"] * 9))
        with pytest.raises(segstore.LogTruncationError, match="another way from offset 3 on") as caught:
            polled(consumer, 1)
        told = pickle.loads(pickle.dumps(caught.value))
        assert (told.offset, told.diverging, str(told)) == (6, 3, str(caught.value))
        assert isinstance(told, segstore.OffsetOutOfRangeError)
        with pytest.raises(segstore.LogTruncationError):  # until the application has decided
            consumer.poll(0)
        consumer.seek(T0, told.diverging)
        assert [record.value for record in polled(consumer, 9)] == [b"other"] * 9


@pytest.mark.hangs
@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_r37_with_a_policy_it_goes_on_where_the_logs_part(three: Directories, policy: str) -> None:
    """The position itself is in range again by then."""
    store, log = two_replicas(three)
    log.append_batch([b"both have it"] * 3)
    with segstore.Consumer(store, auto_offset_reset=policy) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 2)
        append_alone(three, store, log, 3)
        assert len(polled(consumer, 3)) == 3
        elect_the_other(three, store)
        retrying(lambda: log.append_batch([b"other"] * 9))
        again = polled(consumer, 9)
        assert [(record.offset, record.value) for record in again] == [(3 + n, b"other") for n in range(9)]


@pytest.mark.hangs
def test_r37_committed_positions_are_compared_too(three: Directories) -> None:
    """They have the leader epoch of the last record, by which the next consumer sees that it is gone."""
    store, log = two_replicas(three)
    log.append_batch([b"both have it"] * 3)
    with segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest") as consumer:
        assert len(polled(consumer, 3)) == 3  # the topic of the offsets needs three directories
        append_alone(three, store, log, 2)
        assert len(polled(consumer, 2)) == 2
        retrying(consumer.commit)
        committed = consumer.committed(T0, metadata=True)
    assert (committed.offset, committed.leader_epoch) == (5, log.leader_epoch)
    elect_the_other(three, store)
    retrying(lambda: log.append_batch([b"other"] * 9))
    with segstore.Consumer(store, "t", group_id="g", auto_offset_reset="none") as consumer:
        with pytest.raises(segstore.LogTruncationError):
            polled(consumer, 1)
        consumer.seek(T0, OffsetAndMetadata(3, "", committed.leader_epoch))
        assert polled(consumer, 1)[0].value == b"other"


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_r37_markers_of_a_new_leader_are_no_truncation(three: Directories, commit: bool, level: str) -> None:
    """A position behind a transaction's marker has the epoch of the marker's leader, not that of the last
    record before it: nothing was lost.
    """
    store, log = two_replicas(three)
    log.append(b"of no transaction")
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"of a transaction", partition=0).get(60)
        move_leader(store)
        (producer.commit_transaction if commit else producer.abort_transaction)()
    end = log.log_end_offset
    until(lambda: log.last_stable_offset == end)
    assert log.epoch_of(end - 1) > log.epoch_of(end - 2)
    with segstore.Consumer(store, auto_offset_reset="none", isolation_level=level) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        seen = polled(consumer, 1 + (commit or level == "read_uncommitted"))
        assert [record.offset for record in seen] == [*range(len(seen))]
        for _ in range(3):
            assert consumer.poll(0) == {}
            assert consumer.position(T0) == end
            move_leader(store)


def test_r37_elections_that_lose_nothing_move_no_position(three: Directories) -> None:
    store = three.open(min_insync_replicas=2, auto_leader_rebalance_enable=False)
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    with segstore.Consumer(store, auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        for turn in range(6):
            for number in range(5):
                log.append(b"%d %d" % (turn, number))
            assert [record.offset for record in polled(consumer, 5)] == [*range(turn * 5, turn * 5 + 5)]
            move_leader(store)
    await_in_sync(store)


def test_a_plain_store_knows_its_epochs(tmp_path: Any) -> None:
    with segstore.open(tmp_path) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"value")
        assert log.epoch_of(0) == log.leader_epoch
        assert log.epoch_end(log.leader_epoch) == (log.leader_epoch, 1)
        with segstore.open(tmp_path, "r") as reader:
            there = reader.partition("t")
            assert (there.leader_epoch, there.epoch_of(0), there.epoch_end(0)) == (-1, -1, (-1, -1))
