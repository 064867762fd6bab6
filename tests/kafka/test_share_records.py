"""Promise: after the same requests a broker and segstore have the same records of share groups: in
`__share_group_state` the same bytes but for times and ids, and one record more, by which a start that was
found is kept; in `__consumer_offsets` the same steps, which begin with the assignment that a broker gives
only by the second heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from broker_clients import admin, confluent_kafka
from kafka_tools import why_not
from share_broker import LETTER_SETTINGS, QUEUE, set_group, share_broker
from share_script import (
    ACCEPT,
    GAP,
    OFFSETS,
    REJECT,
    RELEASE,
    STATES,
    Member,
    alter_offset,
    await_coordinator,
    by_group,
    delete_group,
    delete_offsets,
    delete_records,
)
from waiting import PATIENCE, until

import segstore

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),
    pytest.mark.kind("Kafka's broker"),
]
TRANSACTIONS = "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
OURS = {
    "share.coordinator.state.topic.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "group.share.min.record.lock.duration.ms": 1000,
    "errors.deadletterqueue.auto.create.topics.enable": True,
}
LEFT_OUT = {
    **dict.fromkeys(("createTimestamp", "writeTimestamp", "assignmentTimestamp"), 0),
    "topicId": "an id",
    "metadataHash": 0,
}
SNAPSHOT, UPDATE = 0, 1
MEMBER, EPOCH, TARGET_EPOCH, TARGET, CURRENT, PARTITIONS = range(10, 16)
Row = tuple[int, str, Any]


# --- the script ------------------------------------------------------------------------------------


def make(address: str, topic: str, records: int = 10, partitions: int = 1, **settings: str) -> None:
    """Make a topic with records, all in one batch, and its group, which has its name."""
    client = admin.AdminClient({"bootstrap.servers": address})
    client.create_topics([admin.NewTopic(topic, partitions, 1)])[topic].result(PATIENCE)
    set_group(address, {**QUEUE, **{name.replace("_", "."): each for name, each in settings.items()}}, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 1000})
    for number in range(records):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE) == 0


def types(address: str) -> None:
    """All types of acknowledgements, and a session that ends with a record held."""
    make(address, "types")
    member = Member(address, "types").join()
    member.take((0, 9, 1))
    member.acknowledge((0, 2, ACCEPT), (3, 5, RELEASE), (6, 7, REJECT))
    member.take((3, 5, 2))
    member.acknowledge((8, 9, ACCEPT))
    member.acknowledge((3, 3, GAP), (4, 4, ACCEPT))
    member.end()
    member.take((5, 5, 3))
    member.acknowledge((5, 5, ACCEPT))
    member.end()
    member.leave()


def letters(address: str) -> None:
    """A record that becomes a dead letter."""
    make(address, "letters", errors_deadletterqueue_topic_name="dlq.letters")
    member = Member(address, "letters").join()
    member.take((0, 9, 1))
    member.acknowledge((2, 2, REJECT))
    until(lambda: member.offsets() == (0, 9))
    member.acknowledge((0, 1, ACCEPT))
    member.end()
    member.leave()


def locks(address: str) -> None:
    """Locks that run out."""
    make(address, "locks", share_record_lock_duration_ms="1000")
    member = Member(address, "locks").join()
    member.take((0, 9, 1))
    member.take((0, 9, 2))
    member.acknowledge((0, 9, ACCEPT))
    member.end()
    member.leave()


def limit(address: str) -> None:
    """Records that are released too often."""
    make(address, "limit", share_delivery_count_limit="2")
    member = Member(address, "limit").join()
    member.take((0, 9, 1))
    member.acknowledge((0, 4, RELEASE))
    member.take((0, 4, 2))
    member.acknowledge((0, 4, RELEASE), (5, 9, ACCEPT))
    member.end()
    member.leave()


def single(address: str) -> None:
    """So many acknowledgements that a snapshot follows."""
    make(address, "single", 520)
    alter_offset(address, "single", 0)
    member = Member(address, "single").join()
    member.take((0, 519, 1), most=1000)
    for number in range(510):
        member.acknowledge((number, number, ACCEPT if number % 3 else RELEASE))
    member.end()
    member.leave()


def committed(address: str) -> None:
    """Transactions, the second of which is aborted: offsets 4 to 7 with its marker."""
    make(address, "committed", 0, share_isolation_level="read_committed")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "transactional.id": "t", "linger.ms": 1000}
    )
    producer.init_transactions(PATIENCE)
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce("committed", b"", partition=0)
        producer.flush(PATIENCE)
        end(PATIENCE)
    member = Member(address, "committed").join()
    member.take((0, 3, 1), (7, 11, 1))
    for offset in (0, 1, 2, 3, *range(7, 12)):
        member.acknowledge((offset, offset, GAP if offset in (3, 7, 11) else ACCEPT))
    member.end()
    member.leave()


def start(address: str) -> None:
    """Records that are deleted while they are locked."""
    make(address, "start")
    member = Member(address, "start").join()
    member.take((0, 9, 1))
    delete_records(address, "start", 5)
    member.acknowledge(*((each, each, RELEASE if each % 2 else ACCEPT) for each in range(10)))
    member.take((5, 5, 2), (7, 7, 2), (9, 9, 2))
    member.acknowledge((5, 5, ACCEPT), (7, 7, ACCEPT), (9, 9, ACCEPT))
    member.end()
    member.leave()


def members(address: str) -> None:
    """Two members, and a group that is deleted."""
    make(address, "members", partitions=3)
    one, other = Member(address, "members").join(3), Member(address, "members", "n")
    until(lambda: one.beat() and other.beat() and (one.assigned, other.assigned) == (2, 1))
    one.leave()
    until(lambda: other.beat() and other.assigned == 3)
    other.leave()
    delete_group(address, "members")


def altered(address: str) -> None:
    """A group that had no member when its offset was altered, and which is deleted from the topic."""
    make(address, "altered")
    alter_offset(address, "altered", 4)
    member = Member(address, "altered").join()
    member.take((4, 9, 1))
    member.acknowledge((4, 5, ACCEPT))
    member.end()
    member.leave()
    delete_offsets(address, "altered")


def dropped(address: str) -> None:
    """A topic that is deleted."""
    make(address, "dropped")
    member = Member(address, "dropped").join()
    member.take((0, 9, 1))
    member.acknowledge((0, 0, ACCEPT))
    client = admin.AdminClient({"bootstrap.servers": address})
    client.delete_topics(["dropped"])["dropped"].result(PATIENCE)
    until(lambda: member.beat() and member.assigned == 0)
    member.leave()


def added(address: str) -> None:
    """Partitions that are added."""
    make(address, "added")
    member = Member(address, "added").join()
    client = admin.AdminClient({"bootstrap.servers": address})
    client.create_partitions([admin.NewPartitions("added", 3)])["added"].result(PATIENCE)
    until(lambda: member.beat() and member.assigned == 3)
    member.leave()


SCRIPT: dict[str, Callable[[str], None]] = {
    step.__name__: step
    for step in (types, letters, locks, limit, single, committed, start, members, altered, dropped, added)
}


def run(address: str) -> None:
    await_coordinator(address)
    for step in SCRIPT.values():
        step(address)


class Histories(NamedTuple):
    """The records of each group that the broker and our server have written."""

    theirs: dict[str, list[Row]]
    ours: dict[str, list[Row]]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The directories of the broker, and ours."""
    ours = tmp_path_factory.mktemp("ours")
    with segstore.open(ours, config=OURS) as store, segstore.serve(store, port=0) as server:
        run(server.bootstrap_servers)
    broker = share_broker(tmp_path_factory.mktemp("broker"), LETTER_SETTINGS + TRANSACTIONS)
    with broker.running() as address:
        run(address)
    assert segstore.check(ours) == []
    return broker.logs, ours


