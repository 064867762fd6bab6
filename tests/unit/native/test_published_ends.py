"""The sequence lock of ends.c: consistent copies, publications as one, bounds, a writer that died."""

from __future__ import annotations

import errno
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c
import pytest
from waiting import PATIENCE

from segstore._native import ffi, held, lib
from segstore.files import Files

SLOTS = 16
SIZE = lib.SEG_ENDS_HEADER + SLOTS * lib.SEG_ENDS_SLOT


def publish(memory: Any, slots: list[int], values: list[int]) -> int:
    return int(lib.seg_publish(ffi.from_buffer("uint8_t[]", memory), len(memory), slots, values, len(slots)))


def snapshot(memory: Any, slots: list[int], spins: int = 1000) -> tuple[int, list[int]]:
    values = ffi.new("int64_t[]", [-7] * (8 * len(slots)))
    code = lib.seg_snapshot(
        ffi.from_buffer("uint8_t[]", memory), len(memory), ffi.NULL, slots, values, len(slots), spins
    )
    return int(code), list(values)


@pytest.fixture
def shared(tmp_path: Path) -> Any:
    files = Files()
    path = tmp_path / "ends"
    with files.open(path, write=True, create=True) as handle:
        files.allocate(handle, 0, SIZE)
        return files.map(handle, SIZE, write=True), files.map(handle, SIZE)


def test_layout_and_round_trip(shared: Any) -> None:
    writable, readable = shared
    assert publish(writable, [0, 15], list(range(1, 17))) == 2
    assert struct.unpack_from("=QI", readable) == (2, 1)
    for at, first in ((64, 1), (SIZE - 64, 9)):
        *held, check, complement = struct.unpack_from("=6qIIII", readable, at)
        assert held == list(range(first, first + 8))
        assert check == crc32c.crc32c(readable[at : at + 56]) == complement ^ 0xFFFFFFFF
    assert snapshot(readable, [15, 0, 1]) == (3, [*range(9, 17), *range(1, 9), *[0] * 8])
    assert publish(writable, [], []) == 0
    assert struct.unpack_from("=QI", readable) == (4, 2)


@pytest.mark.parametrize("slots", [[16], [-1], [0, 16], [2**62], [-(2**62)]], ids=str)
def test_slots_outside_are_refused_and_nothing_is_written(shared: Any, slots: list[int]) -> None:
    writable, readable = shared
    assert publish(writable, slots, [1] * (8 * len(slots))) == -errno.EINVAL
    assert readable[:] == b"\0" * SIZE
    assert snapshot(readable, slots)[0] == -errno.EINVAL


@pytest.mark.parametrize("size", [0, 8, 63, 64, 127])
def test_a_map_without_room_for_a_slot(size: int) -> None:
    memory = ffi.buffer(ffi.new("int64_t[]", 16), size)
    assert publish(memory, [0], [1] * 8) == -errno.EINVAL
    assert snapshot(memory, [0])[0] == -errno.EINVAL


EDGES = [2**63 - 1, -(2**63), -1, 0, 2**32, ~7, 2**32 - 1, -1]


