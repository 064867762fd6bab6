"""The core of two replicas keeps all properties in every state that can be reached; old algorithms don't."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest

from replicas.algorithms import ALGORITHMS, TRACES
from replicas.bounds import Bounds
from replicas.frozen import State, canonical
from replicas.properties import broken
from replicas.search import play, search
from replicas.world import World

pytestmark = pytest.mark.kind("model checks")


@pytest.fixture(autouse=True)
def _no_garbage() -> Iterator[None]:
    """States are tuples, and all stay."""
    gc.disable()
    yield
    gc.enable()


HELD = {
    "lost answers": (Bounds(2, 2, 3, losses=True), 17_196),
    "a restart, lost answers": (Bounds(2, 1, 3, restarts=1, losses=True), 25_202),
    "a restart, lost answers, min.insync.replicas 2": (
        Bounds(2, 1, 2, restarts=1, min_isr=2, losses=True), 8_427),
    "late answers": (Bounds(2, 2, 2, late=1), 16_603),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_all_properties_hold(name: str) -> None:
    """The number of states is told, so that a change of what is looked at is seen."""
    bounds, states = HELD[name]
    found = search(World(bounds))
    print(found)
    assert (found.fault, found.states) == ("", states)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_old_algorithm_is_found_broken(name: str) -> None:
    case = ALGORITHMS[name]
    found = search(case.world(case.bounds, case.partition), case.steps)
    print(found)
    assert found.fault[:2] == case.property
    play(case.world(case.bounds, case.partition), [*case.steps, *found.trace])


@pytest.mark.parametrize("name", TRACES)
def test_a_known_anomaly(name: str) -> None:
    """The steps break the old algorithm. The core takes those of them that it allows, and all is well."""
    algorithm, steps = TRACES[name]
    case = ALGORITHMS[algorithm]
    assert broken(play(case.world(case.bounds, case.partition), steps))
    world = World(case.bounds)
    state, refused = world.first(), 0
    for step in steps:
        after = next((after for each, after in world.next(state) if each.startswith(step)), None)
        refused += after is None
        state = after or state
        assert broken(state) == ""
    assert refused < 3


def test_p9_once_faults_end_all_replicas_are_equal(rng: random.Random) -> None:
    """From states that any faults have led to: nobody dies, all hear of everything, and nothing is lost."""
    states: list[State] = []
    world = World(Bounds(2, 2, 3, losses=True))
    assert search(world, see=states.append).fault == ""
    world.bounds = world.bounds._replace(epochs=9)
    for state in rng.sample(states, 300):
        settled = settle(world, state)
        logs = {key.records for key in settled.replicas}
        assert settled.history[-1].isr == (0, 1), state
        assert len(logs) == 1, state
        assert {key.high_watermark for key in settled.replicas} == {len(*logs)}, state


ENDS = ("unfences", "hears of leader", "judges", "fetches")


def settle(world: World, state: State) -> State:
    """The state in which nothing happens any more, after fewer than 60 steps."""
    for _ in range(60):
        after = next(sound_steps(world, state), None)
        if after is None:
            return state
        state = after
    raise AssertionError(f"replicas don't come to rest: {state}")


def sound_steps(world: World, state: State) -> Iterator[State]:
    """What comes of the steps that are no faults; of the metadata, the latest state is heard of first."""
    names = [name for name, _ in world.steps(state) if not name.endswith("lost")]
    for end in ENDS:
        for name in reversed(names):
            if end in name:
                yield from (after for _, after in world.next(state, (name,)))


def test_states_that_differ_in_names_only_are_one() -> None:
    names = ["{0} hears of leader {0}", "{0} appends record 0", "{1} hears of leader {0}", "{1} fetches"]
    world = World(Bounds(2, 2, 3))
    elected = play(world, ["the controller elects 1"])
    assert canonical(elected) != canonical(world.first())
    one = _named(world, world.first(), [name.format(0, 1) for name in names])
    other = world.first()._replace(history=(world.first().history[0]._replace(leader=1),))
    assert canonical(one) == canonical(_named(world, other, [name.format(1, 0) for name in names]))


def _named(world: World, state: State, names: list[str]) -> State:
    for name in names:
        state = next(after for step, after in world.next(state) if step.startswith(name))
    return state


def test_a_step_that_is_not_possible_is_told() -> None:
    with pytest.raises(LookupError, match="0 appends"):
        play(World(Bounds(2, 1, 1)), ["0 appends"])
