"""transfer.c: bad descriptors and windows; the search for the batches to send."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transfers import OUTSIDE, WINDOW, tcp_pair, window

import segstore
from segstore._native import ffi, held, lib
from segstore.records.header import HEADER_SIZE


@pytest.mark.parametrize(("position", "count"), OUTSIDE)
def test_nothing_outside_a_window_is_written(tmp_path: Path, position: int, count: int) -> None:
    ours, theirs = tcp_pair()
    with window(tmp_path) as mapped, ours, theirs:
        assert lib.seg_write_window(ours.fileno(), mapped, position, count) == -errno.EINVAL
        assert lib.seg_write_window(ours.fileno(), ffi.new("seg_window *"), position, count) == -errno.EINVAL
        assert lib.seg_write_window(ours.fileno(), mapped, 5000, 100) == 100
        assert theirs.recv(1000) == WINDOW[5000:5100]


NUMBERS: dict[str, tuple[Callable[[], int], int]] = {
    "look_at": (lambda: lib.seg_look_at(-1, ffi.new("seg_sink *")), errno.EBADF),
    "pipe_bytes": (lambda: lib.seg_pipe_bytes(-1, 4096), errno.EBADF),
    "map nothing": (lambda: lib.seg_map_window(ffi.new("seg_window *"), 0, 0, 0), errno.EINVAL),
    "map below 0": (lambda: lib.seg_map_window(ffi.new("seg_window *"), 0, -1, 1), errno.EINVAL),
    "map too much": (lambda: lib.seg_map_window(ffi.new("seg_window *"), 0, 2, 2**63 - 2), errno.EINVAL),
    "map of no file": (lambda: lib.seg_map_window(ffi.new("seg_window *"), -1, 0, 1), errno.EBADF),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_errors_are_negative_errno(name: str) -> None:
    call, number = NUMBERS[name]
    assert call() == -number


# --- seg_find_stretch ---------------------------------------------------------------------------------


def find(
    path: Path, index: bytes, end: int, offset: int, most: int, start: int = -1, limit: int = 1 << 40
) -> Any:
    """(position, stop, next offset), or None."""
    out = ffi.new("seg_found *")
    with open(path, "rb") as file:
        buffer = held("uint8_t[]", index)
        seen = ffi.new("seg_segment *", (1, len(index) // 8, 0, end, limit, buffer))
        found = lib.seg_find_stretch(file.fileno(), seen, start, offset, most, out)
    return (out.position, out.stop, out.next_offset) if found else None


@pytest.fixture
def segment(tmp_path: Path, rng: random.Random) -> tuple[Path, bytes, list[tuple[int, int, int]]]:
    """A .log, its index, and (position, size, last offset) of its batches; offset i is in batch i // 10."""
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t", config={"index.interval.bytes": 300})
        log = store.partition("t", 0)
        for _ in range(40):
            log.append_batch([rng.randbytes(rng.randrange(30)) for _ in range(10)])
        view = log.source.view.segments[0]
        path, index = Path(view.path), bytes(view.indexes[0].view.memory[: 8 * view.indexes[0].entries])
        data = path.read_bytes()
    batches, position = [], 0
    while position < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        batches.append((position, size, len(batches) * 10 + 9))
        position += size
    return path, index, batches


@pytest.mark.parametrize("indexed", [True, False])
def test_every_stretch_is_what_the_headers_say(
    segment: tuple[Path, bytes, list[tuple[int, int, int]]], indexed: bool, rng: random.Random
) -> None:
    path, index, batches = segment
    end = sum(size for _, size, _ in batches)
    for _ in range(300):
        offset, most = rng.randrange(400), rng.randrange(end + 1000)
        first = last = offset // 10
        while (
            last + 1 < len(batches)
            and batches[last + 1][0] + batches[last + 1][1] <= batches[first][0] + most
        ):
            last += 1
        expected = (batches[first][0], batches[last][0] + batches[last][1], batches[last][2] + 1)
        assert find(path, index if indexed else b"", end, offset, most) == expected


def test_what_is_not_as_it_must_be_is_not_found(
    segment: tuple[Path, bytes, list[tuple[int, int, int]]],
) -> None:
    path, index, batches = segment
    end = sum(size for _, size, _ in batches)
    wrong = index[:4] + (int.from_bytes(index[4:8], "big") + 1).to_bytes(4, "big") + index[8:]
    slot_offset = int.from_bytes(index[:4], "big")
    assert find(path, index, end, 400, 1000) is None  # behind the last one
    assert find(path, wrong, end, slot_offset, 1000) is None
    assert find(path, index, 0, 0, 1000) is None
    assert find(path, index, HEADER_SIZE, 0, 1000) is None  # no whole batch is to be seen
    path.write_bytes(b"")
    assert find(path, index, end, 0, 1000) is None


