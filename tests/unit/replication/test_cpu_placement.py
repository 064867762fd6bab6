"""`CpuPlacement`: a thread leaves the processor of another one, ever less often where that is in vain, and
never where there is no other.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from segstore._native import lib
from segstore.replication import cpu_placement
from segstore.replication.cpu_placement import MOST, CpuPlacement


class Processors:
    """In place of C: where the calling thread is, and what it leaves."""

    def __init__(self) -> None:
        self.here, self.left = 0, 0

    def seg_processor(self) -> int:
        return self.here

    def seg_leave_processor(self, number: int) -> int:
        assert number == self.here
        self.left += 1
        return -1


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> Processors:
    made = Processors()
    monkeypatch.setattr(cpu_placement, "lib", made)
    return made


def moves(kept: CpuPlacement, processors: Processors, pieces: int) -> list[int]:
    """Return after which of so many pieces of work the thread moves."""
    at = []
    for number in range(1, pieces + 1):
        before = processors.left
        kept.keep()
        at += [number] * (processors.left - before)
    return at


def test_moves_in_vain_become_rare(processors: Processors) -> None:
    kept = CpuPlacement()
    kept.note_other()
    assert moves(kept, processors, 31) == [1, 3, 7, 15, 31]
    assert moves(kept, processors, 3 * MOST) == [MOST, 2 * MOST, 3 * MOST]


def test_a_thread_stays_where_the_other_one_is_not(processors: Processors) -> None:
    kept = CpuPlacement()
    kept.note_other()
    moves(kept, processors, 3)
    processors.here = 1
    assert moves(kept, processors, 10) == []
    processors.here = 0
    assert moves(kept, processors, 1) == [1]


def test_where_processors_are_not_known_nothing_moves(processors: Processors) -> None:
    kept, processors.here = CpuPlacement(), -1
    kept.note_other()
    assert moves(kept, processors, 10) == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux tells of processors")
def test_a_thread_that_leaves_a_processor_may_use_the_same_ones_as_before() -> None:
    told: list[Any] = []

    def run() -> None:
        allowed = os.sched_getaffinity(0)
        here = lib.seg_processor()
        told.append((here in allowed, lib.seg_leave_processor(here), len(allowed) > 1))
        told.append(os.sched_getaffinity(0) == allowed)
        os.sched_setaffinity(0, {here})
        told.append((lib.seg_leave_processor(here), os.sched_getaffinity(0)))
        told.append((here, lib.seg_leave_processor(-1)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    (known, left, others), same, (stayed, only), (here, refused) = told
    assert known
    assert left == (0 if others else -1)
    assert same
    assert (stayed, only, refused) == (-1, {here}, -1)
