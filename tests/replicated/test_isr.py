"""R18 to R20, R27: replicas leave the ISR when they lag or hang, and return when they have caught up."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from replicated_stores import Directories, Writer, await_in_sync, follower_of, found, retrying
from waiting import until

import segstore

pytestmark = pytest.mark.kind("replicated stores")


@pytest.mark.hangs
def test_r19_r20_a_follower_that_hangs_leaves_and_returns(three: Directories) -> None:
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    with Writer(log) as writer:
        writer.more()
        stuck = follower_of(store.describe_partition("t", 0))
        three.files.hang(three.paths[stuck])
        until(lambda: stuck not in store.describe_partition("t", 0).isr)
        writer.more()
        behind = replica_state(store, stuck)
        assert behind.lag > 0
        assert behind.lag_ms > 0
        three.files.mend()
        until(lambda: stuck in store.describe_partition("t", 0).isr)
        writer.more()
    writer.assert_kept(log)
    assert not [error for _, error in writer.refused], writer.refused
    await_in_sync(store)
    assert replica_state(store, stuck).lag == 0


def replica_state(store: Any, replica: int) -> Any:
    (state,) = (each for each in store.describe_partition("t", 0).replica_states if each.id == replica)
    return state


@pytest.mark.hangs
def test_r27_a_leader_that_hangs_is_fenced_and_another_is_elected(three: Directories) -> None:
    """The append that hangs in the old leader is answered when the disk is: with an error, or it is there."""
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    with Writer(log) as first:
        first.more()
    before = store.describe_partition("t", 0)
    three.files.hang(three.paths[before.leader])
    with Writer(log) as stuck:
        until(lambda: store.describe_partition("t", 0).leader not in (before.leader, -1))
        with Writer(store.partition("t", 0)) as other:
            other.more()
        three.files.mend()
        await_in_sync(store)
        stuck.more(3)
    here = found(log)
    for writer in (first, other, stuck):
        assert writer.acked.items() <= here.items()
    assert store.describe_partition("t", 0).leader_epoch > before.leader_epoch


@pytest.mark.hangs
def test_one_directory_that_hangs_holds_up_no_other_partition(three: Directories) -> None:
    store = three.open()
    store.create_topic("there", assignments={0: [0, 1]})
    store.create_topic("elsewhere", assignments={0: [1, 2]})
    three.files.hang(three.paths[0])
    with Writer(store.partition("elsewhere", 0)) as writer:
        writer.more(100)
    three.files.mend()
    writer.assert_kept(store.partition("elsewhere", 0))


def test_r15_the_high_watermark_is_what_all_in_sync_replicas_have(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    seen: list[tuple[int, int, int]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            state = store.describe_partition("t", 0)
            # In this order: what is shown was reached before, and logs only grow here.
            shown = log.high_watermark
            ends = [each.log_end_offset for each in store.describe_partition("t", 0).replica_states]
            seen.append((shown, min(ends), state.leader_epoch))

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(50):
        log.append_batch([b"%d" % number] * 20, acks=1)
    over.set()
    thread.join(60)
    assert seen
    assert all(shown <= max(lowest, 0) for shown, lowest, _ in seen), seen
    assert [shown for shown, _, _ in seen] == sorted(shown for shown, _, _ in seen), "it went back"
    until(lambda: log.high_watermark == 1000)


@pytest.mark.hangs
def test_r14_consumers_are_shown_what_is_committed_and_log_end_offset_the_rest(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", assignments={0: [0, 1]}, config={"min.insync.replicas": 2})
    log = store.partition("t", 0)
    log.append(b"shown")
    three.files.hang(three.paths[1])
    log.append(b"not yet", acks=1)
    assert (log.end_offset, log.high_watermark, log.log_end_offset) == (1, 1, 2)
    assert [*found(log).values()] == [b"shown"]
    assert log.offset_for_time(1 << 60) is None
    with segstore.Consumer(store, "t", auto_offset_reset="latest") as consumer:
        assert not consumer.poll(100)
        three.files.mend()
        (batch,) = retrying(lambda: until(lambda: consumer.poll(200))).values()
    assert [record.value for record in batch] == [b"not yet"]


@pytest.mark.hangs
def test_p9_many_partitions_all_return(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", assignments={number: [number % 2, 2, 1 - number % 2] for number in range(40)})
    three.files.hang(three.paths[2])
    for number in range(40):
        store.partition("t", number).append_batch([b"%d" % number] * 50, acks=1)
    until(lambda: all(2 not in store.describe_partition("t", number).isr for number in range(40)))
    three.files.mend()
    await_in_sync(store)
