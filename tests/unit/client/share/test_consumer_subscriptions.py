"""What a share consumer is subscribed to, and topics and members that come and go."""

from __future__ import annotations

import pytest
from consumers import LONG_MS, append, tp
from groups import Monotonic, coordinator
from share_consumers import counts, members, offsets, state, worker
from share_consumers import store as store

import segstore
from segstore import ShareConsumer
from segstore.errors import IllegalStateError


def test_a_poll_needs_topics(store: segstore.Store) -> None:
    with ShareConsumer(store, group_id="g") as queue:
        assert queue.subscription() == set()
        with pytest.raises(IllegalStateError, match="subscribe"):
            queue.poll(timeout_ms=LONG_MS)


@pytest.mark.parametrize("way", ["unsubscribe", "nothing to subscribe to"])
def test_unsubscribing_leaves_the_group(store: segstore.Store, way: str) -> None:
    with worker(store) as queue:
        records = queue.poll_flat(max_records=2)
        if way == "unsubscribe":
            queue.unsubscribe()
        else:
            queue.subscribe([])
        assert members(store) == 0
        queue.acknowledge(records[0])
        assert queue.commit_sync() == {tp(): None}
        with worker(store) as other:
            assert counts(other.poll_flat()) == {2: 2, 3: 2, **dict.fromkeys(range(4, 10), 1)}
        with pytest.raises(IllegalStateError, match="subscribe"):
            queue.poll()
        queue.subscribe({"t"})
        queue.acknowledge(records[1])
        assert offsets(queue.poll_flat()) == [*range(2, 10)]


def test_another_subscription_takes_the_place_of_the_first(store: segstore.Store) -> None:
    store.create_topic("u")
    store.partition("u").append(b"x")
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        assert queue.poll().keys() == {tp()}
        queue.subscribe(["u"])
        assert queue.subscription() == {"u"}
        assert queue.poll(timeout_ms=LONG_MS).keys() == {tp(0, "u")}


def test_q46_a_topic_that_is_made_anew_begins_anew(store: segstore.Store) -> None:
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        assert len(queue.poll_flat()) == 10
        store.delete_topic("t")
        assert queue.poll() == {}
        store.create_topic("t")
        append(store, 3)
        assert counts(queue.poll_flat(timeout_ms=LONG_MS)) == {0: 1, 1: 1, 2: 1}


def test_q47_partitions_that_are_added_are_read(store: segstore.Store) -> None:
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        assert len(queue.poll_flat()) == 10
        segstore.AdminClient(store).create_partitions({"t": segstore.NewPartitions(2)})
        append(store, 3, partition=1)
        assert {at: offsets(each) for at, each in queue.poll(timeout_ms=LONG_MS).items()} == {
            tp(1): [0, 1, 2]
        }


def test_a_member_that_polls_too_late_joins_again(store: segstore.Store) -> None:
    clock = Monotonic()
    groups = coordinator(store, clock)
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        queue.poll()
        assert members(store) == 1
        clock.now += queue.config.max_poll_interval_ms
        groups.run_due()
        assert members(store) == 0
        assert queue.poll() == {}
        assert members(store) == 1
        assert state(store)[1] == 0
