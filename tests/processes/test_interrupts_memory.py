"""Promise: Ctrl-C, wherever it comes, never lets C write to memory that was freed or is too small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from struck import struck

from segstore._native import ffi
from segstore.files import Files
from segstore.index import ActiveOffsetIndex, IndexBuilder
from segstore.records import batch_type

pytestmark = pytest.mark.kind("interrupts")


def batches(n: int) -> np.ndarray:
    """Of one record and 100 bytes each, with rising stamps: each has an entry in both indexes."""
    made = np.zeros(n, batch_type())
    made["base_offset"] = made["last_offset"] = made["max_timestamp"] = np.arange(n)
    made["position"], made["size"], made["count"] = np.arange(n) * 100, 100, 1
    return made


def test_an_index_builder_that_was_interrupted_while_it_grew() -> None:
    """It had told its new capacity before it had that: C wrote behind the old room."""
    place, raised = 0, 1
    while raised:
        place += 1
        builder = IndexBuilder(0, 0)
        raised = struck(lambda made=builder: made.add(batches(1000)), place)
        if builder._capacity >= 0:
            for room in (builder._offset_out, builder._time_out):
                assert ffi.sizeof(room) >= builder._capacity * 8, place
    assert place > 2


@pytest.mark.parametrize("step", ["reserve", "seal"])
def test_an_index_that_was_interrupted_while_its_file_changed(tmp_path: Path, step: str) -> None:
    """The record never says more room than the file has, or C would write behind the mapping; and what is
    reserved again later is there.
    """
    place, raised = 0, 1
    while raised:
        place += 1
        path, end = tmp_path / str(place), ffi.new("seg_end *")
        active = ffi.new("seg_active *", {"end": end})
        index = ActiveOffsetIndex(Files(), path, 1 << 20, end, active)
        if step == "seal":
            index.reserve(100)
            index.append(index.format((i, i) for i in range(1, 9)))
        raised = struck(lambda made=index: made.reserve(100) if step == "reserve" else made.seal(), place)
        assert end.offset_room * 8 <= min(path.stat().st_size, len(index.view.memory)), place
        assert active.offset_index == index.view.pointer, place
        index.reserve(20_000)
        assert end.offset_room - end.offset_entries >= 20_000, place
        assert end.offset_room * 8 <= min(path.stat().st_size, len(index.view.memory)), place
    assert place > 2
