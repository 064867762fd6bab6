"""segstore.index.txn_index: Kafka's bytes, entries that can't be, and what overlaps a read."""

from __future__ import annotations

import struct
from pathlib import Path

import kafka_tools
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.index.txn_index import ENTRY_SIZE, AbortedTxn, aborted, format_entries, parse

pytestmark = pytest.mark.kind("Kafka's tools")

FILE = Path("flights-txn-0") / "00000000000000000000.txnindex"
GOLDEN_TXNS = [AbortedTxn(0, 52, 77, 78), AbortedTxn(0, 78, 103, 104)]
TXNS = [
    AbortedTxn(0x0102030405060708, 10, 19, 12),
    AbortedTxn(7, 12, 25, 26),
    AbortedTxn(0x0102030405060708, 30, 49, 35),
    AbortedTxn(8, 35, (1 << 63) - 2, (1 << 63) - 1),
]


def as_txns(entries: np.ndarray) -> list[AbortedTxn]:
    return [AbortedTxn(*fields[1:]) for fields in entries.tolist()]


def test_a_brokers_index_comes_back_to_the_byte(golden: Path) -> None:
    data = (golden / "clean" / FILE).read_bytes()
    assert as_txns(parse(data)) == GOLDEN_TXNS
    assert format_entries(GOLDEN_TXNS) == data


def test_every_byte_has_its_place() -> None:
    data = format_entries(TXNS[:1])
    assert data == bytes.fromhex("00000102030405060708000000000000000a0000000000000013000000000000000c")
    assert as_txns(parse(format_entries(TXNS))) == TXNS
    assert format_entries([]) == b""
    assert len(parse(b"")) == 0


BAD_ENTRIES = {
    "another version": (1, 7, 50, 60, 61),
    "negative version": (-1, 7, 50, 60, 61),
    "negative producer id": (0, -1, 50, 60, 61),
    "negative first offset": (0, 7, -1, 60, 61),
    "negative last stable offset": (0, 7, 50, 60, -1),
    "last below first": (0, 7, 60, 59, 61),
    "nothing but the marker": (0, 7, 60, 60, 61),
    "last as before": (0, 7, 40, 49, 61),
    "last below the one before": (0, 7, 40, 48, 61),
    "zeros": (0, 0, 0, 0, 0),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_entries_are_taken_up_to_the_first_that_cannot_be(name: str) -> None:
    good = format_entries(TXNS[:3])
    data = good + struct.pack(">hqqqq", *BAD_ENTRIES[name]) + format_entries([TXNS[3]])
    found = parse(data)
    assert as_txns(found) == TXNS[:3]
    assert len(found) * ENTRY_SIZE == len(good)


@pytest.mark.parametrize("extra", [1, 2, 33])
def test_a_torn_entry_is_none(extra: int) -> None:
    data = format_entries(TXNS)
    assert as_txns(parse(data[: 2 * ENTRY_SIZE + extra])) == TXNS[:2]


def test_zeros_are_no_entries() -> None:
    """Not even where the log begins: a file that a power cut left is as long as it was."""
    assert len(parse(bytes(34))) == 0
    assert len(parse(bytes(3400) + format_entries(TXNS))) == 0


@pytest.mark.parametrize(("base_offset", "n"), [(0, 4), (19, 4), (20, 0)])
def test_markers_lie_in_the_segment(base_offset: int, n: int) -> None:
    assert len(parse(format_entries(TXNS), base_offset)) == n


@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes) -> None:
    found = as_txns(parse(data))
    assert format_entries(found) == data[: 34 * len(found)]
    assert all(0 <= txn.first_offset < txn.last_offset for txn in found)


OVERLAPS = {
    "before all": (0, 10, [], True),
    "the first record of one": (0, 11, [0], True),
    "undecided when the first ended": (0, 13, [0, 1], True),
    "the marker alone": (19, 20, [0, 1], True),
    "behind the first": (20, 26, [1], True),
    "between": (26, 30, [], True),
    "all": (0, 1 << 62, [0, 1, 2, 3], True),
    "the last marker": ((1 << 63) - 2, (1 << 63) - 1, [3], True),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_aborted(name: str) -> None:
    fetch_offset, upper_bound, expected, complete = OVERLAPS[name]
    assert aborted(parse(format_entries(TXNS)), fetch_offset, upper_bound) == (
        [TXNS[i] for i in expected],
        complete,
    )


def test_later_segments_may_have_more() -> None:
    assert aborted(parse(format_entries(TXNS[:2])), 20, 27) == ([TXNS[1]], False)
    assert aborted(parse(b""), 0, 1) == ([], False)


@pytest.mark.judge("kafka.tools.DumpLogSegments")
@pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not()))
@pytest.mark.timeout(900)
def test_kafka_reads_what_was_formatted(tmp_path: Path) -> None:
    path = tmp_path / FILE.name
    path.write_bytes(format_entries(TXNS))
    dump = kafka_tools.dump_log([path])
    assert dump.errors == []
    shown = [
        AbortedTxn(e["producerId"], e["firstOffset"], e["lastOffset"], e["lastStableOffset"])  # type: ignore[arg-type]
        for e in dump.files[path].aborted
    ]
    assert shown == TXNS
    assert {entry["version"] for entry in dump.files[path].aborted} == {0}
