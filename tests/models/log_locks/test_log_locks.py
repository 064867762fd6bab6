"""Promise: however the threads of a log meet, each append is answered once, and is in the log once if that is
an offset; a tail that is paused writes nothing, no descriptor is used once it is closed, and nobody waits for
ever, nor for a disk that hangs once the tail was quit. A fault that is planted in the protocol is found.
"""

from __future__ import annotations

import gc
import os

import pytest

from .bounds import Bounds
from .search import search

pytestmark = pytest.mark.kind("model of a log's locks")

LARGE = "SEGSTORE_LARGE_SPACES" in os.environ
MOST = 45_000  # states that are looked at in every run

SPACES: dict[str, tuple[Bounds, int]] = {
    "two combine, one keeps the interpreter's lock": (Bounds(keeping=1, records=2, room=2), 8_425),
    "two, signals": (Bounds(interrupts=2), 1_377),
    "two, Python writes, signals": (Bounds(python_writes=True, interrupts=1), 3_588),
    "two, torn writes": (Bounds(failures=2), 2_532),
    "three combine": (Bounds(appenders=3), 33_104),
    "three, one finds no slot": (Bounds(appenders=3, slotless=1), 22_348),
    "two open the tail": (Bounds(is_open=False, interrupts=1), 3_388),
    "a fence": (Bounds(fence=True), 40_105),
    "a fence as the tail is opened": (
        Bounds(appenders=1, records=2, fence=True, is_open=False, interrupts=1),
        5_272,
    ),
    "the pool lets go": (Bounds(keeping=1, pool="pause"), 50_890),
    "the pool lets go as the tail is opened": (
        Bounds(appenders=1, records=2, pool="pause", is_open=False),
        4_508,
    ),
    "the pool quits as the tail is opened": (
        Bounds(appenders=1, records=2, pool="quit", is_open=False),
        4_149,
    ),
    "a sync, and the pool lets go": (Bounds(appenders=1, pool="pause", syncs=True, interrupts=1), 41_573),
    "a sync, and the pool quits": (Bounds(appenders=1, pool="quit", syncs=True, is_open=False), 13_889),
    "two wait for a write that hangs, and the pool quits": (
        Bounds(pool="quit", hangs=True, slotless=2),
        17_906,
    ),
    "two wait, one in a slot, for a write that hangs": (Bounds(pool="quit", hangs=True, slotless=1), 55_436),
    "two wait in slots for a write that hangs": (Bounds(pool="quit", hangs=True), 105_014),
    "three, torn writes": (Bounds(appenders=3, failures=1), 292_967),
    "three, signals": (Bounds(appenders=3, room=2, interrupts=1), 155_099),
    "two open the tail, and the pool lets go": (Bounds(pool="pause", is_open=False), 203_154),
    "two open the tail, and the pool quits": (Bounds(pool="quit", is_open=False), 189_182),
    "two, a sync, and the pool lets go": (Bounds(keeping=2, pool="pause", syncs=True), 735_899),
    "two, a fence, signals": (Bounds(fence=True, is_open=False, interrupts=1), 151_078),
    "two, Python writes, and tears": (
        Bounds(records=2, room=2, python_writes=True, failures=1, interrupts=1),
        191_264,
    ),
}
"""Name to the bounds, and the states that there are."""

COMBINING, OPENING = Bounds(appenders=3), Bounds(pool="pause", is_open=False)
SYNCING = Bounds(appenders=1, pool="pause", syncs=True)
HANGING = Bounds(pool="quit", hangs=True, slotless=1)
PLANTED: dict[str, tuple[Bounds, str]] = {
    "shown before the write": (COMBINING, "a hole below the end"),
    "an index entry before its bytes": (COMBINING, "the index has 1 entries"),
    "an answer before the write": (COMBINING, "was acknowledged at 1"),
    "one sleeper is woken": (COMBINING, "nobody can go on"),
    "a sleeper locks without a note": (SYNCING, "nobody can go on"),
    "a slot is not counted": (COMBINING, "is over, and has no answer"),
    "an append is withdrawn without the exchange": (Bounds(interrupts=1), "is touched after its answer"),
    "a torn tail stays open": (Bounds(failures=1), "a tail that is torn writes"),
    "the interpreter's lock is kept beside a writer of Python's": (
        Bounds(keeping=1, python_writes=True),
        "nobody can go on",
    ),
    "a pause forgets the slots": (OPENING, "was left before a pause"),
    "a tail is opened without a descriptor": (
        OPENING._replace(appenders=1, records=2),
        "a write uses a descriptor that is closed",
    ),
    "a tail is opened within a quit": (
        OPENING._replace(appenders=1, records=2, pool="quit"),
        "was left before a pause",
    ),
    "nothing is looked at after the tail was opened": (
        Bounds(appenders=1, fence=True, is_open=False),
        "takes appends",
    ),
    "a quit turns nobody away": (HANGING, "nobody can go on"),
    "a quit leaves the lock as it is": (HANGING, "nobody can go on"),
    "a descriptor is closed within a sync": (SYNCING, "a sync uses a descriptor that is closed"),
    "a sync looks at no pause": (SYNCING, "a sync uses a descriptor that is closed"),
    "a handle is bound again as it is let go of": (
        SYNCING._replace(is_open=False),
        "a sync uses a descriptor that is closed",
    ),
}
"""Fault to the bounds within which it shows, and how."""


@pytest.mark.parametrize("name", SPACES)
def test_all_holds(name: str) -> None:
    bounds, states = SPACES[name]
    if states > MOST and not LARGE:
        pytest.skip(f"{states:,} states are for `make model-check`")
    gc.disable()  # states are tuples, and all stay
    try:
        found = search(bounds)
    finally:
        gc.enable()
    print(found)
    assert (found.fault, found.states) == ("", states)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    bounds, told = PLANTED[name]
    found = search(bounds._replace(bug=name))
    print(found)
    assert told in found.fault
    assert len(found.trace) > 0
