"""Breadth-first search: all states, or the shortest way to one in which a property does not hold."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from share_partitions.bounds import Bounds
from share_partitions.checks import check_state, check_step
from share_partitions.settle import settle
from share_partitions.state import Broken
from share_partitions.world import World


class Found(NamedTuple):
    """`states` were seen. `fault` is "" if all properties hold; else `trace` has the steps to it."""

    states: int
    fault: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = "".join(f"\n  {at}. {step}" for at, step in enumerate(self.trace, 1))
        return f"{self.states} states: {self.fault or 'all properties hold'}{steps}"


def search(bounds: Bounds) -> Found:
    """Look at all states within bounds. States are told apart by hashes of 64 bits."""
    world = World(bounds)
    first = world.first()
    came: dict[int, tuple[int, str]] = {first.key(): (0, "")}
    queue = deque([(first, first.key())])
    while queue:
        state, number = queue.popleft()
        world.step = "it settles"
        try:
            settle(world, state)
            for step, after in world.next(state):
                key = after.key()
                check_step(state, after)
                if key in came:
                    continue
                check_state(after, bounds)
                came[key] = number, step
                queue.append((after, key))
        except (Broken, AssertionError, LookupError) as broken:
            return Found(len(came), str(broken) or repr(broken), (*_trace(came, number), world.step))
    return Found(len(came))


def _trace(came: dict[int, tuple[int, str]], number: int) -> tuple[str, ...]:
    steps = []
    while number:
        number, step = came[number]
        steps.append(step)
    return tuple(reversed(steps[:-1]))
