"""Promise: whatever is done in whatever order, with whatever faults, the store is what the model says."""

from __future__ import annotations

import hashlib
import itertools
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from faulty.counts import record
from places import environment
from waiting import PATIENCE

from .cases import CASES
from .files import SimulatedFiles
from .model import Wrong
from .play import play, play_seed
from .shrink import report, shrink
from .steps import draw

pytestmark = pytest.mark.kind("simulation")

SEEDS, STEPS, CHUNKS = 200, 120, 20
LONG_SEEDS, LONG_STEPS = 8, 1500
"""Always the same ones, in less than two minutes of one core: `make simulate` takes others each time. Long
runs have what comes of many reopenings, and of logs that grow.
"""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What is told of thousands of faults hides what has failed."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_seeds(chunk: int) -> None:
    for number in range(chunk, SEEDS, CHUNKS):
        holds(number, STEPS)


@pytest.mark.parametrize("number", range(1000, 1000 + LONG_SEEDS))
def test_long_runs(number: int) -> None:
    holds(number, LONG_STEPS)


def holds(seed: int, steps: int) -> None:
    try:
        world = play_seed(seed, steps)
    except Wrong:
        pytest.fail(report(seed, steps), pytrace=False)
    record("simulation seeds", 1)
    record("simulation steps", sum(world.counts.values()))


def test_every_step_does_something() -> None:
    """No kind of step is passed over for ever, nor are faults and deaths."""
    counts: dict[str, int] = {}
    for number in range(12):
        for name, n in play_seed(f"long {number}", 120).counts.items():
            counts[name] = counts.get(name, 0) + n
    never = {name for name, n in counts.items() if not n}
    assert never == set()


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    seed, steps = CASES[name]
    play(steps, seed)


def trace_of(name: str) -> str:
    return hashlib.sha256("\n".join(play_seed(name, 150).trace).encode()).hexdigest()


def test_the_same_seed_is_the_same_run() -> None:
    """Call by call, in other processes too, whatever their hashes are."""
    code = "from simulation.test_simulation import trace_of; print(trace_of('same'))"
    found = {trace_of("same"), trace_of("same")}
    for hashes in ("0", "1"):
        env = {**environment(), "PYTHONHASHSEED": hashes}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        found.add(done.stdout.strip())
    assert len(found) == 1
    assert trace_of("other") not in found


@pytest.mark.parametrize("name", ["same", "det 28"])
def test_the_same_seed_is_the_same_run_on_a_slow_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is believed for a tenth of a second lapsed in one run and not in the other; members of a group
    drew their ids from the machine, and the assignment goes by the ids.
    """
    quick = trace_of(name)
    before, calls = SimulatedFiles.before, itertools.count(1)

    def slow(self: SimulatedFiles, *args: Any) -> None:
        if next(calls) % 300 == 0:
            time.sleep(0.11)
        before(self, *args)

    monkeypatch.setattr(SimulatedFiles, "before", slow)
    assert trace_of(name) == quick


def test_a_run_that_fails_is_cut_down() -> None:
    """Of sixty steps the two that matter are left, in their order."""
    steps = draw("shrink", 60)
    wanted = [steps[11], steps[43]]

    def fails(some: list) -> str | None:
        there = [step for step in some if step in wanted]
        return "wrong" if there == wanted else None

    assert shrink(steps, fails) == wanted
