"""The wait of await_record.c: what ends it, what it reads, and that it believes neither file nor numbers."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from segstore._native import ffi, lib
from segstore.records import Template
from segstore.records.encode import single

SLOTS = 4
SIZE = lib.SEG_ENDS_HEADER + SLOTS * lib.SEG_ENDS_SLOT
KEY, EPOCH, OFFSET = 77, 0, 5


class TailedLog:
    """Ends in memory, a log with one record, and what is asked of C."""

    def __init__(self, path: Path) -> None:
        batch = single(b"value", b"key", (), 9, Template())
        self.data = bytearray(bytes(batch.data)[: batch.size])
        struct.pack_into(">q", self.data, 0, OFFSET)
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.memory = ffi.new("int64_t[]", SIZE // 8)
        self.map = ffi.cast("uint8_t *", self.memory)
        self.content = ffi.new("seg_tailed[]", SLOTS)
        self.last = ffi.new("seg_last_record *", {"check_crc": 1})
        for slot in range(SLOTS):
            self.content[slot].slot, self.content[slot].fd = slot, -1
        self.publish(0, OFFSET)

    def publish(self, slot: int, end: int) -> None:
        values = [KEY + slot, 0, end, end, end, 0, 0, EPOCH]
        assert lib.seg_publish(self.map, SIZE, [slot], values, 1) == 1

    def expect(self, data: bytes, position: int = 0) -> None:
        """Have the log hold `data`, and tail it from what is published now."""
        os.truncate(self.path, 0)
        os.pwrite(self.fd, data, 0)
        for slot in range(SLOTS):
            assert lib.seg_read_tailed(self.map, SIZE, ffi.NULL, self.content + slot, 10) == 1
        first = self.content[0]
        first.fd, first.offset, first.position = self.fd, OFFSET, position

    def wait(self, size: int = SIZE, timeout_ns: int = 0) -> int:
        nudges = max(lib.seg_nudges(self.map, SIZE, ffi.NULL), 0)
        return int(lib.seg_await_record(self.tailer(size), nudges, timeout_ns))

    def tailer(self, size: int = SIZE) -> Any:
        return ffi.new("seg_tailer *", [self.map, size, self.content, SLOTS, 10, self.last])

    def found(self) -> tuple[int, ...]:
        return tuple(self.last.numbers)


@pytest.fixture
def tailed(tmp_path: Path) -> Iterator[TailedLog]:
    made = TailedLog(tmp_path / "log")
    yield made
    os.close(made.fd)


def test_the_record_that_came_is_read(tailed: TailedLog) -> None:
    tailed.expect(bytes(tailed.data))
    assert tailed.wait() == -errno.ETIMEDOUT
    tailed.publish(0, OFFSET + 1)
    assert tailed.wait() == 0
    size, offset, stamp, kind, epoch, start, key, key_end, value, value_end = tailed.found()
    assert (size, offset, stamp, kind, epoch, start) == (len(tailed.data), OFFSET, 9, 0, EPOCH, 0)
    assert tailed.data[key:key_end] == b"key"
    assert tailed.data[value:value_end] == b"value"
    assert tailed.wait() == -errno.ETIMEDOUT  # it was seen
    assert tailed.found()[0] == 0


def test_behind_a_record_the_next_one_is_expected(tailed: TailedLog) -> None:
    record = bytes(tailed.data)
    tailed.expect(record * 3)
    for number in range(3):
        struct.pack_into(">q", tailed.data, 0, OFFSET + number)
        os.pwrite(tailed.fd, tailed.data, number * len(record))
        tailed.publish(0, OFFSET + number + 1)
        assert tailed.wait() == 0
        assert tailed.found()[:2] == (len(record), OFFSET + number)


@pytest.mark.parametrize("end", [OFFSET - 1, OFFSET + 2])
def test_other_ends_leave_the_log_alone(tailed: TailedLog, end: int) -> None:
    tailed.expect(bytes(tailed.data))
    tailed.publish(0, end)
    assert (tailed.wait(), tailed.found()[0]) == (0, 0)


def test_other_partitions_are_told_by_number(tailed: TailedLog) -> None:
    tailed.expect(b"")
    tailed.publish(2, 1)
    tailed.publish(3, 1)
    assert [tailed.wait() for _ in range(3)] == [2, 3, -errno.ETIMEDOUT]


def test_a_nudge_is_no_publication(tailed: TailedLog) -> None:
    tailed.expect(b"")
    before = lib.seg_nudges(tailed.map, SIZE, ffi.NULL)
    tailed.publish(3, 2)
    assert lib.seg_nudges(tailed.map, SIZE, ffi.NULL) == before
    assert lib.seg_nudge(tailed.map, SIZE) >= 0
    assert lib.seg_nudges(tailed.map, SIZE, ffi.NULL) != before
    ended = lib.seg_await_ends(tailed.tailer(), before, 0)
    assert ended == SLOTS


@pytest.mark.parametrize("slot", [-1, SLOTS, 1 << 62])
def test_slots_outside_are_refused(tailed: TailedLog, slot: int) -> None:
    tailed.expect(b"")
    tailed.content[1].slot = slot
    assert tailed.wait() == -errno.EINVAL
    assert lib.seg_read_tailed(tailed.map, SIZE, ffi.NULL, tailed.content + 1, 10) == -errno.EINVAL


def test_short_maps_are_refused(tailed: TailedLog) -> None:
    tailed.expect(b"")
    assert tailed.wait(SIZE - 1) == -errno.EINVAL
    assert lib.seg_nudge(tailed.map, 63) == lib.seg_nudges(tailed.map, 63, ffi.NULL) == -errno.EINVAL


def test_damaged_bytes_are_no_record(tailed: TailedLog, rng: random.Random) -> None:
    """The log is cut, a byte is changed, or it begins elsewhere: the record is not read."""
    whole = bytes(tailed.data)
    cases: list[tuple[bytes, int]] = [(whole[:n], 0) for n in range(len(whole))]
    cases += [(whole, position) for position in (-1, 1, 1 << 40, (1 << 63) - 1)]
    for _ in range(500):
        data = bytearray(whole + bytes(20))
        data[rng.randrange(len(whole))] ^= rng.randrange(1, 256)
        cases.append((bytes(data), 0))
    for data, position in cases:
        tailed.publish(0, OFFSET)
        tailed.expect(data, position)
        tailed.publish(0, OFFSET + 1)
        assert (tailed.wait(), tailed.found()[0]) == (0, 0), (data, position)


def test_a_closed_descriptor_is_no_record(tailed: TailedLog) -> None:
    tailed.expect(bytes(tailed.data))
    tailed.content[0].fd = 1 << 20
    tailed.publish(0, OFFSET + 1)
    assert (tailed.wait(), tailed.found()[0]) == (0, 0)


def test_read_committed_wants_the_stable_offset(tailed: TailedLog) -> None:
    tailed.expect(bytes(tailed.data))
    tailed.last.committed = 1
    values: list[Any] = [KEY, 0, OFFSET + 1, OFFSET + 1, OFFSET, 0, 0, EPOCH]
    assert lib.seg_publish(tailed.map, SIZE, [0], values, 1) == 1
    assert (tailed.wait(), tailed.found()[0]) == (0, 0)
