"""Kafka's other codecs in Python, kafka-python and kio, read the same values as ours in every version of
every message, and write the same bytes.
"""

from __future__ import annotations

import importlib
import io
import random
import re
from typing import Any

import pytest
from drawn_messages import CASES, drawn, encoded
from kafka.protocol.api_message import ApiMessage

from segstore.protocol.definitions import messages, snake_case

pytestmark = pytest.mark.kind("other codecs")

GROUPS = ("admin", "consumer", "metadata", "producer", "sasl")
NAMES = sorted({name for name, _ in CASES if messages()[name].kind in ("request", "response")})
UNKNOWN_THERE = {
    f"{api}{kind}"
    for api in (
        *("BeginQuorumEpoch", "BrokerRegistration", "UnregisterBroker"),
        *("ConsumerGroupDescribe", "ConsumerGroupHeartbeat", "ShareGroupDescribe", "ShareGroupHeartbeat"),
        *("ShareFetch", "ShareAcknowledge"),
        *("DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"),
        *("InitializeShareGroupState", "ReadShareGroupState", "ReadShareGroupStateSummary"),
        *("WriteShareGroupState", "DeleteShareGroupState"),
    )
    for kind in ("Request", "Response")
}
"""What kafka-python 3.0 lacks."""
RENAMED = {"generation_id_or_member_epoch": "generation_id"}
"""Fields that had another name before Kafka 4.4, of TxnOffsetCommit."""
AS_A_SET = {"authorized_operations", "cluster_authorized_operations", "topic_authorized_operations"}
"""Fields that are bits, and sets of operations in kafka-python."""


NEWER = {
    "ApiVersions": 5,
    "DeleteGroups": 3,
    "DescribeLogDirs": 5,
    "ListOffsets": 11,
    "OffsetCommit": 10,
    "OffsetFetch": 10,
    "TxnOffsetCommit": 6,
}
"""The versions of Kafka 4.4 that both of them lack."""


def versions_of(name: str) -> range:
    low, high = messages()[name].valid
    return range(low, min(high + 1, NEWER.get(re.sub("(Request|Response)$", "", name), high + 1)))


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    """The messages of kafka-python by name."""
    modules = [importlib.import_module(f"kafka.protocol.{group}") for group in GROUPS]
    found = (each for module in modules for each in vars(module).values() if isinstance(each, type))
    return {each.__name__: each for each in found if issubclass(each, ApiMessage)}


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
    fields = [field for field in messages()[message].structs[struct] if version in field.versions]
    names = {snake_case(name) for name in other.fields}
    named = {f.name: RENAMED[f.name] if f.name not in names and f.name in RENAMED else f.name for f in fields}
    assert names >= set(named.values()) - AS_A_SET
    for field in fields:
        if field.name in AS_A_SET:
            continue
        one, two = getattr(ours, field.name), getattr(other, named[field.name])
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
