"""R35: producers with ids across failovers: nothing twice, all in order, transactions all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from replicated_stores import Directories, found, retrying
from stores import committed_values
from waiting import until

import segstore
from segstore.replication.metadata.image import PartitionKey

pytestmark = pytest.mark.kind("replicated stores")

LOSSES: dict[str, Callable[[Directories, int], object]] = {
    "renamed away": lambda d, n: d.lose(n),
    "each call fails": lambda d, n: d.files.fail(d.paths[n]),
    "hangs for a while": lambda d, n: d.files.hang(d.paths[n]),
}


def lead_elsewhere(three: Directories, store: Any, how: str) -> None:
    """Lose the directory that leads partition 0 of "t", until another one leads."""
    leader = store.describe_partition("t", 0).leader
    LOSSES[how](three, leader)
    until(lambda: store.describe_partition("t", 0).leader not in (leader, -1))
    if how == "hangs for a while":
        three.files.mend()  # a call that hangs holds up whoever has made it


@pytest.mark.hangs
@pytest.mark.parametrize("how", LOSSES)
def test_r35_an_idempotent_producer_writes_each_record_once_and_in_order(
    three: Directories, how: str
) -> None:
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3)
    sent: list[Any] = []
    with segstore.Producer(store, acks="all", enable_idempotence=True, linger_ms=1) as producer:
        for number in range(300):
            if number == 150:
                lead_elsewhere(three, store, how)
            sent.append(producer.send("t", b"%d" % number))
            if number % 25 == 0:
                producer.flush()
        producer.flush()
    told = {future.get(timeout=60).offset: b"%d" % number for number, future in enumerate(sent)}
    here = found(store.partition("t", 0))
    assert told == here
    assert [here[offset] for offset in sorted(here)] == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize("how", ["renamed away", "each call fails"])
def test_p10_transactions_are_all_or_nothing_across_a_failover(three: Directories, how: str) -> None:
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", partitions=3, replication_factor=3)
    outcome: dict[int, str] = {}
    producer = None
    for number in range(12):
        if number == 5:
            lead_elsewhere(three, store, how)
        if producer is None:
            producer = segstore.Producer(store, acks="all", transactional_id="x")
            retrying(producer.init_transactions)
        try:
            producer.begin_transaction()
            for partition in range(3):
                producer.send("t", b"%d" % number, partition=partition)
            if number % 4 == 3:
                producer.abort_transaction()
                outcome[number] = "aborted"
            else:
                producer.commit_transaction()
                outcome[number] = "committed"
        except segstore.SegstoreError:
            outcome[number] = "unknown"
            producer = _closed(producer)
    _closed(producer)
    assert list(outcome.values()).count("unknown") <= 3, outcome
    kept = [_committed(store, partition) for partition in range(3)]
    assert kept[0] == kept[1] == kept[2], "a transaction is there in part"
    for number, told in outcome.items():
        there = kept[0].count(b"%d" % number)
        assert there == {"committed": 1, "aborted": 0}.get(told, there), (number, told, kept[0])
        assert there <= 1


def _closed(producer: Any) -> None:
    if producer is not None:
        try:
            producer.close()
        except segstore.SegstoreError:
            return


def _committed(store: Any, partition: int) -> list[bytes | None]:
    log = store.partition("t", partition)
    # A transaction that was left open is aborted by the next producer with its id, or when its time is over.
    with segstore.Producer(store, acks="all", transactional_id="x") as producer:
        retrying(producer.init_transactions)
    until(lambda: log.last_stable_offset == log.end_offset)
    return committed_values(log)


def test_r35_a_new_leader_knows_what_was_written_before_it_led(three: Directories) -> None:
    """A producer that sends its batch again after an election is told the old offset."""
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3)
    with segstore.Producer(store, acks="all", enable_idempotence=True) as producer:
        first = producer.send("t", b"once").get(timeout=60).offset
        lead_elsewhere(three, store, "each call fails")
        second = producer.send("t", b"after").get(timeout=60).offset
    assert (first, second) == (0, 1)
    assert found(store.partition("t", 0)) == {0: b"once", 1: b"after"}


def test_a_transaction_that_was_open_when_a_leader_was_lost_is_ended_by_the_next_producer(
    three: Directories,
) -> None:
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3)
    first = segstore.Producer(store, acks="all", transactional_id="x")
    first.init_transactions()
    first.begin_transaction()
    first.send("t", b"never committed").get(timeout=60)
    lead_elsewhere(three, store, "each call fails")
    second = segstore.Producer(store, acks="all", transactional_id="x")
    retrying(second.init_transactions)
    with pytest.raises(segstore.SegstoreError):
        first.commit_transaction()
    second.begin_transaction()
    second.send("t", b"committed")
    second.commit_transaction()
    log = store.partition("t", 0)
    assert committed_values(log) == [b"committed"]
    _closed(first)
    _closed(second)


def test_a_flush_makes_all_in_sync_replicas_durable(three: Directories) -> None:
    """And so the decision of a transaction on a topic that is synced: whoever leads after a power cut of all
    disks has it.
    """
    store = three.open(transaction_state_log_num_partitions=1)
    store.create_topic("t", replication_factor=3, config={"flush.messages": 1})
    store.create_topic("u", replication_factor=3)
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"in it")
        producer.commit_transaction()
    decided = store.partition("__transaction_state", 0).log_end_offset - 1  # the next record says: complete
    log = store.partition("u", 0)
    log.append(b"alone")
    log.flush()
    for topic, end in (("__transaction_state", decided), ("u", log.log_end_offset)):
        replicas = [d.replicas[PartitionKey(topic, 0)] for d in store.engine.manager.online]
        assert [each.partition.recovery_point >= end for each in replicas] == [True] * 3
