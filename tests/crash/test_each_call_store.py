"""Power cuts and failing calls within what a store does: topics, compaction, groups, closing, opening."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from faulty.built import SMALL, two_topics
from faulty.driver import FAULTS, Bench, Scenario, run_cuts, run_faults
from faulty.world import World

pytestmark = pytest.mark.kind("faults")

COMPACTED = {**SMALL, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, "file_delete_delay_ms": 0}


def unflushed(world: World) -> None:
    world.append(n=12, batch_bytes=200)


def create(world: World) -> None:
    world.create("new", 3)
    world.append("new", partition=2)


def alter(world: World) -> None:
    world.store.alter_topic("t", {"flush.messages": 1, "segment.bytes": 500})
    world.append(n=3)
    world.store.add_partitions("t", 3)
    world.append(partition=2)


def delete(world: World) -> None:
    world.append("other", 2)
    world.delete("other")
    world.append()


def delete_and_create(world: World) -> None:
    world.delete("other")
    for place in (("other", 0), ("other", 1)):
        world.forget(place)
    world.create("other", 1)
    world.append("other", 2)


def keyed(world: World) -> None:
    world.create("t", **COMPACTED)
    for _ in range(6):
        world.append(n=6, keys=[b"k%d" % i for i in range(6)], batch_bytes=200)
    world.flush_all()


def compact(world: World) -> None:
    world.sweep()
    world.append(n=6, keys=[b"k%d" % i for i in range(6)], batch_bytes=200)
    world.flush()
    world.sweep()


def commits(world: World) -> None:
    two_topics(world)
    world.commit(1)


def commit(world: World) -> None:
    world.commit(2)
    world.flush_all()
    world.commit(3)


def first_commit(world: World) -> None:
    world.commit(2)
    world.flush_all()


def close(world: World) -> None:
    world.close()


def open_and_close(world: World) -> None:
    world.append(n=2)
    world.close()
    world.append(n=2)


SCENARIOS = {
    "create a topic": Scenario(two_topics, create, unflushed),
    "alter a topic": Scenario(two_topics, alter, unflushed),
    "delete a topic": Scenario(two_topics, delete, unflushed),
    "delete and create": Scenario(two_topics, delete_and_create, unflushed),
    "compact": Scenario(keyed, compact),
    "commit offsets": Scenario(commits, commit),
    "commit the first": Scenario(two_topics, first_commit),
    "close": Scenario(two_topics, close, unflushed),
    "close and open": Scenario(two_topics, open_and_close, unflushed),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_power_cuts(tmp_path: Path, rng: random.Random, name: str) -> None:
    run_cuts(Bench(SCENARIOS[name], tmp_path, rng), most=20)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_failing_calls(tmp_path: Path, rng: random.Random, name: str, fault: str) -> None:
    run_faults(Bench(SCENARIOS[name], tmp_path, rng), FAULTS[fault], most=1)
