"""Promise: whatever disks, operators and the processor do to a replicated store, what was acknowledged and
shown stays, but by a rule that is written down, and in the end all replicas are equal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import memory
import pytest
from faulty.counts import record
from simulation.model import Wrong

from segstore.storage.log.replica import Replica

from .play import LOOKS, OPS, play, play_seed
from .shrinking import report
from .steps import Step
from .world import World

pytestmark = pytest.mark.kind("simulation of replicas")

SEEDS, PART, STEPS = 300, 5, 20
"""Always the same ones, `PART` of them in a test: `make simulate-replicas` takes others each time."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What is told of thousands of faults hides what has failed."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(first: int) -> None:
    for seed in range(first, first + PART):
        try:
            steps = sum(play_seed(seed, STEPS).counts.values())
        except Wrong:
            pytest.fail(report(seed, STEPS, most=20), pytrace=False)
        record("replicated simulation seeds")
        record("replicated simulation steps", steps)


CASES: dict[str, tuple[object, list[Step]]] = {
    "right after an open heal passed over a replica of which its directory had not heard yet": (1, [
        ("create", "a", 1, 2, True, "keep"),
        ("burst", "a", 0, 2, 20),
        ("rot", "a", 0, 1, 50, True),
    ]),
    "right after an open committed offsets were read before the leader showed all of them": (0, [
        ("create", "a", 2, 2, False, "keep"),
        ("commit", "a", 0, 0),
        ("kill",),
    ]),
    "what was sealed was refused since a creation of __transaction_state was decided after its time": (1002, [
        ("create", "a", 1, 2, False, "keep"),
        ("consume", "static", False),
        ("produce", "a", 0, "y", 18, 1, 0),
        ("beat", "static"),
        ("beat", "dynamic"),
        ("pause", "metadata", 2),
        ("stage", 0, 26, (("a", 0), ("a", 1)), 4),
        ("alter", "a", 3),
        ("break", 1),
        ("transact", "m", 31, (("a", 0), ("a", 1)), False),
        ("stage", 2, 33, (("a", 0), ("a", 1)), 12),
    ]),
    "with two of three directories gone heartbeats waited for the alarm, and that for a leader":
    (62351, [
        ("create", "a", 1, 2, True, "keep"),
        ("away", 2, "close"),
        ("consume", "dynamic", False),
        ("break", 0),
        ("beat", "static"),
        ("beat", "dynamic"),
        ("consume", "static", True),
        ("beat", "static"),
    ]),
    "with no majority of voters for minutes thousands of heartbeats waited for the controller": (64069, [
        ("create", "a", 2, 2, False, "delete"),
        ("create", "b", 1, 2, True, "delete"),
        ("break", 1),
        ("jump", "b", 0, 12, -10800000),
        ("pause", "metadata", 2),
        ("transact", "m", 17, (("a", 0),), True),
        ("consume", "static", False),
        ("consume", "dynamic", True),
        ("beat", "dynamic"),
        ("beat", "dynamic"),
        ("mend",),
    ]),
    "a replica joined the ISR without a sync, and the others went: a power cut took what was adopted":
    (65132, [
        ("create", "a", 2, 2, False, "delete"),
        ("create", "b", 1, 1, False, "keep"),
        ("rot", "b", 0, 0, 66, True),
        ("stage", 2, 25, (("a", 0),), 1),
        ("commit", "a", 1, 100),
        ("move", "a", 0, (0, 1)),
        ("look", "a", 1),
        ("move", "a", 0, (2,)),
        ("break", 2),
        ("tick", 1000),
        ("mend",),
        ("cut", "none", (0, 1, 2)),
    ]),
    "replicas were called different by records of a lost leader below the log start, which nobody reads":
    (70099, [
        ("create", "a", 1, 1, False, "keep"),
        ("strand", "a", 0, 12, "", False),
        ("append", "a", 0, 18, 1, 0),
        ("trim", "a", 0, 100),
    ]),
}  # fmt: skip
"""Runs that found a fault of the product, or of the simulation, once, and the seeds that led there."""


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_failed_once(name: str) -> None:
    seed, steps = CASES[name]
    play(steps, seed)


def test_r20_a_disk_hangs_before_the_log_start_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that alone had records comes back when those at their offsets were deleted. It hangs before
    its log begins behind its own, the leader's disk fails, and the process is killed.
    """
    with memory.directory() as root:
        world = World(root, 70099, OPS, LOOKS)
        set_start_offset, hung = Replica.set_start_offset, []

        def hang(replica: Replica, offset: int) -> None:
            if replica._partition.directory == str(world.path(0) / "a-0") and not hung:
                hung.append(offset)
                world.turns.paused.add("-0")
                world.turns.wait(lambda: True, 0)
            set_start_offset(replica, offset)

        monkeypatch.setattr(Replica, "set_start_offset", hang)
        world.run([
            ("create", "a", 1, 1, False, "keep"),
            ("strand", "a", 0, 12, "", False),
            ("tick", 300),
            ("append", "a", 0, 18, 1, 1),
            ("tick", 300),
            ("look", "a", 0),
            ("trim", "a", 0, 100),
            ("close",),
            ("break", 1),
            ("append", "a", 0, 19, 1, 1),
            ("tick", 300),
            ("kill",),
            ("tick", 1000),
            ("look", "a", 0),
        ])  # fmt: skip
    assert hung == [1]


def test_the_same_seed_is_the_same_run() -> None:
    assert play_seed("same", 40).trace == play_seed("same", 40).trace