def test_no_batch_from_the_end_offset_on(segment: tuple[Path, bytes, list[tuple[int, int, int]]]) -> None:
    path, index, batches = segment
    end = sum(size for _, size, _ in batches)
    assert find(path, b"", end, 0, end, limit=200) == (0, batches[20][0], 200)
    found = find(path, index, end, 0, end, limit=200)
    assert found == (0, batches[20][0], 200)


# --- seg_send_stretch ---------------------------------------------------------------------------------


SEEN = {field for field, _ in ffi.typeof("seg_segment").fields}


def send(path: Path, index: bytes, sink: int, offset: int, most: int, **changed: Any) -> int:
    """What the call gives for a segment of 400 offsets."""
    buffer, end = held("uint8_t[]", index), path.stat().st_size
    there = ffi.new("seg_sendable *", ((1, len(index) // 8, 0, end, 400, buffer), 400))
    for name, value in changed.items():
        setattr(there.segment if name in SEEN else there, name, value)
    with open(path, "rb") as file:
        return int(lib.seg_send_stretch(sink, file.fileno(), there, offset, most, ffi.NULL))


def test_a_stretch_is_sent_as_it_is_found(
    segment: tuple[Path, bytes, list[tuple[int, int, int]]], tmp_path: Path, rng: random.Random
) -> None:
    path, index, _ = segment
    data, expected = path.read_bytes(), b""
    with open(tmp_path / "sink", "w+b") as sink:
        for _ in range(100):
            offset, most = rng.randrange(400), rng.randrange(len(data))
            position, stop, after = find(path, index, len(data), offset, most)
            assert send(path, index, sink.fileno(), offset, most) == (stop - position) << 32 | (
                after - offset
            )
            expected += data[position:stop]
        sink.seek(0)
        assert sink.read() == expected


CHILD = ffi.new("uint8_t[]", 1)  # cleared by the fork
SLOW: dict[str, tuple[int, int, dict[str, Any]]] = {
    "an offset behind the end": (400, 100, {}),
    "an offset of the next segment": (200, 100, {"below": 200}),
    "an offset below the segment's": (5, 100, {"base_offset": 6}),
    "a negative limit": (5, -1, {}),
    "a range that may go on in the next segment": (5, 1 << 30, {"end_offset": 500}),
    "nothing that may be seen": (5, 100, {"end": 60}),
    "another process": (5, 100, {"owner": CHILD}),
}


@pytest.mark.parametrize("name", SLOW)
def test_what_is_unusual_is_left_to_the_caller(
    segment: tuple[Path, bytes, list[tuple[int, int, int]]], tmp_path: Path, name: str
) -> None:
    path, index, _ = segment
    offset, most, changed = SLOW[name]
    with open(tmp_path / "sink", "w+b") as sink:
        assert send(path, index, sink.fileno(), offset, most, **changed) == lib.SEG_SLOW
        assert not sink.read()


def test_the_offset_behind_a_stretch_is_within_its_segment(
    segment: tuple[Path, bytes, list[tuple[int, int, int]]], tmp_path: Path
) -> None:
    """In the midst of a compaction's swap a segment has batches that another one has too; and bytes behind a
    segment's end may be nobody's.
    """
    path, index, batches = segment
    size = batches[18][1] + batches[19][1]
    with open(tmp_path / "sink", "w+b") as sink:
        assert send(path, index, sink.fileno(), 193, 0, below=195) == lib.SEG_SLOW
        assert send(path, index, sink.fileno(), 183, size, below=190) == lib.SEG_SLOW
        assert sink.tell() == 0
        assert send(path, index, sink.fileno(), 183, size, below=200) == size << 32 | 17
        assert send(path, index, sink.fileno(), 183, size - 1, below=190) == batches[18][1] << 32 | 7


def test_a_part_and_an_error_of_the_sink_are_told(
    segment: tuple[Path, bytes, list[tuple[int, int, int]]],
) -> None:
    path, index, _ = segment
    reading, writing = os.pipe()
    room = lib.seg_pipe_bytes(writing, 4096)
    os.set_blocking(writing, False)
    assert send(path, index, writing, 0, 1 << 20) == lib.SEG_PART - room
    assert send(path, index, writing, 0, 1 << 20) == -errno.EAGAIN
    os.close(reading)
    assert send(path, index, writing, 0, 1 << 20) == -errno.EPIPE
    os.close(writing)
    assert send(path, index, -1, 0, 1 << 20) == -errno.EBADF


def test_the_pipe_of_a_splice_is_as_large_as_it_may_be() -> None:
    reading, writing = os.pipe()
    assert lib.seg_pipe_bytes(writing, 1 << 20) == 1 << 20
    os.close(reading)
    os.close(writing)
