"""Power cuts and failing calls within what a log does: appends, rolls, flushes, index growth, deletion."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from faulty.built import SMALL
from faulty.driver import FAULTS, Bench, Scenario, run_cuts, run_faults
from faulty.world import World
from sent import of_values

from segstore import names
from segstore.index import sparse
from segstore.index.sparse import OffsetIndex, TimeIndex

pytestmark = pytest.mark.kind("faults")


def topic(world: World, **config: object) -> None:
    world.create("t", **config)
    for _ in range(4):
        world.append()
    world.close()


def plain(world: World) -> None:
    topic(world)


def durable(world: World) -> None:
    topic(world, flush_messages=1)


def small(world: World) -> None:
    topic(world, **SMALL)
    world.append(n=25, batch_bytes=200)
    world.close()


def indexed(world: World, count: int) -> None:
    """An entry in both indexes for each record."""
    world.create("t", index_interval_bytes=1)
    values, log = world.values(count), world.store.partition("t")
    world.try_(("t", 0), values)
    for value in values:
        log.append(value)
    world.look("t")
    world.close()


def unflushed(world: World) -> None:
    """Some records are flushed, some are not."""
    world.append(n=3)
    world.flush()
    world.append(n=2)


def append_one(world: World) -> None:
    world.append()


def append_batches(world: World) -> None:
    world.append(n=12, batch_bytes=200)
    world.append(n=3)


def append_singly(world: World) -> None:
    for _ in range(8):
        world.append()
    world.flush()


def append_and_flush(world: World) -> None:
    world.append(n=9, batch_bytes=200)  # rolls
    world.flush()
    world.append()
    world.flush_all()


def append_packed(world: World) -> None:
    world.append(n=20, compression="lz4", batch_bytes=300)


def send_some(world: World) -> None:
    """Batches of an idempotent producer, and others."""
    for seq in range(6):
        world.send(lambda values, seq=seq: of_values(values, seq=2 * seq), n=2)
        world.send(lambda values, seq=seq: of_values(values, codec=seq % 5))


def delete_some(world: World) -> None:
    world.delete_records(9)
    world.append()
    world.delete_records(20)


def retain(world: World) -> None:
    world.store.alter_topic("t", {"retention.bytes": 2000, "file.delete.delay.ms": 0})
    world.retain(29)
    world.append(n=3)


SCENARIOS = {
    "append": Scenario(plain, append_one, unflushed),
    "append, flush.messages=1": Scenario(durable, append_batches),
    "append_batch": Scenario(plain, append_batches, unflushed),
    "append_batch, packed": Scenario(plain, append_packed, unflushed),
    "append_as_leader": Scenario(small, send_some, unflushed),
    "append_as_leader, flush.messages=1": Scenario(durable, send_some),
    "roll": Scenario(small, append_batches, unflushed),
    "flush": Scenario(small, append_and_flush, unflushed),
    "delete_records": Scenario(small, delete_some, unflushed),
    "retention": Scenario(small, retain, unflushed),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_power_cuts(tmp_path: Path, rng: random.Random, name: str) -> None:
    run_cuts(Bench(SCENARIOS[name], tmp_path, rng), most=30)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_failing_calls(tmp_path: Path, rng: random.Random, name: str, fault: str) -> None:
    run_faults(Bench(SCENARIOS[name], tmp_path, rng), FAULTS[fault], most=2)


GROWTH = 4096
"""Bytes by which indexes grow here: the step itself is reached with fewer records."""
GROWING = {name: GROWTH // index.ENTRY.size for name, index in (("time", TimeIndex), ("offset", OffsetIndex))}


@pytest.fixture
def growing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Scenario:
    """The index grows amid the operation."""
    monkeypatch.setattr(sparse, "GROWTH", GROWTH)
    suffix = {"time": names.TIME_INDEX, "offset": names.INDEX}[request.param]

    def grow(world: World) -> None:
        append_singly(world)
        assert (world.root / "t-0" / names.segment_file(0, suffix)).stat().st_size == 2 * GROWTH

    return Scenario(lambda world: indexed(world, GROWING[request.param] - 4), grow)


@pytest.mark.parametrize("growing", GROWING, indirect=True)
def test_power_cuts_while_an_index_grows(tmp_path: Path, rng: random.Random, growing: Scenario) -> None:
    run_cuts(Bench(growing, tmp_path, rng), most=10)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("growing", GROWING, indirect=True)
def test_failing_calls_while_an_index_grows(
    tmp_path: Path, rng: random.Random, growing: Scenario, fault: str
) -> None:
    run_faults(Bench(growing, tmp_path, rng), FAULTS[fault], most=1)
