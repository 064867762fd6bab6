"""A segment as its readers may see it: what C gets of it, and whose memory that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import segstore
from segstore._native import ffi
from segstore.storage.segment.segment import Segment

CONFIG = {"segment.bytes": 4000, "index.interval.bytes": 100}


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t", config=CONFIG)
        log = store.partition("t")
        for i in range(100):
            log.append(b"%0100d" % i)  # C makes the last index entries of the active segment
        yield log


def filled(segment: Segment, end: int, end_offset: int) -> tuple[Any, Any]:
    c = ffi.new("seg_segment *")
    return c, segment.fill(c, ffi.buffer(c), end, end_offset)


SLOTS = {"the first one": 0, "a sealed one": 1, "the active one": -1}


@pytest.mark.parametrize("name", SLOTS)
def test_both_ways_to_make_the_struct_agree(log: segstore.PartitionLog, name: str) -> None:
    segment = log.source.view.segments[SLOTS[name]]
    c, index = filled(segment, 3000, 77)
    assert bytes(ffi.buffer(c)) == bytes(ffi.buffer(ffi.new("seg_segment *", segment.fields(3000, 77))))
    assert (c.number, c.base_offset, c.end, c.end_offset) == (segment.number, segment.base_offset, 3000, 77)
    assert c.entries == index.n == segment.indexes[0].entries > 5
    assert ffi.buffer(c.index, c.entries * 8)[:] == index.memory[: index.n * 8]


def test_the_view_that_is_given_is_the_one_that_is_told(log: segstore.PartitionLog) -> None:
    """Entries that come meanwhile are of no concern to who has a view."""
    segment = log.source.view.segments[-1]
    index = segment.indexes[0].view
    log.append(b"%0200d" % 100)
    assert segment.fields(1, 1)[1] > segment.fields(1, 1, index)[1] == index.n


CHANGES = {
    "the index is made anew": lambda log, segment: segment.distrust(),
    "the segment is deleted": lambda log, segment: log.delete_records(log.end_offset),
    "the store is closed": lambda log, segment: log.store.close(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_reader_keeps_the_index_whatever_becomes_of_the_segment(
    log: segstore.PartitionLog, name: str
) -> None:
    segment = log.source.view.segments[0]
    c, index = filled(segment, segment.size, 20)
    made = ffi.new("seg_segment *", fields := segment.fields(segment.size, 20))
    before = ffi.buffer(c.index, c.entries * 8)[:]
    CHANGES[name](log, segment)
    assert (c.entries, made.entries) == (index.n, fields[1])
    for it in (c, made):
        assert ffi.buffer(it.index, it.entries * 8)[:] == before
