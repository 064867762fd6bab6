"""Promise: Ctrl-C, wherever it comes, never lets C write to memory that was freed or is too small."""

from __future__ import annotations

import numpy as np
from struck import struck

from segstore._native import ffi
from segstore.index import IndexBuilder
from segstore.records import BATCH


def batches(n: int) -> np.ndarray:
    """Of one record and 100 bytes each, with rising stamps: each has an entry in both indexes."""
    made = np.zeros(n, BATCH)
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
