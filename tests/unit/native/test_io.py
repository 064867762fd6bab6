"""seg_seek and the bounds of io.c; the loops themselves are tested through Files (files/test_calls.py)."""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from segstore._native import ffi, held, lib

HEADER = struct.Struct(">qiibIhiqqqhii")
BAD = {"length": lib.SEG_BAD_LENGTH, "magic": lib.SEG_BAD_MAGIC, "offsets": lib.SEG_BAD_OFFSETS}
CUT = -10100 - lib.SEG_SHORT


def batch(base: int, count: int = 1, payload: int = 9, **fields: int) -> bytes:
    """A header with every field non-zero over zeros; its CRC is wrong, which a seek ignores."""
    f = {"length": 49 + payload, "magic": 2, "delta": count - 1} | fields
    return (
        HEADER.pack(
            base, f["length"], 5, f["magic"], 0xFEDCBA98, 0x14, f["delta"], 111, 222, 333, 44, 555, count
        )
        + b"\0" * payload
    )


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def seek(fd: int, position: int, end: int, target: int) -> tuple[int, Any]:
    out = ffi.new("seg_batch *")
    return lib.seg_seek(fd, position, end, target, out), out


def test_every_field_of_the_header(fd: int) -> None:
    os.pwrite(fd, b"junk" + batch(70, count=3), 0)
    code, out = seek(fd, 4, 1000, 71)
    assert code == 1
    assert {name: getattr(out, name) for name, _ in ffi.typeof("seg_batch").fields} == {
        "position": 4,
        "base_offset": 70,
        "last_offset": 72,
        "base_timestamp": 111,
        "max_timestamp": 222,
        "producer_id": 333,
        "size": 70,
        "leader_epoch": 5,
        "base_sequence": 555,
        "count": 3,
        "crc": 0xFEDCBA98,
        "attributes": 0x14,
        "producer_epoch": 44,
        "magic": 2,
    }


@pytest.mark.parametrize("payload", [0, 9, 962, 963, 4000, 70_000], ids=lambda p: f"payload {p}")
def test_finds_every_batch_from_every_batch(fd: int, payload: int) -> None:
    """Batches of three offsets and gaps of two; small ones are hopped within one read."""
    bases, blob, at = range(0, 500, 5) if payload < 4000 else range(0, 50, 5), b"", {}
    for base in bases:
        at[base] = len(blob)
        blob += batch(base, 3, payload)
    os.pwrite(fd, blob, 0)
    for start in list(bases)[:: max(1, len(bases) // 7)]:
        for target in range(start, bases[-1] + 3):
            held = target // 5 * 5
            expected = held if target <= held + 2 else held + 5
            code, out = seek(fd, at[start], len(blob), target)
            assert (code, out.base_offset, out.position) == (1, expected, at[expected]), (start, target)
    assert seek(fd, 0, len(blob), bases[-1] + 3)[0] == 0


def test_mixed_sizes_across_the_read_ahead(fd: int) -> None:
    sizes = [0, 5000, 10, 10, 3900, 200, 0, 0, 4096, 61, 950, 1100, 1]
    at, blob = [], b""
    for base, payload in enumerate(sizes):
        at.append(len(blob))
        blob += batch(base, 1, payload)
    os.pwrite(fd, blob, 0)
    found = [seek(fd, 0, len(blob), target) for target in range(len(sizes))]
    assert [(code, out.position) for code, out in found] == [(1, p) for p in at]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        pytest.param(70, (1, 10), id="exactly the batch"),
        pytest.param(69, (CUT, 10), id="one byte of the batch is missing"),
        pytest.param(60, (CUT, 0), id="the header is not whole"),
        pytest.param(0, (0, 0), id="nothing"),
        pytest.param(-5, (0, 0), id="negative"),
        pytest.param(2**63 - 1, (1, 10), id="an end behind the file's"),
    ],
)
def test_end_is_a_wall(fd: int, end: int, expected: tuple[int, int]) -> None:
    os.pwrite(fd, batch(10), 0)
    code, out = seek(fd, 0, end, 10)
    assert (code, out.base_offset) == expected


def test_a_file_that_ends_before_end_has_no_batch_there(fd: int) -> None:
    os.pwrite(fd, batch(10) + batch(11)[:50], 0)
    assert seek(fd, 0, 10_000, 11)[0] == CUT


@pytest.mark.parametrize(
    ("second", "why"),
    [
        pytest.param(b"\0" * 200, "length", id="zeros"),
        pytest.param(b"\xff" * 200, "length", id="ones"),
        pytest.param(batch(20, length=48), "length", id="length 48"),
        pytest.param(batch(20, length=0), "length", id="length 0"),
        pytest.param(batch(20, length=-1), "length", id="length -1"),
        pytest.param(batch(20, length=2**31 - 12), "length", id="size beyond int32"),
        pytest.param(batch(20, magic=3), "magic", id="magic 3"),
        pytest.param(batch(20, delta=-1), "offsets", id="delta -1"),
        pytest.param(batch(-1), "offsets", id="negative base offset"),
        pytest.param(batch(9), "offsets", id="not above the batch before"),
        pytest.param(batch(2**63 - 1, count=2), "offsets", id="last offset beyond int64"),
    ],
)
def test_a_header_that_cannot_be_one_is_told_with_its_position(fd: int, second: bytes, why: str) -> None:
    first = batch(9)
    os.pwrite(fd, first + second, 0)
    code, out = seek(fd, 0, 2**40, 100)
    assert (code, out.position) == (-10100 - BAD[why], len(first))
    assert seek(fd, 0, 2**40, 9)[0] == 1  # what lies before it is found as ever


