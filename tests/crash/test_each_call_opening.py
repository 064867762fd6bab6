"""Power cuts and failing calls within recovery, repair and copies of a store."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from faulty.built import two_topics
from faulty.driver import FAULTS, Bench, Scenario, run_cuts, run_faults
from faulty.world import World, observe

import segstore
from segstore.files import Files
from segstore.storage.copy import copy
from segstore.storage.repair import repair

pytestmark = pytest.mark.kind("faults")


def crashed(world: World) -> None:
    """Unflushed records, a deleted topic, and half a batch."""
    two_topics(world)
    world.append(n=12, batch_bytes=200)
    world.append("other", 2)
    log = max(path for path in (world.root / "t-0").glob("*.log"))
    with world.files.open(log, write=True) as handle:
        world.files.pwrite(handle, world.files.pread(handle, 100, 0), world.files.size(handle))


def closed(world: World) -> None:
    """Nothing is open yet."""


def recover(world: World) -> None:
    world.append(n=2)
    world.flush()


def damaged(world: World) -> None:
    """Indexes of sealed segments that say nothing, or nonsense, and a snapshot that is none."""
    two_topics(world)
    world.close()
    directory = world.root / "t-0"
    for i, path in enumerate(sorted([*directory.glob("*.index"), *directory.glob("*.timeindex")])[:4]):
        with world.files.open(path, write=True) as handle:
            world.files.pwrite(handle, b"\7" * 40, 0) if i % 2 else world.files.truncate(handle, 0)
            world.files.sync(handle)
    for path in directory.glob("*.snapshot"):
        with world.files.open(path, write=True) as handle:
            world.files.pwrite(handle, b"\0\7", 0)
            world.files.sync(handle)


def put_right(world: World) -> None:
    repair(world.root, files=world.files)


def mend(path: Path, files: Files) -> None:
    repair(path, files=files)


def make_copy(world: World) -> None:
    copy(world.root, world.root.parent / "copy", files=world.files)


def is_whole(root: Path) -> None:
    """A copy is there whole or not at all; indexes for which there was no room are made by who reads it."""
    if not (root / "copy").exists():
        return
    with segstore.open(root / "copy") as store:
        observe(store)
    assert segstore.check(root / "copy") == []
    with segstore.open(root / "copy", mode="r") as store:
        held = {place: len(log.records) for place, log in observe(store).items()}
        assert held == {("t", 0): 12, ("other", 0): 0, ("other", 1): 3}


SCENARIOS = {
    "recovery": Scenario(crashed, recover, closed, crashed=True),
    "repair": Scenario(damaged, put_right, closed, mend=mend),
    "copy": Scenario(two_topics, make_copy, closed, also=is_whole),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_power_cuts(tmp_path: Path, rng: random.Random, name: str) -> None:
    run_cuts(Bench(SCENARIOS[name], tmp_path, rng), most=15)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_failing_calls(tmp_path: Path, rng: random.Random, name: str, fault: str) -> None:
    run_faults(Bench(SCENARIOS[name], tmp_path, rng), FAULTS[fault], most=1)
