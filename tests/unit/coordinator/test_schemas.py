"""The bytes of groups, Kafka's schemas and ConsumerProtocol, as kafka-python and the dump tool see them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka_tools
import pytest
import waiting
from group_records import at, decoded, end, member, offsets_of, opened, record, tp
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kafka_schema import array, byte_string, int16, int32, int64, string
from stores import START_MS, append_inner

import segstore
from segstore import names
from segstore.coordinator.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    version_of,
)
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.group.assignors import MemberSubscription
from segstore.coordinator.java_hash import partition_of
from segstore.coordinator.offsets import schema
from segstore.coordinator.offsets.group_offsets import TOPIC, GroupOffsets
from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidArgumentError, UnsupportedVersionError

pytestmark = pytest.mark.kind("Kafka's tools")

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
INT32 = st.integers(0, 2**31 - 1)
TOPICS = st.dictionaries(TEXT.filter(bool), st.lists(INT32, unique=True, min_size=1), max_size=4)

# --- the group's partition ----------------------------------------------------

HASHES = {
    "g": 103,
    "é😀": (233 * 31 + 0xD83D) * 31 + 0xDE00,  # over UTF-16's units
    "polygenelubricants": 0,  # Java's least int, of which there is no absolute value
}


@pytest.mark.parametrize("group", HASHES)
def test_partition_of_a_group(group: str) -> None:
    assert partition_of(group, 50) == HASHES[group] % 50


# --- ConsumerProtocol ----------------------------------------------------


def flat(topics: dict[str, list[int]]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers)


@given(st.integers(0, 3), st.lists(TEXT), TOPICS, st.binary(), st.integers(-1, 99))
def test_a_subscription_is_kafka_pythons(
    version: int, topics: list[str], owned: dict[str, list[int]], data: bytes, generation: int
) -> None:
    ours = MemberSubscription(tuple(topics), flat(owned), data, generation, "i")
    encoded = encode_subscription(ours, version)
    parts = [
        ConsumerProtocolSubscription.TopicPartition(topic=t, partitions=held) for t, held in owned.items()
    ]
    theirs = ConsumerProtocolSubscription(
        version=version, topics=topics, user_data=data, owned_partitions=parts, generation_id=generation
    )
    assert encoded == theirs.encode()
    known = MemberSubscription(
        ours.topics, ours.owned if version >= 1 else (), data, generation if version >= 2 else -1, "i"
    )
    assert decode_subscription(encoded, "i") == known


@given(st.integers(0, 3), TOPICS, st.none() | st.binary())
def test_an_assignment_is_kafka_pythons(
    version: int, topics: dict[str, list[int]], data: bytes | None
) -> None:
    encoded = encode_assignment(flat(topics), data, version)
    assert encoded == ConsumerProtocolAssignment(version, list(topics.items()), data).encode()
    assert decode_assignment(encoded) == list(flat(topics))


def test_of_a_newer_version_is_read_what_is_known() -> None:
    encoded = encode_subscription(MemberSubscription(("t",), (tp(),), b"x", 5))
    newer = int16(9) + encoded[2:-2] + string("rack-1") + b"more"
    assert decode_subscription(newer) == MemberSubscription(("t",), (tp(),), b"x", 5, rack="rack-1")
    assert (version_of(newer), version_of(encoded), version_of(int16(0))) == (3, 3, 0)
    assert decode_assignment(int16(9) + encode_assignment([tp()])[2:] + b"more") == [tp()]
    assert decode_assignment(b"") == []


@given(st.binary(max_size=40))
def test_what_is_no_protocol_is_one_error(data: bytes) -> None:
    whole = encode_subscription(MemberSubscription(("topic", "other"), (tp(),), b"data", 5), 2)
    for bytes_ in (data, *(whole[:n] for n in range(len(whole)))):
        for decode in (decode_subscription, decode_assignment):
            try:
                decode(bytes_)
            except InvalidArgumentError:
                continue
    with pytest.raises(InvalidArgumentError):
        decode_subscription(whole[:-1])
    for version in (-1, 4):
        with pytest.raises(InvalidArgumentError, match="version"):
            encode_assignment([], b"", version)


# --- records of all versions ----------------------------------------------------


def compact(text: str) -> bytes:
    return bytes([len(text.encode()) + 1]) + text.encode()


STAMP = int64(START_MS)
OFFSETS = {
    0: int16(0) + int64(5) + string("né") + STAMP,
    1: int16(1) + int64(5) + string("né") + STAMP + int64(START_MS + 9),
    2: int16(2) + int64(5) + string("né") + STAMP,
    3: int16(3) + int64(5) + int32(7) + string("né") + STAMP,
    4: int16(4) + int64(5) + int32(7) + compact("né") + STAMP + b"\1\5\3abc",  # with a tagged field
}


@pytest.mark.parametrize("version", OFFSETS)
def test_an_offset_of_every_version(version: int) -> None:
    found = schema.parse_offset(OFFSETS[version])
    assert found.offset == at(5, "né", 7 if version >= 3 else -1)
    assert (found.timestamp, found.expires) == (START_MS, START_MS + 9 if version == 1 else -1)
    commit = schema.OffsetCommitValue(at(5, "né", 7), START_MS)
    assert schema.offset_value(commit) == OFFSETS[3]


@pytest.mark.parametrize("note", ["né", "", "x" * 200])
def test_an_offset_tells_the_topics_id(note: str) -> None:
    topic_id = names.new_topic_id()
    commit = schema.OffsetCommitValue(at(5, note, 7), START_MS, topic_id=topic_id)
    assert schema.parse_offset(schema.offset_value(commit)) == commit
    head = int16(4) + int64(5) + int32(7) + string(note, compact=True) + STAMP
    assert schema.offset_value(commit) == head + b"\1\0\x10" + names.topic_id_bytes(topic_id)
    assert schema.parse_offset(head + b"\1\0\x10" + bytes(16)) == commit._replace(topic_id="")
    for data in (b"", b"abc", bytes(15), bytes(17)):
        with pytest.raises(ValueError, match=r"another length|too early|bytes are left"):
            schema.parse_offset(head + b"\1\0" + bytes([len(data)]) + data)


def kept(version: int) -> bytes:
    """A group of one member, as Kafka has written it in that version."""
    text: Callable[[str], bytes] = compact if version >= 4 else string
    data: Callable[[bytes], bytes] = (lambda d: bytes([len(d) + 1]) + d) if version >= 4 else byte_string
    one = text("m") + (text("i-m") if version >= 3 else b"") + text("app") + text("localhost")
    one += (int32(300_000) if version >= 1 else b"") + int32(45_000) + data(b"s") + data(b"a")
    head = int16(version) + text("consumer") + int32(3) + text("range") + text("m")
    head += int64(5) if version >= 2 else b""
    return head + (b"\2" + one + b"\0" + b"\0" if version >= 4 else array([one]))


@pytest.mark.parametrize("version", range(5))
def test_a_group_of_every_version(version: int) -> None:
    found = schema.parse_group("g", kept(version))
    (one,) = found.members
    assert (found.protocol_type, found.generation, found.protocol, found.leader) == (
        "consumer",
        3,
        "range",
        "m",
    )
    assert found.state_timestamp_ms == (5 if version >= 2 else -1)
    assert one.group_instance_id == ("i-m" if version >= 3 else None)
    assert one.rebalance_timeout_ms == (300_000 if version >= 1 else 45_000)
    assert (one.session_timeout_ms, one.subscription, one.assignment) == (45_000, b"s", b"a")
    assert schema.group_value(record("g", member("m", static=True))) == kept(3)


# --- a topic that a broker wrote, with what is not known ----------------------------------------------------


def write_raw(store: segstore.Store, *pairs: tuple[bytes, bytes | None]) -> None:
    log = store.partition(TOPIC, offsets_of(store).partition_for("g"))
    for key, value in pairs:
        append_inner(log, value, key=key)


UNKNOWN = {
    "a commit of a newer version": (
        schema.offset_key("g", tp(1)),
        int16(5),
        "OffsetCommitValue of version 5",
    ),
    "a group of a newer version": (schema.group_key("g"), int16(5), "GroupMetadataValue of version 5"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_refused_by_name_and_keeps_nobody_else(store_dir: Path, name: str) -> None:
    key, value, reason = UNKNOWN[name]
    with opened(store_dir, offsets_topic_num_partitions=1) as store:
        offsets_of(store).commit("h", {tp(): at(1)})
        write_raw(store, (schema.offset_key("g", tp(0)), OFFSETS[1]), (key, value))
        fresh = GroupOffsets(store)
        for call in (fresh.fetch, fresh.group, fresh.delete, lambda g: fresh.commit(g, {tp(): at(1)})):
            with pytest.raises(UnsupportedVersionError, match=reason):
                call("g")
        assert fresh.fetch("h") == {tp(): at(1)}
        assert (fresh.groups(), fresh.expire(1 << 60)) == ({"g", "h"}, {"h": {tp()}})
        write_raw(store, (key, None))  # whoever wrote it takes it back
        assert GroupOffsets(store).fetch("g") == {tp(0): at(5, "né")}


def test_groups_of_unknown_protocols_can_be_looked_at(store_dir: Path) -> None:
    key = int16(17) + string("g")  # a streams group's
    with opened(store_dir, offsets_topic_num_partitions=1) as store:
        offsets_of(store).commit("g", {tp(): at(1)})
        write_raw(store, (key, int16(0) + int32(4)), (int16(18) + string("g") + string("m"), int16(0)))
        fresh = GroupOffsets(store)
        assert fresh.fetch("g") == {tp(): at(1)}
        with pytest.raises(
            UnsupportedVersionError, match=r"newer group protocol \(record types \[17, 18\]\)"
        ):
            fresh.write_group(record("g"))
    with segstore.open(store_dir, mode="r") as reader:
        (listing,) = Groups(reader).list()
        assert (listing.state, listing.group_id) == ("Unknown", "g")
        assert Groups(reader).describe("g").partitions[0].committed == at(1)


def test_records_of_other_kinds_are_passed_by_and_told(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(store_dir, offsets_topic_num_partitions=1) as store:
        offsets_of(store).commit("g", {tp(): at(1)})
        log = store.partition(TOPIC)
        store._alter_topic(TOPIC, {"cleanup.policy": "delete"})  # a compacted topic takes none without a key
        append_inner(log, b"x", key=b"?")
        append_inner(log, b"x")
        with caplog.at_level(logging.WARNING, "segstore"):
            assert GroupOffsets(store).fetch("g") == {tp(): at(1)}
            waiting.told()
        (told,) = [record.getMessage() for record in caplog.records]
        assert told.startswith(
            "__consumer_offsets-0: 2 records are not readable as a group's and passed over; the first is at "
        )
        assert len(segstore.check(store_dir)) == 2
        store._delete_topic(TOPIC)


def test_a_brokers_directory(store_dir: Path) -> None:
    """Without settings of ours it is read; the first commit makes it ours. A copy of some partitions too."""
    with opened(store_dir, offsets_topic_num_partitions=50) as store:
        offsets_of(store).commit("g", {tp(): at(1)})
        offsets_of(store).commit("h", {tp(): at(2)})
        where = offsets_of(store).partition_for("g")
    for suffix in ("json", "copy"):
        (store_dir / ".segstore" / "topics" / f"{TOPIC}.{suffix}").unlink()
    for number in set(range(50)) - {where}:
        directory = store_dir / f"{TOPIC}-{number}"
        [file.unlink() for file in directory.iterdir()]
        directory.rmdir()
    with segstore.open(store_dir, mode="r") as reader:
        assert [g.group_id for g in Groups(reader).list()] == ["g"]
    with segstore.open(store_dir) as store:
        offsets = offsets_of(store)
        assert offsets.fetch("g") == {tp(): at(1)}
        assert not store.topics()[TOPIC].ours
        offsets.commit("g", {tp(): at(3)})
        assert store.topics()[TOPIC].config["cleanup.policy"] == "compact"
        with pytest.raises(segstore.UnknownTopicOrPartitionError):
            offsets.commit("h", {tp(): at(3)})
    with segstore.open(store_dir) as store:
        assert offsets_of(store).fetch("g") == {tp(): at(3)}


# --- Kafka's own ----------------------------------------------------


@pytest.mark.judge("kafka.tools.DumpLogSegments")
@pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not()))
@pytest.mark.timeout(900)
def test_kafkas_dump_tool_reads_what_we_write(store_dir: Path) -> None:
    told = encode_subscription(MemberSubscription(("t",), (tp(),), b"", 4))
    with opened(store_dir, offsets_topic_num_partitions=1, offsets_topic_compression_codec=4) as store:
        offsets = offsets_of(store)
        offsets.commit("g", {tp(0): at(5, "note é", 3), tp(1): at(6)})
        offsets.write_group(
            record("g", member("m", told, encode_assignment([tp()])), member("n", told, static=True))
        )
        offsets.delete("g", [tp(1)])
        offsets.commit_transactional("g", {tp(2): at(9)}, 7, 0)
        end(store, "g", 7, True)
        offsets.delete("g")
        topic_id = store.topics()["t"].topic_id
    directory = store_dir / f"{TOPIC}-0"
    dump = kafka_tools.judge(directory)
    assert dump.errors == []
    assert [batch["isTransactional"] for batch in dump.batches(directory)] == [False] * 3 + [True] * 2 + [
        False
    ]
    found = decoded([directory])
    keys = [(key["type"], key["data"].get("partition")) for key, _ in found]
    assert keys == [("1", 0), ("1", 1), ("2", None), ("1", 1), ("1", 2), ("1", 0), ("1", 2), ("2", None)]
    assert [payload == "<DELETE>" for _, payload in found] == [False] * 3 + [True, False] + [True] * 3
    assert found[0] == (
        {"type": "1", "data": {"group": "g", "topic": "t", "partition": 0}},
        {
            "version": "4",
            "data": {
                "offset": 5,
                "leaderEpoch": 3,
                "metadata": "note é",
                "commitTimestamp": START_MS,
                "topicId": topic_id,
            },
        },
    )
    group: Any = found[2][1]["data"]
    assert (group["protocolType"], group["generation"], group["leader"]) == ("consumer", 3, "m")
    assert [m["groupInstanceId"] for m in group["members"]] == [None, "i-n"]
    first = group["members"][0]
    assert first["subscription"]["ownedPartitions"] == [{"topic": "t", "partitions": [0]}]
    assert first["subscription"]["generationId"] == 4
    assert first["assignment"]["assignedPartitions"] == [{"topic": "t", "partitions": [0]}]
