"""The records of consumer groups in `__consumer_offsets`: what is written is read again, and Kafka's dump
tool reads it as Kafka's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kafka_tools
import pytest
from group_records import decoded, offsets_of, opened
from hypothesis import given
from hypothesis import strategies as st
from kafka_schema import int8, int16, int32

from segstore import names
from segstore.coordinator.offsets.consumer_schema import (
    Assignment,
    AssignmentEpochs,
    Change,
    ClassicMember,
    ConsumerMemberValue,
    Current,
    GroupEpoch,
    GroupRecordType,
    MemberState,
    PartitionMetadata,
    RecordKey,
    Resolved,
    TargetAssignment,
    TargetEpoch,
    Value,
    consumer_key,
    consumer_value,
    parse_consumer_value,
)
from segstore.coordinator.offsets.group_offsets import TOPIC
from segstore.coordinator.offsets.schema import parse_key
from segstore.errors import InvalidArgumentError, UnsupportedVersionError

pytestmark = pytest.mark.kind("Kafka's tools")

A, B = b"a" * 16, b"b" * 16
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.frozensets(TEXT, max_size=3)
ASSIGNMENTS = st.dictionaries(
    st.sampled_from([A, B]), st.frozensets(st.integers(0, (1 << 31) - 1), min_size=1, max_size=3)
)
PROTOCOLS = st.lists(st.tuples(TEXT, st.binary(max_size=4)), max_size=2).map(tuple)


def epochs_of(epoch: int, previous: int, state: MemberState, *held: Assignment) -> AssignmentEpochs:
    """Return an epoch for each partition of topic A; those of other topics have none, as in old records."""
    found = {number: number % 7 for assignment in held for number in assignment.get(A, ())}
    return {A: found} if found else {}


VALUES: dict[GroupRecordType, st.SearchStrategy[Value]] = {
    GroupRecordType.EPOCH: st.builds(GroupEpoch, INT32, INT64),
    GroupRecordType.MEMBER: st.builds(
        ConsumerMemberValue,
        *(st.none() | TEXT, st.none() | TEXT, TEXT, TEXT, NAMES, st.none() | TEXT, INT32, st.none() | TEXT),
        st.none() | st.builds(ClassicMember, INT32.filter(bool), PROTOCOLS),
    ),
    GroupRecordType.TARGET_EPOCH: st.builds(TargetEpoch, INT32),
    GroupRecordType.TARGET: st.builds(TargetAssignment, ASSIGNMENTS),
    GroupRecordType.CURRENT: st.builds(
        lambda *told: Current(*told, since=epochs_of(*told)),
        *(INT32, INT32, st.sampled_from(MemberState), ASSIGNMENTS, ASSIGNMENTS),
    ),
    GroupRecordType.REGEX: st.builds(Resolved, NAMES, INT64, INT64),
}


@pytest.mark.parametrize("kind", VALUES)
@given(st.data())
def test_what_is_written_is_read_again(kind: GroupRecordType, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind])
    assert parse_consumer_value(kind, consumer_value(value)) == value


@pytest.mark.parametrize("kind", GroupRecordType)
def test_keys_are_read_again(kind: GroupRecordType) -> None:
    name = "é" if kind in VALUES and kind not in (GroupRecordType.EPOCH, GroupRecordType.TARGET_EPOCH) else ""
    key = RecordKey(kind, name)
    assert parse_key(consumer_key("g", key)) == ("g", key)


BAD: dict[str, tuple[GroupRecordType, bytes, type[Exception]]] = {
    "a newer version": (GroupRecordType.TARGET, int16(1), UnsupportedVersionError),
    "an end too early": (GroupRecordType.EPOCH, int16(0) + b"\0", ValueError),
    "a count of more than there is": (GroupRecordType.TARGET, int16(0) + b"\x7f", ValueError),
    "a topic without all of its id": (GroupRecordType.TARGET, int16(0) + b"\x02" + A[:9], ValueError),
    "fewer partitions than epochs": (
        GroupRecordType.CURRENT,
        int16(0) + bytes(8) + b"\0\x02" + A + b"\x02" + int32(5) + b"\x01\0\x09\x03" + bytes(8) + b"\x01\0",
        ValueError,
    ),
    "a junk version": (GroupRecordType.MEMBER, int16(-1), ValueError),
}


@pytest.mark.parametrize("name", BAD)
def test_other_bytes_are_refused(name: str) -> None:
    kind, data, error = BAD[name]
    with pytest.raises(error):
        parse_consumer_value(kind, data)


def test_what_others_have_written_is_understood() -> None:
    """A state of a newer Kafka, the hash that is missing before 4.1, and that version's own record."""
    current = int16(0) + int32(4) + int32(3) + int8(9) + b"\x01\x01\x00"
    assert parse_consumer_value(GroupRecordType.CURRENT, current) == Current(4, 3, MemberState.UNKNOWN)
    topic = b"\x02" + A + b"\x02" + int32(5) + b"\0"
    old = parse_consumer_value(
        GroupRecordType.CURRENT, int16(0) + int32(4) + int32(3) + int8(0) + topic + b"\x01\0"
    )
    assert isinstance(old, Current)
    assert (old.assigned_in(A, 5), old.assigned_in(A, 6), old.assigned_in(B, 5)) == (4, None, None)
    assert old._replace(epoch=-2).assigned_in(A, 5) == 0
    assert parse_consumer_value(GroupRecordType.EPOCH, int16(0) + int32(4) + b"\0") == GroupEpoch(4, 0)
    assert parse_consumer_value(GroupRecordType.PARTITION_METADATA, int16(0) + b"?") == PartitionMetadata()


