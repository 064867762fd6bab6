"""Promise: however the members of a shared log meet, die and stop, each acknowledged append is in the log
once, whole, at its offset, nothing that was refused is, and no bytes are left that a recovery could take for
records; nobody waits for ever. A fault that is planted in the protocol is found.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from shared_log.bounds import Bounds
from shared_log.search import search
from shared_log.together import Together
from shared_log.world import World

pytestmark = pytest.mark.kind("model of shared logs")

LARGE = "SEGSTORE_LARGE_SPACES" in os.environ
MOST = 12_000  # states that are looked at in every run

SPACES: dict[str, tuple[Bounds, int]] = {
    "two guests, that open the files": (Bounds(strangers=2), 180),
    "a kill": (Bounds(kills=1), 448),
    "a fence": (Bounds(fences=1), 3_599),
    "a fence, and the host appends": (Bounds(fences=1, of_host=1), 26_607),
    "a fence, over two seats": (Bounds(fences=1, seats=2), 3_339),
    "three guests over two seats, and a kill": (Bounds(appends=(1, 1, 1), kills=1, seats=2), 1_952),
    "two kills, rolls, a guest that opens the files": (Bounds(kills=2, strangers=1, room=1), 6_437),
    "a kill, rolls, and the host appends": (Bounds(kills=1, of_host=1, room=1), 31_679),
    "writes and cuts that fail": (Bounds(appends=(2, 2), failures=2), 3_061),
    "a reader, and rolls": (Bounds(appends=(2, 1), room=2, reads=2), 6_598),
    "a reader, and a kill": (Bounds(kills=1, reads=2), 10_990),
    "a kill and a fence": (Bounds(kills=1, fences=1), 38_821),
    "a kill and a fence, over two seats": (Bounds(kills=1, fences=1, seats=2), 36_025),
    "a kill and a fence, and the host appends": (Bounds(kills=1, fences=1, of_host=1), 632_492),
    "a kill and a fence, a guest that opens the files": (
        Bounds(kills=1, fences=1, strangers=1, there=1),
        68_120,
    ),
    "a kill, a fence, and a write that fails": (Bounds(kills=1, fences=1, failures=1), 72_299),
    "a fence, and writes and cuts that fail": (Bounds(appends=(2, 1), fences=1, failures=2), 30_514),
    "a kill, rolls, and guests that give up": (Bounds(kills=1, of_host=1, room=1, gives_up=True), 40_570),
    "two fences": (Bounds(fences=2), 73_341),
    "two kills, and the host appends over two seats": (Bounds(kills=2, of_host=1, seats=2), 87_425),
    "a reader, a kill and a fence": (Bounds(kills=1, fences=1, reads=1), 515_019),
    "two kills and a fence": (Bounds(kills=2, fences=1), 175_292),
}
"""Name to the bounds, and the states that there are."""

FENCE, KILL, BOTH = Bounds(fences=1), Bounds(kills=1), Bounds(kills=1, fences=1)
HOST, HOST_DIES = Bounds(of_host=1), Bounds(kills=1, of_host=1)
PLANTED: dict[str, tuple[Bounds, str]] = {
    # The trial's eight.
    "a store in place of the swap": (FENCE, "current went from"),
    "no look whose the lock is": (BOTH, "the record that is current changed"),  # E4
    "a guest takes a dead host's lock": (BOTH, "a hole below the end"),  # L7
    "a cut before the end has gone on": (FENCE._replace(appends=(2, 1)), "a hole below the end"),  # A4
    "no cut": (KILL, "bytes after the end"),  # L3
    "the lock is taken from the living": (Bounds(), "a hole below the end"),  # L2
    "a fence that is not noted first": (BOTH, "a hole below the end"),  # A2
    "a sealed end that was never open is not cut": (  # A5
        BOTH._replace(strangers=1, there=1),
        "bytes after the end of the sealed segment",
    ),
    # The host, which closes a log and opens it.
    "open = 0 without the lock": (HOST, "half an append"),
    "the end is loaded before the log is closed": (HOST, "half an append"),
    "a seal that compares nothing": (FENCE, "current went from"),
    "the log is opened before its files are there": (Bounds(room=1), "a guest finds no file"),
    "a closed log is taken over without a cut": (HOST_DIES, "bytes after the end of the active"),
    "a guest cuts a closed log": (HOST_DIES, "a hole below the end"),
    "a next host opens with the same generation": (
        Bounds(appends=(1,), of_host=1, there=2, room=2, kills=1),
        "half an append",
    ),
    "files that nobody switched to are kept": (
        Bounds(appends=(1,), of_host=1, there=1, room=1, kills=1),
        "a file is left that nobody switched to",
    ),
    "nobody asks for a dead host's lock": (BOTH, "nobody can go on"),
    # Seats, `torn`, and sealed ends.
    "a seat is taken after the last look": (FENCE, "the end went from"),
    "a fenced guest's seat is given away": (FENCE._replace(seats=2), "the end went from"),
    "torn is cleared by a plain store": (
        FENCE._replace(appends=(2, 1), failures=2),
        "bytes after the end of the active",
    ),
    "torn is loaded after the last look": (FENCE._replace(failures=1), "bytes after the end of the active"),
    "a failed write sets torn, cuts, and clears it": (
        FENCE._replace(failures=2),
        "bytes after the end of the active",
    ),
    "a replaced file is cut": (FENCE, "a hole below the end"),
    "a dead host's note stays": (
        Bounds(appends=(1, 2), kills=1, fences=2, there=1),
        "a hole below the end",
    ),
    "a reader does not look again": (Bounds(appends=(2, 1), room=2, reads=2), "a reader saw"),
}
"""Fault to the bounds within which it shows, and how."""

TOGETHER: dict[str, tuple[Together, int]] = {
    "a set, a kill": (Together(jobs=1, kills=1), 2_587),
    "two sets or appends, two kills": (Together(), 56_782),
    "three sets or appends, three kills": (Together(jobs=3, kills=3), 679_150),
}
PLANTED_TOGETHER = {
    "a host goes on before it has ended the set": "is left",
    "a set is counted once all is prepared": "a reader saw",
    "the sequence stays even": "a reader saw",
    "a set is noted after it is shown": "a reader saw",
}


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()  # states are tuples, and all stay
    yield
    gc.enable()


@pytest.mark.parametrize("name", SPACES)
def test_all_holds(name: str) -> None:
    bounds, states = SPACES[name]
    if states > MOST and not LARGE:
        pytest.skip(f"{states:,} states are for `make model-check`")
    found = search(World(bounds))
    print(found)
    assert (found.fault, found.states) == ("", states)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    bounds, told = PLANTED[name]
    found = search(World(bounds._replace(bug=name)))
    print(found)
    assert told in found.fault
    assert len(found.trace) > 0


@pytest.mark.parametrize("name", TOGETHER)
def test_logs_are_shown_together(name: str) -> None:
    world, states = TOGETHER[name]
    if states > MOST and not LARGE:
        pytest.skip(f"{states:,} states are for `make model-check`")
    found = search(world)
    print(found)
    assert (found.fault, found.states) == ("", states)


@pytest.mark.parametrize("name", PLANTED_TOGETHER)
def test_a_planted_fault_of_a_set_is_found(name: str) -> None:
    found = search(Together(bug=name))
    print(found)
    assert PLANTED_TOGETHER[name] in found.fault
    assert len(found.trace) > 0
