"""Index entries are those that a broker makes: its own files are the oracle."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partitions import SHARED
from places import GOLDEN

from segstore._native import ffi
from segstore.files import Files
from segstore.index import (
    IndexBuilder,
    OffsetIndex,
    SealedOffsetIndex,
    TimeIndex,
)

_CODES = {"int64_t": "i8", "int32_t": "i4", "uint32_t": "u4", "int16_t": "i2"}
BATCH = np.dtype([(name, _CODES[field.type.cname]) for name, field in ffi.typeof("seg_batch").fields])


def batches(*rows: tuple[int, int, int, int], dtype: np.dtype[Any] = BATCH) -> Any:
    """Of (position, size, last offset, max timestamp)."""
    array = np.zeros(len(rows), dtype)
    for i, (position, size, last, timestamp) in enumerate(rows):
        array[i]["position"], array[i]["size"] = position, size
        array[i]["last_offset"], array[i]["max_timestamp"] = last, timestamp
        array[i]["count"] = 1
    return array


def logs(root: Path) -> list[Any]:
    return [
        pytest.param(p, id=f"{p.parts[-3]}/{p.parts[-2]}/{p.stem}") for p in sorted(root.glob("*/*/*.log"))
    ]


def headers_of(log: Path) -> tuple[Any, int]:
    files, out, rows, position, target = Files(), ffi.new("seg_batch *"), [], 0, 0
    with files.open(log) as handle:
        end = files.size(handle)
        while files.seek_batch(handle, position, end, target, out) == 1:
            rows.append(bytes(ffi.buffer(out)))
            position, target = out.position + out.size, out.last_offset + 1
    assert position == end
    return np.frombuffer(b"".join(rows), BATCH), end


def check_against_broker(log: Path) -> None:
    array, size = headers_of(log)
    base = int(log.stem)
    builder = IndexBuilder(base, 4096)
    offsets, times = b"", b""
    for at in range(0, len(array), 7):  # in pieces, as appends come
        more = builder.add(array[at : at + 7])
        offsets, times = offsets + more[0], times + more[1]
    running = log.parts[-3] == "running"  # its closing time entry is not written yet
    times += b"" if running else builder.last_time_entry()
    for data, suffix, kind in ((offsets, ".index", OffsetIndex), (times, ".timeindex", TimeIndex)):
        theirs = log.with_suffix(suffix).read_bytes()
        assert theirs[: len(data)] == data
        assert theirs[len(data) :].strip(b"\0") == b""
        assert running or len(theirs) == len(data)
        end = int(array["last_offset"][-1]) + 1 - base
        assert kind.valid_entries(theirs, end, size) * kind.ENTRY.size == len(data)
    sealed = SealedOffsetIndex(Files(), log.with_suffix(".index"), log_size=size)
    assert not sealed.damaged
    assert sealed.entries == len(offsets) // 8


@pytest.mark.parametrize("log", logs(GOLDEN))
def test_entries_equal_the_brokers_files(log: Path) -> None:
    check_against_broker(log)


@pytest.mark.skipif(
    not SHARED.is_dir(), reason="the full set of broker-written segments is not beside the repo"
)
@pytest.mark.parametrize("log", logs(SHARED))
def test_entries_equal_the_brokers_files_full_set(log: Path) -> None:
    check_against_broker(log)


CASES = [
    pytest.param(
        [(0, 100, 0, 5), (100, 1, 1, 6), (101, 100, 2, 4), (201, 50, 3, 9), (251, 100, 4, 1)],
        [(2, 101), (4, 251)],
        [(6, 1), (9, 3)],
        [],
        id="more than the interval since the last entry, not as much",
    ),
    pytest.param([(0, 500, 4, 7)], [], [], [(7, 4)], id="one batch: no offset entry, a closing time entry"),
    pytest.param(
        [(0, 500, 4, -1), (500, 500, 9, -1)], [(9, 500)], [], [], id="without timestamps no time entries"
    ),
    pytest.param(
        [(0, 500, 0, 7), (500, 500, 1, 7), (1000, 500, 2, 7)],
        [(1, 500), (2, 1000)],
        [(7, 0)],
        [],
        id="a timestamp that does not rise makes no time entry",
    ),
    pytest.param(
        [(0, 500, 0, 0), (500, 1, 1, 3)],
        [(1, 500)],
        [(3, 1)],
        [],
        id="the batch itself counts for its time entry",
    ),
    pytest.param([], [], [], [], id="nothing"),
]


@pytest.mark.parametrize(("rows", "offsets", "times", "closing"), CASES)
def test_entries(rows: Any, offsets: Any, times: Any, closing: Any) -> None:
    base = 1000
    builder = IndexBuilder(base, 100)
    made = builder.add(batches(*[(p, s, base + o, t) for p, s, o, t in rows]))
    assert (OffsetIndex.parse(made[0]), TimeIndex.parse(made[1])) == (offsets, times)
    assert TimeIndex.parse(builder.last_time_entry()) == closing
    assert builder.last_time_entry() == b""


def test_a_batch_that_compaction_left_empty_has_no_time() -> None:
    rows = batches((0, 150, 0, 9), (150, 150, 1, 5), (300, 150, 2, 7))
    rows["count"][[0, 2]] = 0
    builder = IndexBuilder(0, 100)
    made = builder.add(rows)
    assert OffsetIndex.parse(made[0]) == [(1, 150), (2, 300)]
    assert TimeIndex.parse(made[1]) == [(5, 1)]
    assert builder.last_time_entry() == b""


def test_builder_goes_back_to_an_earlier_state() -> None:
    builder = IndexBuilder(0, 100)
    builder.add(batches((0, 150, 0, 5)))
    state, more = builder.state, batches((150, 10, 1, 9))
    assert state == (150, 5, 0, -1)
    first = builder.add(more)
    builder.state = state
    assert builder.add(more) == first == (struct.pack(">ii", 1, 150), struct.pack(">qi", 9, 1))


@pytest.mark.parametrize(
    "row",
    [
        pytest.param((0, 1, 1000 + 2**31, 1), id="offset too far"),
        pytest.param((2**31, 1, 1001, 1), id="position too far"),
        pytest.param((0, 1, 999, 1), id="offset below the base"),
        pytest.param((-1, 1, 1001, 1), id="negative position"),
    ],
)
def test_builder_refuses_what_no_segment_can_hold(row: tuple[int, int, int, int]) -> None:
    builder = IndexBuilder(1000, 0)
    with pytest.raises(OSError) as caught:
        builder.add(batches((0, 1, 1000, 50), row))
    assert caught.value.errno == errno.EOVERFLOW
    assert builder.state == (0, -1, -1, -1)


def test_builder_takes_more_batches_than_it_had_room_for() -> None:
    rows = [(i * 10, 10, i, i) for i in range(1000)]
    offsets, times = IndexBuilder(0, 5).add(batches(*rows))
    assert OffsetIndex.parse(offsets) == [(i, i * 10) for i in range(1, 1000)]
    assert TimeIndex.parse(times) == [(i, i) for i in range(1, 1000)]