def test_the_time_of_a_target_is_passed_over() -> None:
    target = int16(0) + int32(6) + b"\1\0\x08" + bytes(8)  # its time, since KIP-1263
    assert parse_consumer_value(GroupRecordType.TARGET_EPOCH, target) == TargetEpoch(6)


def test_a_member_of_the_consumer_protocol_has_a_null() -> None:
    """Without it Kafka's brokers take the member for one of the classic protocol (the field's default)."""
    value = ConsumerMemberValue("i", topic_names=frozenset({"t"}), rebalance_timeout_ms=5)
    data = consumer_value(value)
    assert data[-5:] == b"\0" + b"\1\0\1\0"
    assert parse_consumer_value(GroupRecordType.MEMBER, data) == value
    assert (
        parse_consumer_value(GroupRecordType.MEMBER, data[:-4] + b"\0") == value
    )  # as segstore wrote it before


def test_names_that_are_too_long_are_refused_and_nothing_is_written(store_dir: Path) -> None:
    with opened(store_dir, offsets_topic_num_partitions=1) as store:
        kept = offsets_of(store)
        change: Change = (RecordKey(GroupRecordType.MEMBER, "m" * 32_768), ConsumerMemberValue())
        with pytest.raises(InvalidArgumentError, match="32,767"):
            kept.write_consumer("g", [(RecordKey(GroupRecordType.EPOCH), GroupEpoch(1)), change])
        assert kept.groups() == set()
        assert store.partition(TOPIC).end_offset == 0


@pytest.mark.judge("kafka.tools.DumpLogSegments")
@pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not()))
@pytest.mark.timeout(900)
def test_kafkas_dump_tool_reads_what_we_write(store_dir: Path) -> None:
    told = ConsumerMemberValue("i", "r", "c", "/127.0.0.1", frozenset({"t", "u"}), "x.*", 5, "range")
    classic = told._replace(classic=ClassicMember(9, (("range", b"abc"), ("sticky", b""))))
    held = Current(7, 6, MemberState.UNREVOKED_PARTITIONS, {A: frozenset({0, 2})}, {B: frozenset({1})})
    changes: list[Change] = [
        (RecordKey(GroupRecordType.EPOCH), GroupEpoch(7, -9)),
        (RecordKey(GroupRecordType.MEMBER, "m"), told),
        (RecordKey(GroupRecordType.MEMBER, "o"), classic),
        (RecordKey(GroupRecordType.TARGET_EPOCH), TargetEpoch(6)),
        (RecordKey(GroupRecordType.TARGET, "m"), TargetAssignment({A: frozenset({0})})),
        (RecordKey(GroupRecordType.CURRENT, "m"), held),
        (RecordKey(GroupRecordType.REGEX, "x.*"), Resolved(frozenset({"x1"}), 3, 4)),
        (RecordKey(GroupRecordType.PARTITION_METADATA), None),
    ]
    with opened(store_dir, offsets_topic_num_partitions=1) as store:
        offsets_of(store).write_consumer("g", changes)
    directory = store_dir / f"{TOPIC}-0"
    assert kafka_tools.judge(directory).errors == []
    read: list[tuple[dict[str, Any], Any]] = decoded([directory])
    assert [int(key["type"]) for key, _ in read] == [3, 5, 5, 6, 7, 8, 16, 4]
    assert [key["data"].get("memberId", key["data"].get("regularExpression")) for key, _ in read] == [
        *(None, "m", "o", None, "m", "m", "x.*", None)
    ]
    values = [payload if payload == "<DELETE>" else payload["data"] for _, payload in read]
    topic = names.topic_id_of(A)
    said = {
        "instanceId": "i",
        "rackId": "r",
        "clientId": "c",
        "clientHost": "/127.0.0.1",
        "subscribedTopicNames": ["t", "u"],
        "subscribedTopicRegex": "x.*",
        "rebalanceTimeoutMs": 5,
        "serverAssignor": "range",
    }
    protocols = [{"name": "range", "metadata": "YWJj"}, {"name": "sticky", "metadata": ""}]
    assert values == [
        {"epoch": 7, "metadataHash": -9},
        {**said, "classicMemberMetadata": None},
        {**said, "classicMemberMetadata": {"sessionTimeoutMs": 9, "supportedProtocols": protocols}},
        {"assignmentEpoch": 6},
        {"topicPartitions": [{"topicId": topic, "partitions": [0]}]},
        {
            "memberEpoch": 7,
            "previousMemberEpoch": 6,
            "state": 1,
            "assignedPartitions": [{"topicId": topic, "partitions": [0, 2]}],
            "partitionsPendingRevocation": [{"topicId": names.topic_id_of(B), "partitions": [1]}],
        },
        {"topics": ["x1"], "version": 3, "timestamp": 4},
        "<DELETE>",
    ]