def histories(logs: tuple[Path, Path], topic: str) -> Histories:
    theirs, ours = (by_group(each, topic, LEFT_OUT) for each in logs)
    assert theirs.keys() == ours.keys() == SCRIPT.keys()
    return Histories(theirs, ours)


# --- what was written ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", SCRIPT)
def test_states_are_those_of_a_broker(step: str, logs: tuple[Path, Path]) -> None:
    theirs, ours = (each[step] for each in histories(logs, STATES))
    assert [without_epoch(each) for each in found_starts_left_out(ours)] == list(map(without_epoch, theirs))


@pytest.mark.parametrize("step", SCRIPT)
def test_groups_take_the_steps_of_a_broker(step: str, logs: tuple[Path, Path]) -> None:
    theirs, ours = (each[step] for each in histories(logs, OFFSETS))
    assert steps(ours, step) == steps(theirs, step)
    for rows in (theirs, ours):
        epochs = [value["epoch"] for kind, _, value in rows if kind == EPOCH and value is not None]
        assert epochs == list(range(2, 2 + len(epochs)))
        targets = [value["assignmentEpoch"] for kind, _, value in rows if kind == TARGET_EPOCH and value]
        assert targets[-1] == epochs[-1]  # also after the last member has left


def found_starts_left_out(rows: list[Row]) -> list[Row]:
    """Return our records without those by which starts that were found are made durable (Q13); there is one
    behind each snapshot that has no start, if something was delivered.
    """
    left: list[Row] = []
    open_starts: set[str] = set()
    for kind, key, value in rows:
        if kind == SNAPSHOT and value is not None and value["startOffset"] == -1:
            open_starts.add(key)
        elif kind == UPDATE and key in open_starts:
            open_starts.remove(key)
            assert (value["stateBatches"], value["deliveryCompleteCount"]) == ([], 0)
            continue
        left.append((kind, key, value))
    return left


def without_epoch(row: Row) -> Row:
    """Return a record of a state without the state epoch, which is the group's."""
    kind, key, value = row
    if kind == SNAPSHOT and value is not None:
        value = {name: each for name, each in value.items() if name != "stateEpoch"}
    return kind, key, value


def steps(rows: list[Row], step: str) -> dict[tuple[int, str], list[Any]]:
    """Return what the records of a group say of each member, and of its partitions, in order; and in what
    order the records of the first heartbeat, and those of the end, were written.

    Members have numbers of partitions, of which there are none at first in a broker. A broker whose topic was
    deleted says that there is no state any more, at some time, and nothing before.
    """
    found: dict[tuple[int, str], list[Any]] = {}
    for kind, key, value in rows:
        if kind in (EPOCH, TARGET_EPOCH):
            continue
        told = found.setdefault((kind, key), [])
        if kind == TARGET and value is not None:
            value = numbers(value["topicPartitions"])
        elif kind == CURRENT and value is not None:
            value = numbers(value["assignedPartitions"])
        elif kind == PARTITIONS and value is not None and step == "dropped" and value["deletingTopics"]:
            continue
        if value != 0 and told[-1:] != [value]:
            told.append(value)
    order = [kind for kind, _, _ in rows if kind != PARTITIONS]
    joined = order.index(MEMBER)
    ended = next(at for at, (*_, value) in enumerate(rows) if value is None)
    found[0, "joined"] = order[joined : joined + 5]
    last = [(kind, value is None) for kind, _, value in rows[ended:]]
    found[0, "ended"] = [each for each in last if step != "dropped" or each[0] != PARTITIONS]
    return found


def numbers(topics: list[dict[str, Any]]) -> int:
    return sum(len(each["partitions"]) for each in topics)