def test_of_layout_and_epoch_there_are_32_bits(shared: Any) -> None:
    writable, readable = shared
    publish(writable, [0], EDGES)
    assert snapshot(readable, [0]) == (1, EDGES)
    publish(writable, [0], [*EDGES[:6], 2**32 + 5, -(2**31)])
    assert snapshot(readable, [0]) == (1, [*EDGES[:6], 5, -(2**31)])


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("bit", range(512))
def test_a_bit_that_flips_in_a_slot_is_told(shared: Any, bit: int) -> None:
    writable, readable = shared
    publish(writable, [0, 1, 2], [*range(1, 9), *[0] * 8, *range(9, 17)])
    for slot in (0, 1):  # one of a partition, and a free one
        writable[64 + 64 * slot + bit // 8] ^= 1 << bit % 8
    code, values = snapshot(readable, [0, 1, 2])
    assert code == 3
    assert [values[0], values[8], values[16:]] == [lib.SEG_ENDS_DAMAGED] * 2 + [list(range(9, 17))]


def test_a_file_of_before_there_were_checks_is_read(shared: Any) -> None:
    writable, readable = shared
    struct.pack_into("=8q", writable, 64, *range(1, 8), 2**40)
    struct.pack_into("=I", writable, 12, lib.SEG_ENDS_UNCHECKED)
    assert snapshot(readable, [0]) == (1, [*range(1, 8), 2**40])


def test_a_map_that_is_not_aligned() -> None:
    memory = memoryview(bytearray(SIZE + 64))
    with ffi.from_buffer(memory) as view:
        start = (4 - int(ffi.cast("intptr_t", view))) % 8
    assert publish(memory[start : start + SIZE], [0], [1] * 8) == -errno.EINVAL


def test_a_writer_that_died_within_a_publication(shared: Any) -> None:
    writable, readable = shared
    publish(writable, [0], [5] * 8)
    struct.pack_into("=Q", writable, 0, 3)
    assert snapshot(readable, [0], spins=10)[0] == -errno.EAGAIN
    publish(writable, [0], [6] * 8)  # the next writer goes on
    assert snapshot(readable, [0]) == (1, [6] * 8)
    assert struct.unpack_from("=Q", readable) == (4,)


def unchanged(memory: Any, slot: int, values: list[int], generation: int = 0) -> bool:
    fields = {
        "map": held("uint8_t[]", memory),
        "len": len(memory),
        "slot": slot,
        "generation": generation,
        "values": values,
    }
    return bool(lib.seg_unchanged(ffi.new("seg_seen *", fields)))


def test_a_slot_is_as_it_was_seen_until_one_of_its_values_is_another(shared: Any) -> None:
    writable, readable = shared
    publish(writable, [3], EDGES)
    assert unchanged(readable, 3, EDGES)
    publish(writable, [2], [7] * 8)  # of another partition
    assert unchanged(readable, 3, EDGES)
    for field in range(8):
        other = [value ^ 1 if at == field else value for at, value in enumerate(EDGES)]
        assert not unchanged(readable, 3, other)
        publish(writable, [3], other)
        assert not unchanged(readable, 3, EDGES)
        assert unchanged(readable, 3, other)
        publish(writable, [3], EDGES)


def test_a_slot_that_may_be_another_by_now_is_not_as_it_was_seen(shared: Any) -> None:
    writable, readable = shared
    publish(writable, [0], EDGES)
    assert not unchanged(readable, 0, EDGES, generation=1)
    assert not unchanged(readable, SLOTS, EDGES)
    assert not unchanged(readable, -1, EDGES)
    assert not unchanged(readable[:64], 0, EDGES)
    struct.pack_into("=Q", writable, 0, 3)  # a publication is under way
    assert not unchanged(readable, 0, EDGES)
    struct.pack_into("=Qq", writable, 0, 4, 0)
    struct.pack_into("=q", writable, 24, 1)  # the generation
    assert not unchanged(readable, 0, EDGES)
    assert unchanged(readable, 0, EDGES, generation=1)
    writable[64 + 60] ^= 1  # of the check
    assert not unchanged(readable, 0, EDGES, generation=1)


def write_until(writable: Any, go_on: Callable[[], bool]) -> int:
    """Every publication writes one number to all words of all slots."""
    slots, n = list(range(SLOTS)), 0
    while go_on():
        n += 1
        publish(writable, slots, [n] * (8 * SLOTS))
    return n


def read_many(readable: Any) -> None:
    """Copies for half a second, and until there are 100 of them and 10 that differ: all words of a copy must
    be equal, and never fall.
    """
    began, taken, last, seen = time.monotonic(), 0, 0, 0
    while time.monotonic() < began + 0.5 or taken <= 100 or seen <= 10:
        assert time.monotonic() < began + PATIENCE
        code, values = snapshot(readable, list(range(SLOTS)))
        if code == -errno.EAGAIN:
            continue
        assert min(values) == max(values) >= last
        seen += values[0] != last
        last, taken = values[0], taken + 1


def test_threads_never_see_half_a_publication(shared: Any) -> None:
    writable, readable = shared
    done = threading.Event()
    writer = threading.Thread(target=write_until, args=(writable, lambda: not done.is_set()))
    previous = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    writer.start()
    try:
        read_many(readable)
    finally:
        done.set()
        writer.join()
        sys.setswitchinterval(previous)


@pytest.mark.kind("kills")
def test_processes_never_see_half_a_publication(shared: Any) -> None:
    writable, readable = shared
    pid = os.fork()
    if not pid:
        write_until(writable, lambda: True)
        os._exit(1)
    try:
        read_many(readable)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
