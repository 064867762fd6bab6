"""seg_scan and seg_resync: which bytes are batches, and which batches are accepted."""

from __future__ import annotations

import struct
from dataclasses import replace

import native_batches as native
import oracle
import pytest
from native_batches import (
    INT31,
    INT63,
    ONE,
    STATUS,
)
from oracle import Batch

from segstore._native import lib

TWO = replace(ONE, base_offset=20, records=[r._replace(offset=r.offset + 10) for r in ONE.records])
GOOD = oracle.encode_batch(ONE)
PAIR = GOOD + oracle.encode_batch(TWO)


def put(at: int, code: str, value: int, data: bytes = GOOD) -> bytes:
    size = struct.calcsize(code)
    return oracle.with_crc(data[:at] + struct.pack(code, value) + data[at + size :])


BAD_BATCHES = {
    "length 0, as a tail of zeros": (bytes(100), "SEG_BAD_LENGTH"),
    "length below a header": (put(8, ">i", 48), "SEG_BAD_LENGTH"),
    "length negative": (put(8, ">i", -1), "SEG_BAD_LENGTH"),
    "length near 2^31": (put(8, ">i", INT31), "SEG_BAD_LENGTH"),
    "length where 12 more overflow": (put(8, ">i", INT31 - 11), "SEG_BAD_LENGTH"),
    "length of the largest batch": (put(8, ">i", INT31 - 12), "SEG_SHORT"),
    "magic 3": (put(16, "b", 3), "SEG_BAD_MAGIC"),
    "magic 1, whose key has no such length": (put(16, "b", 1), "SEG_BAD_LENGTH"),
    "magic -1": (put(16, "b", -1), "SEG_BAD_MAGIC"),
    "a bit of the payload": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "SEG_BAD_CRC"),
    "a bit of the CRC": (GOOD[:17] + bytes([GOOD[17] ^ 1]) + GOOD[18:], "SEG_BAD_CRC"),
    "base offset negative": (put(0, ">q", -1), "SEG_BAD_OFFSETS"),
    "last offset above int64": (put(0, ">q", INT63), "SEG_BAD_OFFSETS"),
    "next offset above int64": (put(0, ">q", INT63 - 1), "SEG_BAD_OFFSETS"),
    "last offset delta negative": (put(23, ">i", -1), "SEG_BAD_OFFSETS"),
    "the same batch twice": (GOOD + GOOD, "SEG_BAD_OFFSETS"),
    "offsets that overlap": (GOOD + put(0, ">q", 11), "SEG_BAD_OFFSETS"),
    "count negative": (put(57, ">i", -1), "SEG_BAD_COUNT"),
    "count above the offsets": (put(57, ">i", 3), "SEG_BAD_COUNT"),
    "count above the bytes": (put(57, ">i", INT31, put(23, ">i", INT31)), "SEG_BAD_COUNT"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_scan_stops_before(name: str) -> None:
    data, status = BAD_BATCHES[name]
    rows, end = native.scan(data, position=7)
    assert STATUS[end.status] == status
    assert end.position == 7 + sum(rows["size"].tolist())
    assert end.need == (INT31 if status == "SEG_SHORT" else 0)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(Batch(5, 0, 0, 0), id="no records"),
        pytest.param(Batch(5, 0, 0, 9), id="no records left of ten"),
        pytest.param(replace(ONE, last_offset_delta=500), id="last ones compacted"),
        pytest.param(Batch(INT63 - 1, 0, 0, 0), id="the last offset"),
        pytest.param(Batch(INT63 - 1 - INT31, 0, 0, INT31), id="the widest range"),
    ],
)
def test_scan_takes(batch: Batch) -> None:
    assert native.decode_all(oracle.encode_batch(batch)) == batch.records


SCAN_OPTIONS = {
    "whole": ({}, [10, 20], "SEG_END"),
    "from within the first": ({"from_offset": 11}, [10, 20], "SEG_END"),
    "from behind the first": ({"from_offset": 12}, [20], "SEG_END"),
    "from behind all": ({"from_offset": 22}, [], "SEG_END"),
    "end before all": ({"end_offset": 0}, [], "SEG_STOP"),
    "end at the first": ({"end_offset": 10}, [], "SEG_STOP"),
    "end within the first": ({"end_offset": 11}, [10], "SEG_STOP"),
    "end at the second": ({"end_offset": 20}, [10], "SEG_STOP"),
    "one byte": ({"max_bytes": 1}, [10], "SEG_FULL"),
    "one byte short of both": ({"max_bytes": len(PAIR) - 1}, [10], "SEG_FULL"),
    "just enough": ({"max_bytes": len(PAIR)}, [10, 20], "SEG_END"),
    "one byte, of the second": ({"max_bytes": 1, "from_offset": 20}, [20], "SEG_END"),
    "room for one": ({"capacity": 1}, [10], "SEG_FULL"),
    "no room": ({"capacity": 0}, [], "SEG_FULL"),
}


@pytest.mark.parametrize("name", SCAN_OPTIONS)
def test_scan_options(name: str) -> None:
    options, bases, status = SCAN_OPTIONS[name]
    rows, end = native.scan(PAIR, **options)
    assert (rows["base_offset"].tolist(), STATUS[end.status]) == (bases, status)


def test_scan_skips_a_bad_crc_below_its_start_and_where_it_is_told_to() -> None:
    bad = bytearray(PAIR)
    bad[17] ^= 1
    assert len(native.scan(bytes(bad))[0]) == 0
    assert native.scan(bytes(bad), from_offset=12)[0]["base_offset"].tolist() == [20]
    assert len(native.scan(bytes(bad), check_crcs=False)[0]) == 2


def test_what_lies_behind_the_end_is_not_looked_at() -> None:
    rows, end = native.scan(GOOD + b"\xff" * 100, end_offset=12)
    assert (len(rows), STATUS[end.status], end.last_offset) == (1, "SEG_STOP", 11)


@pytest.mark.parametrize("whole", [0, 1])
def test_a_cut_at_every_byte_is_short(whole: int) -> None:
    start = whole * len(GOOD)
    for cut in range(start + 1, start + len(GOOD)):
        rows, end = native.scan(PAIR[:cut])
        need = len(GOOD) if cut - start >= 12 else 0
        assert (len(rows), STATUS[end.status], end.position, end.need) == (whole, "SEG_SHORT", start, need)


RESYNC = {
    "at once": (0, 0, INT63, 0),
    "behind the first byte": (1, 0, INT63, len(GOOD)),
    "offsets too low": (0, 12, INT63, len(GOOD)),
    "offsets too high": (1, 0, 15, -1),
    "from below the buffer": (-5, 0, INT63, 0),
    "from the last header": (len(GOOD), 0, INT63, len(GOOD)),
    "behind all": (len(GOOD) + 1, 0, INT63, -1),
    "from the end": (len(PAIR), 0, INT63, -1),
}


@pytest.mark.parametrize("name", RESYNC)
def test_resync(name: str) -> None:
    start, least, most, found = RESYNC[name]
    assert lib.seg_resync(native.exact(PAIR), len(PAIR), start, least, most) == found


def test_resync_takes_only_a_crc_that_holds() -> None:
    for at in range(17, len(GOOD)):
        bad = bytearray(GOOD)
        bad[at] ^= 0x10
        assert lib.seg_resync(native.exact(bytes(bad)), len(bad), 0, 0, INT63) == -1
    for cut in range(len(GOOD)):
        assert lib.seg_resync(native.exact(GOOD[:cut]), cut, 0, 0, INT63) == -1
