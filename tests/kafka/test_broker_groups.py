"""segstore reads the committed offsets of a real broker and goes on from them, and the broker does so with
segstore's.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import kafka
import pytest
from group_records import at, end, member, offsets_of, record, tp
from kafka_broker import Broker
from kafka_tools import classpath, why_not
from waiting import until
from wire_client import WireClient

import segstore
from segstore import names
from segstore.coordinator.consumer_protocol import encode_assignment, encode_subscription
from segstore.coordinator.group.admin import Groups, Reset
from segstore.coordinator.group.assignors import MemberSubscription
from segstore.coordinator.offsets.consumer_schema import (
    Change,
    Current,
    GroupEpoch,
    GroupRecordType,
    MemberState,
    RecordKey,
    TargetAssignment,
    TargetEpoch,
    Value,
    consumer_value,
    parse_consumer_value,
)
from segstore.coordinator.offsets.consumer_schema import ConsumerMemberValue as ConsumerSubscription
from segstore.coordinator.offsets.group_offsets import TOPIC
from segstore.coordinator.offsets.schema import parse_key
from segstore.protocol.error_codes import Code

confluent_kafka = pytest.importorskip("confluent_kafka", reason="Kafka's broker needs a client")
admin = pytest.importorskip("confluent_kafka.admin")
pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),
    pytest.mark.kind("Kafka's broker"),
]


NOTE = "a note\0"  # as confluent-kafka sends "a note"


def consume_and_commit(address: str, group: str, protocol: str, records: int) -> None:
    """A member of a real group reads so many records and commits, with a note."""
    settings: dict[str, Any] = {"bootstrap.servers": address, "group.id": group, "group.protocol": protocol}
    settings |= {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["t"])
    read = 0
    while read < records:
        read += sum(1 for message in consumer.consume(records - read, 1.0) if message.error() is None)
    consumer.commit(offsets=[confluent_kafka.TopicPartition("t", 0, records, "a note")], asynchronous=False)
    consumer.close()


def committed(address: str, group: str) -> dict[int, tuple[int, str]]:
    """What the broker gives a client that asks for a group's offsets ; confluent-kafka reads beyond notes."""
    client = kafka.KafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    asked = {p: client.committed(kafka.TopicPartition("t", p), metadata=True) for p in range(2)}
    client.close()
    return {p: (found.offset, found.metadata) for p, found in asked.items() if found is not None}


def make(address: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": address})
    client.create_topics([admin.NewTopic("t", 2, 1)])["t"].result()
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for i in range(10):
        producer.produce("t", b"%d" % i, partition=0)
    producer.flush()


def test_groups_move_between_a_broker_and_segstore(tmp_path: Path) -> None:
    broker = Broker(classpath(), tmp_path / "broker")
    with broker.running() as address:
        make(address)
        consume_and_commit(address, "classic", "classic", 4)
        consume_and_commit(address, "modern", "consumer", 6)
    look(broker.logs)
    go_on(broker.logs)
    shutil.rmtree(broker.logs / ".segstore")
    with broker.running() as address:
        assert committed(address, "classic") == {0: (8, ""), 1: (0, "ours")}
        assert committed(address, "modern") == {0: (7, "ours")}
        assert committed(address, "ours") == {0: (3, "in a transaction")}
        consume_and_commit(address, "ours", "classic", 7)  # from 3 to the end
        assert committed(address, "ours")[0] == (7, NOTE)
    with segstore.open(broker.logs, mode="r") as store:
        assert Groups(store).lag("ours") == {tp(0): 3}


def look(logs: Path) -> None:
    """As the broker left it."""
    with segstore.open(logs, mode="r") as store:
        states = {one.group_id: (one.state, one.protocol_type) for one in Groups(store).list()}
        assert states == {"classic": ("Empty", "consumer"), "modern": ("Empty", "consumer")}
        for group, offset in (("classic", 4), ("modern", 6)):
            (part,) = Groups(store).describe(group).partitions
            assert part.committed is not None
            assert (part.committed.offset, part.committed.metadata) == (offset, NOTE)
            assert (part.start, part.end, part.lag) == (0, 10, 10 - offset)


def go_on(logs: Path) -> None:
    told = encode_subscription(MemberSubscription(("t",)))
    with segstore.open(logs) as store:
        offsets = offsets_of(store)
        Groups(store).reset("classic", Reset.shift_by(4))
        offsets.commit("classic", {tp(1): at(0, "ours")})
        offsets.commit("modern", {tp(0): at(7, "ours")})
        offsets.commit("ours", {tp(0): at(1), tp(1): at(1)})
        offsets.delete("ours", [tp(1)])
        offsets.write_group(record("ours", member("m", told, encode_assignment([tp(0)]))))
        offsets.write_group(record("ours", since=store.context.clock()))
        offsets.commit_transactional("ours", {tp(0): at(2)}, 77, 0)
        end(store, "ours", 77, False)
        offsets.commit_transactional("ours", {tp(0): at(3, "in a transaction")}, 77, 0)
        end(store, "ours", 77, True)
        assert store.topics()[TOPIC].ours


def test_members_of_consumer_groups_are_the_same_to_a_broker_and_segstore(tmp_path: Path) -> None:
    """A broker's own record of one has the bytes of ours, and ours is no classic member to a broker."""
    broker = Broker(classpath(), tmp_path / "broker")
    with broker.running() as address:
        make(address)
        consume_and_commit(address, "theirs", "consumer", 4)
    with segstore.open(broker.logs) as store:
        theirs = member_records(store)
        assert {consumer_value(value) for value in map(read_member, theirs)} == set(theirs)
        assert len(theirs) == 1
        topic_id = names.topic_id_bytes(store.topics()["t"].topic_id)
        held = {topic_id: frozenset({0, 1})}
        told = ConsumerSubscription(
            client_id="c", client_host="/127.0.0.1", topic_names=frozenset({"t"}), rebalance_timeout_ms=60_000
        )
        changes: list[Change] = [
            (RecordKey(GroupRecordType.EPOCH), GroupEpoch(1)),
            (RecordKey(GroupRecordType.MEMBER, "m"), told),
            (RecordKey(GroupRecordType.TARGET_EPOCH), TargetEpoch(1)),
            (RecordKey(GroupRecordType.TARGET, "m"), TargetAssignment(held)),
            (RecordKey(GroupRecordType.CURRENT, "m"), Current(1, 0, MemberState.STABLE, held)),
        ]
        offsets_of(store).write_consumer("ours", changes)
    shutil.rmtree(broker.logs / ".segstore")
    with broker.running() as address, WireClient(*host_and_port(address)) as wire:
        until(lambda: described(wire).error_code == Code.NONE)
        (one,) = described(wire).members
        assert (one.member_id, one.member_type, one.member_epoch) == ("m", CONSUMER, 1)


CONSUMER = 1
"""The type of a member in ConsumerGroupDescribe; 0 is one of the classic protocol."""


def member_records(store: segstore.Store) -> list[bytes]:
    """The values of all members' records."""
    records = store.partition(TOPIC, 0).read(0)
    kinds = [(parse_key(record.key), record.value) for record in records if record.key and record.value]
    return [value for key, value in kinds if getattr(key, "record", ("",))[0] is GroupRecordType.MEMBER]


def read_member(data: bytes) -> Value:
    return parse_consumer_value(GroupRecordType.MEMBER, data)


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.partition(":")
    return host, int(port)


def described(wire: WireClient) -> Any:
    wire.ask("FindCoordinator", 4, key_type=0, coordinator_keys=["ours"])
    return wire.ask("ConsumerGroupDescribe", 1, group_ids=["ours"]).groups[0]
