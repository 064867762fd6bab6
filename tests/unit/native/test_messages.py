"""Messages of magic 0 and 1 as the walks of C see them: seg_scan, seg_resync, seg_seek, seg_read_headers,
seg_attributes; and the short ways, which leave them alone.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import message_sets
import native_batches as native
import pytest
from drawn_sets import EACH_KIND, KINDS, Drawn, entry, joined, some
from message_sets import GZIP, NONE, SNAPPY, Message
from native_batches import INT63, STATUS

from segstore._native import ffi, lib

ONE = message_sets.plain(1, [Message(10, 5, b"key", b"value")])
TWO = message_sets.plain(0, [Message(20, -1, None, b"value")])
OTHER_CRC = struct.pack(">I", lib.seg_crc32c(0, ONE[16:], len(ONE) - 16))
SMALLEST = message_sets.plain(0, [Message(3, -1, None, None)])


def changed(at: int, code: str, value: int, data: bytes = ONE) -> bytes:
    """A message with another field, whose CRC holds."""
    data = data[:at] + struct.pack(code, value) + data[at + struct.calcsize(code) :]
    return data[:12] + struct.pack(">I", message_sets.zlib.crc32(data[16:])) + data[16:]


@pytest.mark.parametrize("name", KINDS)
def test_what_a_header_says(name: str) -> None:
    drawn = KINDS[name]
    rows, end = native.scan(drawn.data, position=5, least=2)
    assert STATUS[end.status] == "SEG_END"
    parts = list(message_sets.entries(drawn.data))
    assert rows["position"].tolist() == [5 + at for at, _ in parts]
    assert (rows["position"] + rows["size"]).tolist() == [5 + stop for stop in drawn.ends]
    assert rows["last_offset"].tolist() == [part.offset for _, part in parts]
    assert (
        rows["max_timestamp"].tolist()
        == rows["base_timestamp"].tolist()
        == [part.timestamp for _, part in parts]
    )
    assert rows["magic"].tolist() == [part.magic for _, part in parts]
    assert rows["attributes"].tolist() == [part.attributes for _, part in parts]
    for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        assert (rows[name] == -1).all()
    assert (rows["count"] == 1).all()


def test_a_wrapper_begins_behind_what_lies_before() -> None:
    """... or where it ends, at the least, as long as that is not known."""
    wrapper = entry(1, GZIP, some(30, 4)).data
    for data, least, base in (
        (wrapper, -1, 33), (wrapper, 0, 0), (wrapper, 12, 12), (wrapper, 33, 33), (wrapper, 40, 33),
        (ONE + wrapper, -1, 11), (ONE + wrapper, 4, 11), (TWO + wrapper, 0, 21),
    ):  # fmt: skip
        rows, _ = native.scan(data, least=least)
        assert (rows["base_offset"][-1], rows["last_offset"][-1]) == (base, 33)


BAD_MESSAGES = {
    "size below that of magic 1": (changed(8, ">i", 21), "SEG_BAD_LENGTH"),
    "size below that of magic 0": (changed(8, ">i", 13, TWO), "SEG_BAD_LENGTH"),
    "size of a whole message of magic 0 in magic 1": (changed(8, ">i", 14), "SEG_BAD_LENGTH"),
    "size negative": (changed(8, ">i", -1), "SEG_BAD_LENGTH"),
    "size of the largest message": (changed(8, ">i", (1 << 31) - 13), "SEG_SHORT"),
    "magic 3": (changed(16, "b", 3), "SEG_BAD_MAGIC"),
    "magic -1": (changed(16, "b", -1), "SEG_BAD_MAGIC"),
    "a bit of the value": (ONE[:-1] + bytes([ONE[-1] ^ 1]), "SEG_BAD_CRC"),
    "a bit of the attributes": (ONE[:17] + bytes([ONE[17] ^ 0x80]) + ONE[18:], "SEG_BAD_CRC"),
    "a bit of the CRC": (ONE[:12] + bytes([ONE[12] ^ 1]) + ONE[13:], "SEG_BAD_CRC"),
    "the CRC of magic 2": (ONE[:12] + OTHER_CRC + ONE[16:], "SEG_BAD_CRC"),
    "offset negative": (changed(0, ">q", -1), "SEG_BAD_OFFSETS"),
    "next offset above int64": (changed(0, ">q", INT63), "SEG_BAD_OFFSETS"),
    "the same message twice": (ONE + ONE, "SEG_BAD_OFFSETS"),
    "a wrapper that ends below": (ONE + entry(1, SNAPPY, some(3, 4)).data, "SEG_BAD_OFFSETS"),
    "cut": (ONE[:-1], "SEG_SHORT"),
    "cut within the offset": (ONE + ONE[:7], "SEG_SHORT"),
    "a tail of zeros": (ONE + bytes(30), "SEG_BAD_LENGTH"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_scan_stops_before(name: str) -> None:
    data, status = BAD_MESSAGES[name]
    rows, end = native.scan(data, position=7)
    assert STATUS[end.status] == status
    assert end.position == 7 + sum(rows["size"].tolist())


def test_no_message_reaches_over_its_buffer() -> None:
    """Allocated exactly, so that the sanitizers see a load beyond the end."""
    for data in (ONE, TWO, SMALLEST, entry(1, GZIP, some(0, 3)).data):
        for size in range(len(data) + 1):
            rows, end = native.scan(data[:size])
            whole = size in (0, len(data))
            assert STATUS[end.status] == ("SEG_END" if whole else "SEG_SHORT")
            assert len(rows) == (1 if size == len(data) else 0)


OPTIONS = {
    "from within a wrapper": ({"from_offset": 21}, [13, 23]),
    "up to within a wrapper": ({"end_offset": 12}, [3, 13]),
    "up to its first offset": ({"end_offset": 4}, [3]),
    "a byte at most": ({"max_bytes": 1, "from_offset": 4}, [13]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_scan_options(name: str) -> None:
    options, lasts = OPTIONS[name]
    data = SMALLEST + entry(1, GZIP, some(4, 10)).data + entry(0, GZIP, some(14, 10)).data
    if name == "from within a wrapper":
        lasts = lasts[1:]
    assert native.scan(data, **options)[0]["last_offset"].tolist() == lasts


def test_what_is_behind_damage_is_found() -> None:
    junk = bytes(300) + b"\0\1\2" * 70
    for data in (ONE, SMALLEST, entry(0, SNAPPY, some(5, 3)).data, entry(2, NONE, some(9, 2)).data):
        buffer = junk + data + junk
        assert lib.seg_resync(native.exact(buffer), len(buffer), 0, 0, INT63) == len(junk)
        assert lib.seg_resync(native.exact(buffer), len(junk + data) - 1, 0, 0, INT63) == -1
        assert lib.seg_resync(native.exact(buffer), len(buffer), len(junk) + 1, 0, INT63) == -1


# --- files -------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> int:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    os.write(fd, EACH_KIND.data)
    yield fd
    os.close(fd)


def spans(drawn: Drawn) -> list[tuple[int, int, int]]:
    """Position, least base offset and last offset of each entry by a scan from offset 0 on."""
    rows, _ = native.scan(drawn.data, least=0)
    return list(
        zip(*(rows[name].tolist() for name in ("position", "base_offset", "last_offset")), strict=True)
    )


def test_each_offset_is_found(log: int) -> None:
    found, out, size = spans(EACH_KIND), ffi.new("seg_batch *"), len(EACH_KIND.data)
    for target in range(found[-1][2] + 1):
        position, _, last = next(span for span in found if span[2] >= target)
        assert lib.seg_seek(log, 0, size, target, out) == 1
        assert (out.position, out.last_offset) == (position, last)
        assert out.base_offset <= target or out.magic == 2 or not out.attributes & 7
    assert lib.seg_seek(log, 0, size, found[-1][2] + 1, out) == 0


def test_all_headers_are_read(log: int) -> None:
    found = spans(EACH_KIND)
    out = ffi.new("seg_batch[]", len(found) + 1)
    assert lib.seg_read_headers(log, 0, len(EACH_KIND.data), 0, out, len(found) + 1) == len(found)
    assert [(h.position, h.base_offset, h.last_offset) for h in out[0 : len(found)]] == found


def test_the_last_message_may_be_smaller_than_a_header(tmp_path: Path) -> None:
    """A record batch's header has 61 bytes, a message as few as 26."""
    data, out = TWO + message_sets.plain(0, [Message(21, -1, None, None)]), ffi.new("seg_batch *")
    fd = os.open(tmp_path / "small", os.O_RDWR | os.O_CREAT)
    os.write(fd, data)
    assert lib.seg_seek(fd, 0, len(data), 21, out) == 1
    assert (out.position, out.size, out.magic) == (len(TWO), 26, 0)
    assert lib.seg_seek(fd, 0, len(data) - 1, 21, out) == -(10100 + lib.SEG_SHORT)
    os.close(fd)