def test_syscalls_of_a_seek(fd: int) -> None:
    """Small batches: one read of 64 bytes, then one for every 4 KiB."""
    blob = b"".join(batch(i, 1, 19) for i in range(51))  # 51 * 80 = 4080 bytes
    os.pwrite(fd, blob, 0)
    before = _reads()
    own = _reads() - before
    assert seek(fd, 0, len(blob), 50)[0] == 1
    assert _reads() - before - 2 * own == 2


def _reads() -> int:
    """Of this thread: that of pytest-xdist reads too."""
    with open("/proc/thread-self/io") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("syscr"))


@pytest.mark.parametrize(
    ("call", "number"),
    [
        pytest.param(lambda b: lib.seg_pread(-1, b, 8, 0), errno.EBADF, id="pread"),
        pytest.param(lambda b: lib.seg_pwrite(-1, b, 8, 0), errno.EBADF, id="pwrite"),
        pytest.param(lambda b: lib.seg_pwritev(-1, [b], [-1], 1, 0), errno.EINVAL, id="pwritev of length -1"),
        pytest.param(lambda b: lib.seg_fdatasync(-1, ffi.NULL), errno.EBADF, id="fdatasync"),
        pytest.param(lambda b: lib.seg_start_sync(-1, 0, 8), errno.EBADF, id="start_sync"),
        pytest.param(lambda b: lib.seg_fallocate(-1, 0, 8), errno.EBADF, id="fallocate"),
        pytest.param(lambda b: lib.seg_seek(-1, 0, 100, 0, ffi.new("seg_batch *")), errno.EBADF, id="seek"),
        pytest.param(lambda b: lib.seg_sendfile(-1, -1, 0, 8), errno.EBADF, id="sendfile"),
        pytest.param(lambda b: lib.seg_splice(-1, 0, -1, 8, 0), errno.EBADF, id="splice"),
        pytest.param(lambda b: lib.seg_append_range(-1, -1, 0, 8), errno.EBADF, id="append_range"),
        pytest.param(lambda b: lib.seg_look_at(-1, ffi.new("seg_sink *")), errno.EBADF, id="look_at"),
        pytest.param(lambda b: lib.seg_copy_range(-1, 0, -1, 0, 8), errno.EBADF, id="copy_range"),
        pytest.param(lambda b: lib.seg_write(-1, b, 8), errno.EBADF, id="write"),
    ],
)
def test_errors_are_negative_errno(call: Any, number: int) -> None:
    assert call(ffi.new("uint8_t[]", 8)) == -number


def test_more_than_two_gib_in_one_call() -> None:
    """The kernel moves at most 0x7ffff000 bytes a call; /dev/null takes them without looking at them.

    Calls on files go on by themselves, one to a sink says how far it came.
    """
    size = 3 << 30
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)  # MAP_NORESERVE
    sink = os.open("/dev/null", os.O_WRONLY)
    buffer = held("uint8_t[]", memory)
    assert lib.seg_write(sink, buffer, size) == 0x7FFFF000
    assert lib.seg_pwrite(sink, buffer, size, 0) == size
    assert lib.seg_pwritev(sink, [buffer, buffer], [size, size], 2, 0) == 2 * size
    os.close(sink)


# --- headers of several batches -------------------------------------------------------------------


def headers(fd: int, position: int, end: int, least: int, n: int) -> list[tuple[int, int, int]]:
    """Return position, base offset and last offset of each; what lies behind the n is not written."""
    out = ffi.new("seg_batch[]", n + 1)
    ffi.buffer(out)[:] = b"\x7f" * ffi.sizeof(out)
    found = lib.seg_read_headers(fd, position, end, least, out, n)
    assert bytes(ffi.buffer(out + n, ffi.sizeof("seg_batch"))) == b"\x7f" * ffi.sizeof("seg_batch")
    return [(out[i].position, out[i].base_offset, out[i].last_offset) for i in range(found)]


def test_headers_side_by_side(fd: int) -> None:
    data = [batch(70, 3, 5_000), batch(73, 1, 9), batch(80, 2, 70_000)]
    wanted = [(4, 70, 72), (4 + len(data[0]), 73, 73), (4 + len(data[0]) + len(data[1]), 80, 81)]
    end = 4 + sum(map(len, data))
    os.pwrite(fd, b"junk" + b"".join(data), 0)
    assert headers(fd, 4, end, 0, 9) == wanted
    assert headers(fd, 4, end, 70, 2) == wanted[:2]
    assert headers(fd, wanted[1][0], end, 73, 9) == wanted[1:]
    assert headers(fd, 4, end, 71, 9) == []  # begins below what may come
    assert headers(fd, 4, end - 1, 0, 9) == wanted[:2]  # the last one is not whole
    assert headers(fd, end, end, 0, 9) == []
    assert headers(fd, 4, end, 0, 0) == []
    os.ftruncate(fd, end - 70_000 - 3)  # within a header
    assert headers(fd, 4, end, 0, 9) == wanted[:2]


@pytest.mark.parametrize(
    "wrong", [batch(72), batch(69), batch(74, magic=3), batch(74, length=-5), b"\0" * 90]
)
def test_headers_end_at_what_is_no_batch_or_goes_back(fd: int, wrong: bytes) -> None:
    first = batch(70, 3)
    os.pwrite(fd, first + wrong + batch(90), 0)
    assert headers(fd, 0, len(first) + len(wrong) + 70, 0, 9) == [(0, 70, 72)]


def test_headers_of_a_closed_file_are_none(tmp_path: Path) -> None:
    closed = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    os.close(closed)
    assert headers(closed, 0, 1000, 0, 9) == []
