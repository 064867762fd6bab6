"""Power cuts and failing calls within an import: all of it is there or nothing, also of the topic and the
store.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from faulty.driver import FAULTS, Bench, Scenario, run_cuts, run_faults
from faulty.world import World
from staging import inbox

import segstore
from segstore import names
from segstore.errors import InvalidArgumentError, SegstoreError
from segstore.storage.bulk_import import importing

pytestmark = pytest.mark.kind("faults")

PARTITIONS, RECORDS = 2, 12
SMALL = {"segment.bytes": 1000, "index.interval.bytes": 150}


def nothing(world: World) -> None:
    """No store is there, or none is open."""


def other(world: World) -> None:
    world.create("other")
    world.append("other", 3)


def topic(world: World) -> None:
    other(world)
    world.create("t", PARTITIONS)


def left(world: World) -> tuple[bool, list[int] | None]:
    """Whether there is a store, and where the topic's partitions end, if it is there."""
    if not world.root.exists():
        return False, None
    # An intent stays where the disk does not say that it was undone: the next open does it.
    assert [name for name in inbox(world.root) if not name.endswith(names.INTENT)] == []
    with segstore.open(world.root, mode="r") as store:
        ends = [store.partition("t", p).end_offset for p in range(PARTITIONS) if "t" in store.topics()]
        return True, ends or None


def bring(world: World, made: bool, breaks_off: bool = False) -> None:
    """Import. What fails leaves what was there before; or all of it, where closing the store has failed."""
    before = left(world)
    parts = world.begin("import", [("t", p) for p in range(PARTITIONS)], RECORDS)
    world.told.topics["t"] = (True, made)
    how = (PARTITIONS, SMALL) if made else (None, None)
    try:
        with importing(str(world.root), "t", *how, files=world.files) as (_, stager):
            for (topic, partition), values in parts.items():
                stager.append_batch(topic, partition, values, batch_bytes=200)
            if breaks_off:
                raise InvalidArgumentError("the input breaks off")
    except SegstoreError:
        if not (breaks_off and world.files.hits):  # what can't be undone is told, and has no records
            assert left(world) in (before, (True, [RECORDS] * PARTITIONS))
        raise
    world.told.topics["t"] = (True, False)
    world.ended("import", "there")


def into(made: bool) -> Callable[[World], None]:
    return lambda world: bring(world, made)


def broken_off(world: World) -> None:
    with suppress(InvalidArgumentError):
        bring(world, made=True, breaks_off=True)
    world.told.topics["t"] = (world.files.hits > 0, True)
    world.ended("import", "gone")


SCENARIOS = {
    "makes a store": Scenario(nothing, into(made=True), nothing),
    "makes a store, and breaks off": Scenario(nothing, broken_off, nothing),
    "makes a topic": Scenario(other, into(made=True), nothing),
    "makes a topic, and breaks off": Scenario(other, broken_off, nothing),
    "into a topic": Scenario(topic, into(made=False), nothing),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_power_cuts(tmp_path: Path, rng: random.Random, name: str) -> None:
    run_cuts(Bench(SCENARIOS[name], tmp_path, rng), most=6)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_failing_calls(tmp_path: Path, rng: random.Random, name: str, fault: str) -> None:
    run_faults(Bench(SCENARIOS[name], tmp_path, rng), FAULTS[fault], most=1)
