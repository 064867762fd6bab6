"""Every message in every version: what our codec writes, it reads; and Kafka's other codecs in Python,
kafka-python and kio, read the same values and write the same bytes.
"""

from __future__ import annotations

import importlib
import io
import random
from typing import Any

import pytest
from drawn_messages import CASES, drawn, encoded
from kafka.protocol.api_message import ApiMessage

from segstore.errors import InvalidArgumentError, UnsupportedVersionError
from segstore.server.protocol.codec import decode, structs
from segstore.server.protocol.definitions import messages, snake_case

GROUPS = ("admin", "consumer", "metadata", "producer", "sasl")
NAMES = sorted({name for name, _ in CASES})
UNKNOWN_THERE = {
    f"{api}{kind}"
    for api in ("ConsumerGroupDescribe", "ConsumerGroupHeartbeat")
    for kind in ("Request", "Response")
}
"""What kafka-python 3.0 lacks."""
AS_A_SET = {"authorized_operations", "cluster_authorized_operations", "topic_authorized_operations"}
"""Fields that are bits, and sets of operations in kafka-python."""


def versions_of(name: str) -> range:
    low, high = messages()[name].valid
    return range(low, high + 1)


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    """The messages of kafka-python by name."""
    modules = [importlib.import_module(f"kafka.protocol.{group}") for group in GROUPS]
    found = (each for module in modules for each in vars(module).values() if isinstance(each, type))
    return {each.__name__: each for each in found if issubclass(each, ApiMessage)}


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


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNKNOWN_THERE])
def test_kafka_python_reads_and_writes_the_same(
    name: str, rng: random.Random, theirs: dict[str, Any]
) -> None:
    for version in versions_of(name):
        body = drawn(name, version, rng)
        if name == "ApiVersionsResponse":
            body.error_code = 0  # they read every other one as version 0
        data = encoded(body, version)
        other = theirs[name].decode(data, version=version)
        assert_same_values(body, other, name, name, version)
        other._header = None
        assert bytes(other.encode(version=version)) == data


def test_kafka_python_lacks_only_what_is_known(theirs: dict[str, Any]) -> None:
    assert {name for name in NAMES if name not in theirs} == UNKNOWN_THERE


def assert_same_values(ours: Any, other: Any, message: str, struct: str, version: int) -> None:
    """Compare field by field, by name."""
    assert {snake_case(name) for name in other.fields} >= set(ours.__slots__) - AS_A_SET
    for field in messages()[message].structs[struct]:
        if version not in field.versions or field.name in AS_A_SET:
            continue
        one, two = getattr(ours, field.name), getattr(other, field.name)
        if field.is_struct and one is not None:
            pairs = zip(one, two, strict=True) if field.is_array else [(one, two)]
            for mine, their in pairs:
                if their is not None:  # a tagged structure of defaults has no bytes
                    assert_same_values(mine, their, message, field.kind, version)
        else:
            assert one == plain(two), field.name


def plain(value: Any) -> Any:
    """Return a uuid of kafka-python as bytes."""
    if isinstance(value, list):
        return list(map(plain, value))
    return value.bytes if hasattr(value, "bytes") else value


@pytest.mark.parametrize("name", NAMES)
def test_kio_reads_and_writes_the_same(name: str, rng: random.Random) -> None:
    index = pytest.importorskip("kio.index", reason="kio is not installed (it needs Python 3.11)")
    serial = importlib.import_module("kio.serial")
    definition = messages()[name]
    load = index.load_request_schema if definition.kind == "request" else index.load_response_schema
    for version in versions_of(name):
        data = encoded(drawn(name, version, rng), version)
        entity = load(definition.api_key, version)
        other, size = serial.entity_reader(entity)(data, 0)
        assert size == len(data)
        out = io.BytesIO()
        serial.entity_writer(entity)(out, other)
        assert out.getvalue() == data


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
