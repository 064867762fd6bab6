"""Power cuts and failing calls within transactions and staged appends, which are there completely or not at
all.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from faulty.driver import FAULTS, Bench, Scenario, run_cuts, run_faults
from faulty.world import World

from segstore import Producer
from segstore.storage.staging import Stager, seal

pytestmark = pytest.mark.kind("faults")

PLACES = [("t", 0), ("t", 1), ("u", 0)]
DURABLE = {"flush_messages": 1, "segment_bytes": 2000, "index_interval_bytes": 150}


def build(world: World) -> None:
    make(world, DURABLE)
    transact(world, "first")


def make(world: World, settings: dict[str, int]) -> None:
    for topic, partitions in (("t", 2), ("u", 1)):
        world.create(topic, partitions, **settings)
    world.append(n=3)


def open_joining(world: World) -> None:
    world.config = {"inbox.segment.bytes": 500}
    assert world.store


def build_joining(world: World) -> None:
    """Topics that sync no append, in a store that joins what is staged to segments of some 1,000 bytes."""
    open_joining(world)
    make(world, {"segment_bytes": 1000, "index_interval_bytes": 150})


def transact(world: World, name: str, commit: bool = True) -> None:
    parts = world.begin(name, PLACES)
    producer = Producer(world.store, transactional_id="x", max_block_ms=300)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for (topic, partition), values in parts.items():
            for value in values:
                producer.send(topic, value, partition=partition)
        producer.flush()
        producer.commit_transaction() if commit else producer.abort_transaction()
        world.ended(name, "there" if commit else "gone")
    finally:
        producer.close(0)


def commit(world: World) -> None:
    transact(world, "a")
    transact(world, "b")


def abort(world: World) -> None:
    transact(world, "a", commit=False)
    transact(world, "b")


def stage(world: World, name: str, n: int, stagers: int = 1) -> None:
    parts = world.begin(name, PLACES, n)
    messages = []
    for first in range(0, n, n // stagers):
        with Stager(world.root, files=world.files) as stager:
            for (topic, partition), values in parts.items():
                some = values[first : first + n // stagers]
                stager.append_batch(topic, partition, some, batch_bytes=200)
            messages.append(stager.finish())
    seal(world.root, name, messages, files=world.files)
    world.ended(name, "there")


def staged(world: World) -> None:
    """Adopted by the store that is open."""
    stage(world, "a", 5)
    world.append()


def staged_segments(world: World) -> None:
    """Files that become segments: nobody has the store open, and the sealer does."""
    world.close()
    stage(world, "a", 40)
    world.append()


def joined(world: World) -> None:
    """Small files, which are joined to segments; those are synced when two partitions have gone on."""
    unsynced = world.store.engine.inbox._unsynced
    settle, unsynced.settle = unsynced.settle, lambda: None
    stage(world, "a", 16, stagers=4)
    world.append()
    world.append("u")
    world.flush("u")
    unsynced.settle = settle
    world.store.engine.inbox.settle()
    world.append()


SCENARIOS = {
    "commit": Scenario(build, commit),
    "abort": Scenario(build, abort),
    "staged": Scenario(build, staged),
    "staged, closed": Scenario(build, staged_segments),
    "staged, joined": Scenario(build_joining, joined, open_joining),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_power_cuts(tmp_path: Path, rng: random.Random, name: str) -> None:
    run_cuts(Bench(SCENARIOS[name], tmp_path, rng), most=12)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_failing_calls(tmp_path: Path, rng: random.Random, name: str, fault: str) -> None:
    run_faults(Bench(SCENARIOS[name], tmp_path, rng), FAULTS[fault], most=1)
