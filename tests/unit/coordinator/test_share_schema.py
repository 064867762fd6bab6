"""The records of share groups in `__consumer_offsets`: what is written is read again, and Kafka's dump tool
reads it as Kafka's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kafka_tools
import pytest
from group_records import decoded, offsets_of, opened
from hypothesis import given
from hypothesis import strategies as st
from kafka_schema import int16, int32

from segstore import names
from segstore.cli.dump_states import state_text
from segstore.coordinator.offsets.consumer_schema import GroupEpoch, TargetAssignment
from segstore.coordinator.offsets.group_offsets import TOPIC, GroupOffsets
from segstore.coordinator.offsets.schema import parse_key
from segstore.coordinator.offsets.share_schema import (
    ShareChange,
    ShareCurrent,
    ShareKind,
    ShareRecordKey,
    ShareStateTopics,
    ShareSubscription,
    ShareTargetEpoch,
    ShareValue,
    TopicPartitionsInfo,
    parse_share_value,
    share_key,
    share_value,
)
from segstore.errors import InvalidArgumentError, UnsupportedVersionError

pytestmark = pytest.mark.kind("Kafka's tools")

A, B = b"a" * 16, b"b" * 16
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
NUMBERS = st.frozensets(st.integers(0, (1 << 31) - 1), min_size=1, max_size=3)
IDS = st.sampled_from([A, B])
ASSIGNMENTS = st.dictionaries(IDS, NUMBERS)
INFOS = st.dictionaries(IDS, st.builds(TopicPartitionsInfo, TEXT, NUMBERS))
OF_MEMBERS = (ShareKind.MEMBER, ShareKind.TARGET, ShareKind.CURRENT)

VALUES: dict[ShareKind, st.SearchStrategy[ShareValue]] = {
    ShareKind.MEMBER: st.builds(ShareSubscription, st.none() | TEXT, TEXT, TEXT, st.frozensets(TEXT)),
    ShareKind.EPOCH: st.builds(GroupEpoch, INT32, INT64),
    ShareKind.TARGET_EPOCH: st.builds(ShareTargetEpoch, INT32, INT64),
    ShareKind.TARGET: st.builds(TargetAssignment, ASSIGNMENTS),
    ShareKind.CURRENT: st.builds(ShareCurrent, INT32, INT32, ASSIGNMENTS),
    ShareKind.PARTITIONS: st.builds(ShareStateTopics, INFOS, INFOS, st.dictionaries(IDS, TEXT)),
}


@pytest.mark.parametrize("kind", ShareKind)
@given(st.data())
def test_q85_what_is_written_is_read_again(kind: ShareKind, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind])
    assert parse_share_value(kind, share_value(kind, value)) == value


@pytest.mark.parametrize("kind", ShareKind)
def test_q85_keys_are_read_again(kind: ShareKind) -> None:
    key = ShareRecordKey(kind, "é" if kind in OF_MEMBERS else "")
    data = share_key("g", key)
    assert data[:2] == int16(int(kind))
    assert parse_key(data) == ("g", key)


BAD: dict[str, tuple[ShareKind, bytes, type[Exception]]] = {
    "a newer version": (ShareKind.TARGET, int16(1), UnsupportedVersionError),
    "an end too early": (ShareKind.EPOCH, int16(0) + b"\0", ValueError),
    "a count of more than there is": (ShareKind.PARTITIONS, int16(0) + b"\x7f", ValueError),
    "a junk version": (ShareKind.MEMBER, int16(-1), ValueError),
}


@pytest.mark.parametrize("name", BAD)
def test_other_bytes_are_refused(name: str) -> None:
    kind, data, error = BAD[name]
    with pytest.raises(error):
        parse_share_value(kind, data)


def test_a_target_of_before_4_3_has_no_time() -> None:
    found = parse_share_value(ShareKind.TARGET_EPOCH, int16(0) + int32(6) + b"\0")
    assert found == ShareTargetEpoch(6, 0)


CHANGES: list[ShareChange] = [
    (ShareRecordKey(ShareKind.MEMBER, "m"), ShareSubscription("r", "c", "/127.0.0.1", frozenset({"t", "u"}))),
    (ShareRecordKey(ShareKind.EPOCH), GroupEpoch(2, -9)),
    (ShareRecordKey(ShareKind.TARGET, "m"), TargetAssignment({A: frozenset({1, 0})})),
    (ShareRecordKey(ShareKind.TARGET_EPOCH), ShareTargetEpoch(2, 5)),
    (ShareRecordKey(ShareKind.CURRENT, "m"), ShareCurrent(2, 1, {A: frozenset({0})})),
    (
        ShareRecordKey(ShareKind.PARTITIONS),
        ShareStateTopics(
            {A: TopicPartitionsInfo("t", frozenset({2}))},
            {A: TopicPartitionsInfo("t", frozenset({0, 1}))},
            {B: "u"},
        ),
    ),
    (ShareRecordKey(ShareKind.TARGET, "gone"), None),
]
ID_A, ID_B = names.topic_id_of(A), names.topic_id_of(B)
AS_JSON: list[Any] = [
    {"rackId": "r", "clientId": "c", "clientHost": "/127.0.0.1", "subscribedTopicNames": ["t", "u"]},
    {"epoch": 2, "metadataHash": -9},
    {"topicPartitions": [{"topicId": ID_A, "partitions": [0, 1]}]},
    {"assignmentEpoch": 2, "assignmentTimestamp": 5},
    {
        "memberEpoch": 2,
        "previousMemberEpoch": 1,
        "state": 0,
        "assignedPartitions": [{"topicId": ID_A, "partitions": [0]}],
    },
    {
        "initializingTopics": [{"topicId": ID_A, "topicName": "t", "partitions": [2]}],
        "initializedTopics": [{"topicId": ID_A, "topicName": "t", "partitions": [0, 1]}],
        "deletingTopics": [{"topicId": ID_B, "topicName": "u"}],
    },
    None,
]


def test_a_group_is_loaded_and_deleted(store_dir: Path) -> None:
    with opened(store_dir, offsets_topic_num_partitions=1) as store:
        offsets_of(store).write_share("g", CHANGES)
        loaded = GroupOffsets(store)
        assert loaded.share("g") == {key: value for key, value in CHANGES if value is not None}
        assert (loaded.share_groups(), loaded.groups(), loaded.has("g")) == (["g"], {"g"}, True)
        assert (loaded.group("g"), loaded.consumer("g"), loaded.fetch("g")) == (None, {}, {})
        offsets_of(store).delete("g")
        assert (offsets_of(store).groups(), GroupOffsets(store).share("g")) == (set(), {})


def test_names_that_are_too_long_are_refused_and_nothing_is_written(store_dir: Path) -> None:
    with opened(store_dir, offsets_topic_num_partitions=1) as store:
        change: ShareChange = (ShareRecordKey(ShareKind.MEMBER, "m" * 32_768), ShareSubscription())
        with pytest.raises(InvalidArgumentError, match="32,767"):
            offsets_of(store).write_share("g", [CHANGES[0], change])
        assert store.partition(TOPIC).end_offset == 0


def test_dump_shows_records_as_kafka_s_formatter() -> None:
    for (key, value), wanted in zip(CHANGES, AS_JSON, strict=True):
        told = state_text(TOPIC, share_key("g", key), value and share_value(key.kind, value))
        assert told is not None
        of_member = {"memberId": key.member_id} if key.member_id else {}
        assert json.loads(told.key) == {"type": int(key.kind), "data": {"groupId": "g", **of_member}}
        assert (told.value and json.loads(told.value)) == (wanted and {"version": 0, "data": wanted})


@pytest.mark.judge("kafka.tools.DumpLogSegments")
@pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not()))
@pytest.mark.timeout(900)
def test_kafkas_dump_tool_reads_what_we_write(store_dir: Path) -> None:
    with opened(store_dir, offsets_topic_num_partitions=1) as store:
        offsets_of(store).write_share("g", CHANGES)
    directory = store_dir / f"{TOPIC}-0"
    assert kafka_tools.judge(directory).errors == []
    read: list[tuple[dict[str, Any], Any]] = decoded([directory])
    assert [int(key["type"]) for key, _ in read] == [int(key.kind) for key, _ in CHANGES]
    assert [key["data"].get("memberId", "") for key, _ in read] == [key.member_id for key, _ in CHANGES]
    values = [None if payload == "<DELETE>" else payload["data"] for _, payload in read]
    assert values == AS_JSON
