"""Promise: however the threads of a log meet, no acknowledged batch is lost, none is there twice, nothing is
shown before it is written, and nobody waits for ever. A fault that is planted in the protocol is found.
"""

from __future__ import annotations

import gc
import os

import pytest

from .bounds import Bounds
from .search import search

LARGE = "SEGSTORE_LARGE_SPACES" in os.environ
MOST = 10_000  # states that are looked at in every run

SPACES: dict[str, tuple[Bounds, int]] = {
    "three combine": (Bounds(appenders=3), 2_168),
    "two without slots": (Bounds(records=2, combining=False, interrupts=1), 2_394),
    "interrupts and torn writes": (Bounds(room=2, interrupts=1, failures=1), 932),
    "the pool closes the descriptor": (Bounds(pool=True, interrupts=1), 5_463),
    "a holder is interrupted twice": (Bounds(room=2, holder=True, interrupts=2), 6_062),
    "a roll before the segment is full": (Bounds(records=2, room=2, old=True), 3_823),
    "a follower that is paused": (Bounds(follower=("pause", "resume")), 1_002),
    "a follower comes and goes": (
        Bounds(appenders=1, records=2, holder=True, follower=("detach", "attach"), interrupts=1),
        4_115,
    ),
    "interrupts, torn writes, rolls": (
        Bounds(records=2, room=2, interrupts=2, failures=1, old=True),
        106_506,
    ),
    "three and a holder": (Bounds(appenders=3, room=2, holder=True), 67_420),
    "two, the pool, a holder": (Bounds(room=2, holder=True, pool=True, interrupts=1), 132_589),
    "two, a holder, a follower": (
        Bounds(holder=True, follower=("detach", "pause", "resume", "attach"), interrupts=1),
        57_900,
    ),
    "rolls beside a holder": (Bounds(records=2, room=2, holder=True, interrupts=2, old=True), 586_159),
}
"""Name to the bounds, and the states that there are."""

COMBINING, HOLDER = Bounds(appenders=3), Bounds(room=2, holder=True, interrupts=1)
FOLLOWER = Bounds(appenders=1, records=2, follower=("detach", "attach"))
PLANTED: dict[str, tuple[Bounds, str]] = {
    "published before the write": (COMBINING, "a hole below the end"),
    "an index entry before its bytes": (COMBINING, "the index has 1 entries"),
    "shown before the follower has it": (FOLLOWER, "and the follower has 0"),
    "PAUSED is left after an interrupt": (HOLDER, "some go round for ever"),
    "PAUSED is looked at before the lock": (HOLDER, "was refused, and is in the log"),
    "a hidden write is left after an interrupt": (HOLDER, "was refused, and is in the log"),
    "hidden writes are fetched": (
        Bounds(appenders=1, holder=True, follower=("detach", "attach"), interrupts=1),
        "the follower has",
    ),
    "a descriptor is closed outside of the lock": (Bounds(pool=True), "went into another file"),
    "a roll without PAUSED": (Bounds(records=2, room=2, old=True), "behind the end of a sealed segment"),
    "a torn write is not cut": (Bounds(records=2, room=2, failures=1), "a torn write is left"),
    "a taken batch is withdrawn": (Bounds(interrupts=1), "entries, and the file"),
    "one sleeper is woken": (COMBINING, "nobody can go on"),
    "the lock is kept with a verdict": (Bounds(appenders=1, records=2, room=1), "nobody can go on"),
    "the follower's lock is taken first": (FOLLOWER, "nobody can go on"),
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
