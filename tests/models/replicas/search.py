"""Breadth-first search: all states, or the shortest way to one in which a property does not hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from replicas.frozen import State, canonical
from replicas.properties import broken, went_back
from replicas.world import World


class Found(NamedTuple):
    """`states` were seen. `fault` is "" where all properties hold; else `trace` has the steps that lead
    there.
    """

    states: int
    fault: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = "".join(f"\n  {at}. {step}" for at, step in enumerate(self.trace, 1))
        return f"{self.states} states: {self.fault or 'all properties hold'}{steps}"


def play(world: World, steps: Iterable[str]) -> State:
    """The state after steps that are given by the beginnings of their names. Raises LookupError where one is
    not possible.
    """
    state = world.first()
    for step in steps:
        found = next((after for name, after in world.next(state) if name.startswith(step)), None)
        if found is None:
            raise LookupError(f"{step!r} is none of {[name for name, _ in world.next(state)]}")
        state = found
    return state


def search(world: World, steps: Iterable[str] = (), see: Callable[[State], object] = id) -> Found:
    """Look at all states that come after `steps` and are within the bounds of `world`; `see` gets each."""
    first = play(world, steps)
    seen, exactly = {canonical(first)}, {first}
    came: dict[State, tuple[State, str]] = {}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        for name, after in world.next(state):
            fault = went_back(state, after)
            if not fault and after in exactly:
                continue
            exactly.add(after)
            key = canonical(after)
            if not fault and key in seen:
                continue
            fault = fault or broken(after)
            if fault:
                return Found(len(seen), fault, (*_trace(came, state), name))
            seen.add(key)
            came[after] = state, name
            see(after)
            queue.append(after)
        if len(seen) > world.bounds.states:
            raise AssertionError(f"more than {world.bounds.states} states")
    return Found(len(seen))


def _trace(came: dict[State, tuple[State, str]], state: State) -> tuple[str, ...]:
    steps = []
    while state in came:
        state, name = came[state]
        steps.append(name)
    return tuple(reversed(steps))
