"""Durable states of share partitions under kills, power cuts and failing calls: each is there whole or not,
and pruning loses none.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from faulty.driver import FAULTS, Bench, Scenario, run_cuts, run_faults
from faulty.world import HOUR, World
from share_states import folded, held, key_of, opened, states_of
from stores import killed_at_each_call

import segstore
from segstore.coordinator.share.core.values import StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_log import StateLog, Update
from segstore.coordinator.shared import shared
from segstore.files import Files

pytestmark = pytest.mark.kind("faults")

B = StateBatch

# --- power cuts, failing calls -----------------------------------------------------------------------------


def begin(world: World, group: str, epoch: int = 1) -> None:
    world.change_state(group, lambda log, key: log.initialise({key: (epoch, 0)}), (epoch, 0, 0, ()))


def accept(world: World, group: str, first: int, last: int, epoch: int = 1) -> None:
    """Acknowledge offsets up to `last`; `first` is the first of them that was not before."""
    batch = B(first, last, 2, 1)

    def change(log: StateLog, key: ShareKey) -> None:
        error = log.write({key: Update(epoch, 0, 0, last + 1, (batch,))})[key]
        if error is not None:
            raise error

    world.change_state(group, change, (epoch, 0, last + 1, (B(0, last, 2, 1),)))


def delete(world: World, group: str) -> None:
    world.change_state(group, lambda log, key: log.delete([key]), None)


def build(world: World) -> None:
    world.create("t")
    begin(world, "idle")
    begin(world, "busy")
    accept(world, "busy", 0, 0)


def build_topic(world: World) -> None:
    world.create("t")


def first(world: World) -> None:
    """The topic is made."""
    begin(world, "busy")
    accept(world, "busy", 0, 3)


def write(world: World) -> None:
    for n in range(1, 6):
        accept(world, "busy", n, n)


def prune(world: World) -> None:
    for n in range(1, 9):
        accept(world, "busy", n, n)
        if n % 3 == 0:
            world.clock.now += 2 * HOUR
            shared(world.store, StateLog).snapshot_cold()
            world.prune_states()
    delete(world, "idle")
    world.prune_states()
    accept(world, "busy", 9, 9)


def anew(world: World) -> None:
    begin(world, "busy", 2)
    accept(world, "busy", 0, 2, 2)
    delete(world, "busy")
    world.prune_states()
    begin(world, "busy", 1)
    accept(world, "busy", 0, 5)
    delete(world, "idle")


def small(world: World) -> None:
    """Each record begins a segment, so that pruning removes files."""
    world.config = {"share.coordinator.state.topic.segment.bytes": 200}
    assert world.store


def build_small(world: World) -> None:
    small(world)
    build(world)


SCENARIOS = {
    "the first": Scenario(build_topic, first),
    "writes": Scenario(build, write),
    "prune": Scenario(build, prune),
    "prune segments": Scenario(build_small, prune, small),
    "anew": Scenario(build, anew),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_power_cuts(tmp_path: Path, rng: random.Random, name: str) -> None:
    run_cuts(Bench(SCENARIOS[name], tmp_path, rng), most=12)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_failing_calls(tmp_path: Path, rng: random.Random, name: str, fault: str) -> None:
    run_faults(Bench(SCENARIOS[name], tmp_path, rng), FAULTS[fault], most=1)


# --- kills -------------------------------------------------------------------------------------------------

ACKNOWLEDGED = "acknowledged"


def write_many(files: Files, path: Path) -> None:
    """Write one state after the other, and note how many there are."""
    nth = files._skip + 1  # type: ignore[attr-defined]
    files.arm(0)  # type: ignore[attr-defined]
    with opened(path, files=files, snapshot_update_records_per_snapshot=2) as store:
        states, key = states_of(store), key_of(store)
        files.arm(nth)  # type: ignore[attr-defined]
        states.initialise({key: (1, 0)})
        for n in range(8):
            assert states.write({key: Update(1, 0, 0, n + 1, (B(n, n, 2, 1),))}) == {key: None}
            (path.parent / ACKNOWLEDGED).write_text(str(n + 1))
            if n % 3 == 2:
                states.prune()
        files.arm(0)  # type: ignore[attr-defined]


def test_killed_at_any_call_what_was_acknowledged_stays(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as store:
        store.partition("t").append_batch([b"x"] * 20)  # states above the end of a log are cut (Q48)
    seen = set()
    for _, path in killed_at_each_call(tmp_path / "state", tmp_path, write_many):
        said = tmp_path / ACKNOWLEDGED
        least = int(said.read_text()) if said.exists() else 0
        said.unlink(missing_ok=True)
        with opened(path, snapshot_update_records_per_snapshot=2) as store:
            states, key = states_of(store), key_of(store)
            state = states.read(key)
            known = 0 if state is None else state.complete
            assert least <= known <= least + 1
            seen.add(known)
            states.initialise({key: (2, known)})
            states.write({key: Update(2, 0, known, 1, (B(known, known, 2, 1),))})
            assert folded(store, [key]) == held(store, [key])
        assert list(segstore.check(path)) == []
    assert seen == set(range(9))
