"""Apache Kafka's own dump tool on what brokers and segstore have written."""

from __future__ import annotations

import shutil
from pathlib import Path

import kafka_tools
import pytest
from partitions import GOLDEN, Expected, Source, broker_partitions

pytestmark = [
    pytest.mark.judge("kafka.tools.DumpLogSegments"),
    pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("Kafka's tools"),
]


@pytest.fixture(scope="module")
def clean() -> kafka_tools.Dump:
    return kafka_tools.judge(*(source.path for source in broker_partitions() if source.form == "clean"))


@pytest.mark.parametrize("source", [s for s in broker_partitions() if s.form == "clean"], ids=lambda s: s.id)
def test_broker_written_partitions_are_valid(source: Source, clean: kafka_tools.Dump) -> None:
    """The golden partitions, two of which were cut, are still what a broker would have written."""
    assert clean.errors == []
    assert_shows(clean, source.path, source.expected())
    assert all(file.sane or file.empty for file in clean.indexes(source.path).values())


FAULTS = {
    "a flipped bit in a value": (".log", 5000, "isvalid: false"),
    "an index offset that no batch ends at": (".index", 3, "Mismatches in :"),
    "a time index stamp that no batch has": (".timeindex", 6, "Found timestamp mismatch in :"),
    "a time index offset that no batch ends at": (".timeindex", 11, "The following indexed offsets"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_judge_sees(name: str, tmp_path: Path) -> None:
    """The judge must be able to say no, or its yes is worth nothing."""
    suffix, position, complaint = FAULTS[name]
    partition = tmp_path / "flights-none-1"
    shutil.copytree(GOLDEN / "clean" / "flights-none-1", partition, copy_function=shutil.copyfile)
    path = next(partition.glob(f"*{suffix}"))
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    errors = kafka_tools.judge(partition).errors
    assert any(complaint in error for error in errors), errors


def assert_shows(dump: kafka_tools.Dump, partition: Path, expected: list[Expected]) -> None:
    """The tool has seen these records, beside the markers of transactions."""
    shown = [record for record in dump.records(partition) if record["endTxnMarker"] is None]
    assert [record["offset"] for record in shown] == [record.offset for record in expected]
    assert [record["timestamp"] for record in shown] == [record.timestamp for record in expected]
    assert [record["keySize"] for record in shown] == [size(record.key) for record in expected]
    assert [record["valueSize"] for record in shown] == [size(record.value) for record in expected]


def size(data: bytes | None) -> int:
    return -1 if data is None else len(data)
