"""Promise: batches are written to an active segment and indexed in one place: the bytes, then the index,
then the end. What fails, or does not fit, changes none of them.
"""

from __future__ import annotations

import errno
from typing import Any, NamedTuple

import numpy as np
import pytest

from segstore._native import ffi, lib
from segstore.index import OffsetIndex, TimeIndex
from segstore.records import Encoded, Template, scan, single
from segstore.storage.segment.active import ChunkPart

ROOM, INTERVAL, MOST, SIZE = 16, 150, 10_000, 170
BASE, EPOCH, NOW = 1_000, 7, 5_000
LARGEST = 2**31 - 1


class State(NamedTuple):
    """All that an append moves."""

    position: int
    next_offset: int
    rolled_ms: int
    index: tuple[int, int, int, int]
    offsets: list[tuple[int, int]]
    times: list[tuple[int, int]]


class Active:
    """An active segment in memory; its writes are kept, or fail with `error`."""

    def __init__(self, rolled_ms: int = NOW, **end: int) -> None:
        state = {"max_timestamp": -1, "max_timestamp_offset": -1, "last_time_entry": -1}
        room = {"offset_room": ROOM, "time_room": ROOM}
        begin = {"next_offset": BASE, "base_offset": BASE, "rolled_ms": rolled_ms, "state": state}
        self.end = ffi.new("seg_end *", begin | room | end)
        self.offsets, self.times = ffi.new("uint8_t[]", 8 * ROOM), ffi.new("uint8_t[]", 12 * ROOM)
        self.c = ffi.new(
            "seg_active *",
            {
                "end": self.end,
                "offset_index": self.offsets,
                "time_index": self.times,
                "interval": INTERVAL,
                "most_position": MOST,
                "young_ms": 100,
            },
        )
        self.error, self.calls, self.seen = 0, 0, [self.state()]
        self.file = bytearray(self.end.position)
        self._write = ffi.callback("seg_writer", self._written)

    def _written(self, fd: int, data: Any, sizes: Any, n: int, position: int) -> int:
        self.calls += 1
        self.seen.append(self.state())
        if self.error:
            return -self.error
        assert position == len(self.file)
        parts = [ffi.buffer(data[i], sizes[i])[:] for i in range(n)]
        self.file += b"".join(parts)
        return sum(map(len, parts))

    def state(self) -> State:
        end = self.end
        s = end.state
        index = s.bytes_since, s.max_timestamp, s.max_timestamp_offset, s.last_time_entry
        offsets = ffi.buffer(self.offsets, 8 * end.offset_entries)[:]
        times = ffi.buffer(self.times, 12 * end.time_entries)[:]
        found = OffsetIndex.parse(offsets), TimeIndex.parse(times)
        return State(end.position, end.next_offset, end.rolled_ms, index, *found)

    def append(self, parts: list[ChunkPart], judged: int = 0, as_is: bool = False) -> int:
        c = ffi.new("seg_part[]", len(parts))
        for i, part in enumerate(parts):
            c[i].data, c[i].len = part.chunk.ptr + part.at, part.size
            c[i].batches, c[i].n, c[i].append_time = part.headers, part.n, part.stamp
        return int(lib.seg_active_append(self.c, 0, self._write, c, len(parts), judged, EPOCH, as_is))


def part(time: int = NOW, base: int = 0, stamp: int = -1, value: int = 100) -> ChunkPart:
    return ChunkPart.of(
        single(b"v" * value, None, (), time, Template(base_offset=base, leader_epoch=3)), stamp
    )


def some(n: int, time: int = NOW) -> list[ChunkPart]:
    return [part(time + i) for i in range(n)]


def test_the_bytes_come_before_the_index_and_the_index_before_the_end() -> None:
    active = Active()
    before = active.state()
    assert active.append(some(4)) == 4
    assert active.seen[-1] == before
    after = active.state()
    assert (after.position, after.next_offset) == (4 * SIZE, BASE + 4)
    assert after.offsets == [(1, SIZE), (2, 2 * SIZE), (3, 3 * SIZE)]
    assert after.times == [(NOW + i, i) for i in (1, 2, 3)]


def test_parts_are_one_write_of_whole_batches() -> None:
    active = Active()
    assert active.append(some(5)) == 5
    assert active.calls == 1
    batches, stop = scan(bytes(active.file))
    assert stop.status == lib.SEG_END
    assert batches["base_offset"].tolist() == [BASE + i for i in range(5)]
    assert batches["leader_epoch"].tolist() == [EPOCH] * 5


@pytest.mark.parametrize("as_is", [False, True])
def test_a_write_that_fails_changes_nothing(as_is: bool) -> None:
    active = Active()
    active.append(some(2))
    before, active.error = active.state(), errno.ENOSPC
    parts = [part(base=BASE + 9)]
    assert active.append(parts, as_is=as_is) == -errno.ENOSPC
    assert active.state() == before
    active.error = 0
    assert active.append([part()]) == 1
    assert active.state().position == 3 * SIZE


