"""Every message in every version: what our codec writes, it reads; what does not fit is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from drawn_messages import CASES, drawn, encoded

from segstore.errors import InvalidArgumentError, UnsupportedVersionError
from segstore.protocol.codec import decode, encode, packed, structs
from segstore.protocol.definitions import messages

NAMES = sorted({name for name, _ in CASES})


def versions_of(name: str) -> range:
    low, high = messages()[name].valid
    return range(low, high + 1)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read(name: str, rng: random.Random) -> None:
    for version in versions_of(name):
        for _ in range(3):
            body = drawn(name, version, rng)
            assert decode(name, version, memoryview(encoded(body, version))) == body


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_written_and_read(name: str) -> None:
    for version in versions_of(name):
        body = structs(name)()
        assert decode(name, version, memoryview(encoded(body, version))) == body


def test_a_default_of_an_object_is_its_own() -> None:
    kind = structs("MetadataResponse")
    kind().topics.append(kind.MetadataResponseTopic())
    assert kind().topics == []


def test_defaults_are_those_of_kafka() -> None:
    heartbeat = structs("ConsumerGroupHeartbeatRequest")()
    assert heartbeat.topic_partitions is None
    assert heartbeat.rebalance_timeout_ms == -1
    assert structs("DescribeTopicPartitionsRequest")().cursor is None
    assert structs("FetchRequest")().replica_state.replica_id == -1
    assert structs("FetchRequest")().max_bytes == 0x7FFFFFFF


@pytest.mark.parametrize(
    ("name", "version", "values"),
    [
        pytest.param("HeartbeatRequest", 0, {"generation_id": 1 << 31}, id="a number that is too large"),
        pytest.param("HeartbeatRequest", 0, {"generation_id": "1"}, id="text for a number"),
        pytest.param("HeartbeatRequest", 0, {"group_id": None}, id="null"),
        pytest.param("HeartbeatRequest", 0, {"group_id": 7}, id="a number for text"),
        pytest.param("HeartbeatRequest", 0, {"group_id": "\ud800"}, id="half a surrogate pair"),
        pytest.param("HeartbeatRequest", 0, {"group_id": "x" * 32768}, id="a long string"),
        pytest.param("HeartbeatRequest", 4, {"group_id": "x" * 32768}, id="a long compact string"),
        pytest.param("FetchRequest", 13, {"topics": None}, id="a null array"),
        pytest.param("FetchRequest", 13, {"topics": [None]}, id="a null structure"),
        pytest.param("FetchResponse", 12, {"node_endpoints": None, "responses": 3}, id="no array"),
        pytest.param("SaslAuthenticateRequest", 2, {"auth_bytes": "text"}, id="text for bytes"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name: str, version: int, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} version {version} can't hold"):
        encoded(structs(name)(**values), version)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_uuid_of_another_length_is_refused(size: int) -> None:
    kind = structs("FetchRequest")
    body = kind(topics=[kind.FetchTopic(topic_id=bytes(size))])
    with pytest.raises(InvalidArgumentError, match=f"a uuid has {size} bytes instead of 16"):
        encoded(body, 13)


@pytest.mark.parametrize(
    ("name", "version"), [("FetchRequest", 3), ("FetchRequest", 19), ("FetchRequest", -1)]
)
def test_other_versions_are_refused(name: str, version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match="4 to 18"):
        decode(name, version, memoryview(b""))
    with pytest.raises(UnsupportedVersionError, match="4 to 18"):
        encoded(structs(name)(), version)


@pytest.mark.parametrize("version", [0, 7, 13])
def test_an_array_that_is_packed_stands_for_its_list(version: int) -> None:
    kind = structs("MetadataResponse")
    rows = [kind.MetadataResponsePartition(partition_index=n, leader_id=1, isr_nodes=[1]) for n in range(200)]
    bodies = [
        kind(topics=[kind.MetadataResponseTopic(name="t", partitions=partitions)])
        for partitions in (rows, packed("MetadataResponse", version, rows))
    ]
    assert encoded(bodies[1], version) == encoded(bodies[0], version)
    with pytest.raises(InvalidArgumentError, match=f"encoded in version {version}"):
        encode(bodies[1], version + 1 if version < 13 else 0, bytearray())


def test_what_cannot_be_packed_is_refused() -> None:
    row = structs("MetadataResponse").MetadataResponsePartition(partition_index=1 << 40)
    with pytest.raises(InvalidArgumentError, match="MetadataResponse version 12 can't hold"):
        packed("MetadataResponse", 12, [row])