def test_attributes_tell_of_messages(log: int) -> None:
    rows, _ = native.scan(EACH_KIND.data)
    for position, size, magic in zip(*(rows[f].tolist() for f in ("position", "size", "magic")), strict=True):
        found = lib.seg_attributes(log, position, position + size)
        assert bool(found & lib.SEG_OLD) == (magic < 2)
    assert lib.seg_attributes(log, 0, len(EACH_KIND.data)) & lib.SEG_OLD


@pytest.mark.parametrize("name", KINDS)
def test_short_ways_leave_messages_alone(tmp_path: Path, name: str) -> None:
    data, point = joined([KINDS[name], entry(2, NONE, some(40, 2))]).data, ffi.new("seg_point *")
    buffer = ffi.new("uint8_t[]", 1 << 16)
    point.buffer, point.room = buffer, 1 << 16
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    os.write(fd, data)
    segment = ffi.new("seg_segment *", {"number": 1, "end": len(data), "end_offset": 42})
    for offset in (7, 9, 40):
        assert lib.seg_read_one(fd, segment, offset, point) == 0
    rows, _ = native.scan(data)
    first = rows[:1]
    size = int(first["size"][0])
    assert lib.seg_sound(native.exact(data[:size]), size, ffi.from_buffer("seg_batch *", first), 1) == 0
    os.close(fd)