REFUSED = {
    "the first batch": (Active(rolled_ms=-1), part()),
    "too late": (Active(), part(NOW + 101)),
    "without a time": (Active(), part(-1)),
    "stamped too late": (Active(), part(NOW, stamp=NOW + 101)),
    "more than segment.bytes": (Active(position=MOST - SIZE + 1), part()),
    "no room in the offset index": (Active(offset_entries=ROOM), part()),
    "no room in the time index": (Active(time_entries=ROOM), part()),
    "a relative offset above int32": (Active(next_offset=BASE + LARGEST + 1), part()),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_may_not_fit_is_left_alone(why: str) -> None:
    active, one = REFUSED[why]
    before = active.state()
    assert (active.append([one]), active.calls) == (0, 0)
    assert active.state() == before


def test_the_parts_in_front_of_one_that_may_not_fit_are_written() -> None:
    active = Active()
    assert active.append([part(), part(NOW - 5), part(NOW + 500), part()]) == 2
    assert active.state().next_offset == BASE + 2


def test_a_part_that_was_judged_is_written_and_gives_an_empty_segment_its_time() -> None:
    active = Active(rolled_ms=-1)
    assert active.append([part(NOW), part(NOW + 100), part(NOW + 101)], judged=1) == 2
    assert (active.calls, active.state().rolled_ms) == (1, NOW)


def test_log_append_time() -> None:
    active = Active(rolled_ms=-1)
    assert active.append([part(3, stamp=NOW), part(4, stamp=NOW + 1)], judged=1) == 2
    batches, stop = scan(bytes(active.file))
    assert stop.status == lib.SEG_END  # the CRCs are right
    assert batches["max_timestamp"].tolist() == [NOW, NOW + 1]
    assert (active.state().rolled_ms, active.state().index[1]) == (NOW, NOW + 1)


def test_batches_of_a_leader_stay_as_they_are() -> None:
    active = Active()
    active.append([part()])
    parts = [part(base=BASE + 5), part(base=BASE + 9)]
    told = [bytes(each.memory) for each in parts]
    assert active.append(parts, as_is=True) == 2
    batches, _ = scan(bytes(active.file))
    assert batches["base_offset"].tolist() == [BASE, BASE + 5, BASE + 9]
    assert batches["leader_epoch"].tolist() == [EPOCH, 3, 3]
    assert active.state().offsets == [(5, SIZE), (9, 2 * SIZE)]
    for each, before in zip(parts, told, strict=True):  # whose own bytes are read behind that
        assert bytes(each.memory) == before


def test_headers_that_are_not_those_of_the_bytes() -> None:
    active = Active()
    one = part()
    one.headers[0].size -= 1
    before = active.state()
    assert active.append([one]) == lib.SEG_E_COLUMN
    assert (active.state(), active.calls) == (before, 0)


def test_a_vector_has_1024_parts_at_most() -> None:
    active = Active(offset_room=3_000, time_room=3_000)
    active.c.most_position, active.c.interval = 1 << 30, 1 << 30
    one = [part() for _ in range(1_500)]
    assert active.append(one) == 1_024
    assert active.append(one[1_024:]) == 476
    assert active.calls == 2


def test_what_lies_in_the_segment_is_indexed_as_room_allows() -> None:
    active = Active(offset_room=1, time_room=ROOM)
    data = bytes(b"".join(bytes(each.chunk.data) for each in [part(NOW + i, i) for i in range(4)]))
    batches, _ = scan(data)
    batches["base_offset"] += BASE
    batches["last_offset"] += BASE
    before, needed = active.state(), ffi.new("int64_t[2]")

    def index() -> int:
        return int(lib.seg_active_index(active.c, ffi.from_buffer("seg_batch *", batches), 4, needed))

    assert (index(), list(needed)) == (lib.SEG_E_ROOM, [3, 3])
    assert active.state() == before
    active.end.offset_room = 3
    assert index() == 0
    written = Active()
    written.append(some(4))
    assert active.state() == written.state()


def test_an_offset_that_the_index_can_not_say() -> None:
    active, needed = Active(), ffi.new("int64_t[2]")
    batches = np.copy(part(base=BASE + LARGEST + 1).chunk.batches)
    before = active.state()
    found = lib.seg_active_index(active.c, ffi.from_buffer("seg_batch *", batches), 1, needed)
    assert found == -errno.EOVERFLOW
    assert active.state() == before


def test_a_chunk_that_is_split() -> None:
    parts = [bytes(each.chunk.data) for each in [part(NOW + i, i) for i in range(5)]]
    batches, _ = scan(b"".join(parts))
    whole = ChunkPart.of(Encoded.of(bytearray(b"".join(parts)), batches), -1)
    first, rest = whole.split(2)
    active = Active()
    assert (active.append([first]), active.append([rest])) == (1, 1)
    written = Active()
    written.append(some(5))
    assert active.state() == written.state()
    assert active.file == written.file
