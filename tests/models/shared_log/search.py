"""Breadth-first search: all states, or the shortest way to one that is wrong, or that leads to no end."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol


class Found(NamedTuple):
    """`states` were seen. `fault` is "" if all holds; else `trace` has the steps that lead there."""

    states: int
    fault: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = "".join(f"\n  {at}. {step}" for at, step in enumerate(self.trace, 1))
        return f"{self.states} states: {self.fault or 'all holds'}{steps}"


class Searched(Protocol):
    """A world of which all states are looked at."""

    def first(self) -> Any: ...

    def next(self, s: Any, /) -> Iterator[tuple[str, Any]]: ...

    def wrong(self, s: Any, /) -> str: ...

    def wrong_step(self, before: Any, after: Any, /) -> str: ...

    def wrong_at_end(self, s: Any, /) -> str: ...


def search(world: Searched) -> Found:
    """Look at all states of a world."""
    states, came = [world.first()], [("", -1)]
    number = {states[0]: 0}
    froms, tos, ends = array("q"), array("q"), array("q")
    at = 0
    while at < len(states):
        state, stuck = states[at], True
        fault = world.wrong(state)
        for name, after in () if fault else world.next(state):
            stuck = False
            to = number.setdefault(after, len(states))
            if to == len(states):
                states.append(after)
                came.append((name, at))
            froms.append(at)
            tos.append(to)
            if step := world.wrong_step(state, after):
                return Found(len(states), step, (*_trace(came, at), name))
        if stuck and not fault:
            fault = world.wrong_at_end(state)
            ends.append(at)
        if fault:
            return Found(len(states), fault, _trace(came, at))
        at += 1
    endless = _leading_to_no_end(len(states), froms, tos, ends)
    return (
        Found(len(states), "some go round for ever", _trace(came, endless))
        if endless >= 0
        else Found(len(states))
    )


def _leading_to_no_end(states: int, froms: array[int], tos: array[int], ends: array[int]) -> int:
    """Return a state from which no end is reached, -1 if there is none."""
    first, following = array("q", [-1]) * states, array("q", [-1]) * len(tos)
    for edge, to in enumerate(tos):
        following[edge], first[to] = first[to], edge
    reached, left = bytearray(states), list(ends)
    for end in ends:
        reached[end] = 1
    while left:
        edge = first[left.pop()]
        while edge >= 0:
            if not reached[froms[edge]]:
                reached[froms[edge]] = 1
                left.append(froms[edge])
            edge = following[edge]
    return reached.find(0)


def _trace(came: list[tuple[str, int]], at: int) -> tuple[str, ...]:
    steps = []
    while at > 0:
        name, at = came[at]
        steps.append(name)
    return tuple(reversed(steps))
