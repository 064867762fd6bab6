"""Breadth-first search: all states, or the shortest way to one that is wrong, or that leads to no end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from .appender import Appender
from .bounds import Bounds
from .native import Caller
from .others import others
from .state import State, Tail, Thread, wrong, wrong_at_end


class Found(NamedTuple):
    """`states` were seen. `fault` is "" where all holds; else `trace` has the steps that lead there."""

    states: int
    fault: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = "".join(f"\n  {at}. {step}" for at, step in enumerate(self.trace, 1))
        return f"{self.states} states: {self.fault or 'all holds'}{steps}"


class World:
    """The threads of a space."""

    def __init__(self, bounds: Bounds) -> None:
        there: list[tuple[str, type[Caller]]] = [
            (f"appender {number}", Appender) for number in range(1, bounds.appenders + 1)
        ]
        there += others(bounds)
        self.bounds, self.names = bounds, [name for name, _ in there]
        self.threads = [kind(me, bounds) for me, (_, kind) in enumerate(there, 1)]

    def first(self) -> State:
        threads = (Thread("call"),) * len(self.threads)
        tail = Tail() if self.bounds.is_open else Tail(open=False, paused=True)
        return State(threads, (None,) * len(threads), tail=tail, may_be_open=self.bounds.is_open)

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        for name, thread in zip(self.names, self.threads, strict=True):
            for told, after in thread.next(state):
                yield f"{name} {told}", after

    def is_over(self, state: State) -> bool:
        return all(thread.pc == "done" for thread in state.threads)


def search(bounds: Bounds) -> Found:
    """Look at all states that are within the bounds."""
    world = World(bounds)
    first = world.first()
    came: dict[State, tuple[State, str] | None] = {first: None}
    before: dict[State, list[State]] = {}
    ends, queue = [], deque([first])
    while queue:
        state = queue.popleft()
        fault, stuck = wrong(state), True
        for name, after in () if fault else world.next(state):
            stuck = False
            before.setdefault(after, []).append(state)
            if after not in came:
                came[after] = state, name
                queue.append(after)
        if stuck and not fault:
            fault = wrong_at_end(state) if world.is_over(state) else "nobody can go on"
            ends.append(state)
        if fault:
            return Found(len(came), fault, _trace(came, state))
    for state in came.keys() - _leading_to(ends, before):
        return Found(len(came), "some go round for ever", _trace(came, state))
    return Found(len(came))


def _leading_to(ends: list[State], before: dict[State, list[State]]) -> set[State]:
    """Return all states from which one of the ends is reached."""
    found, left = set(ends), list(ends)
    while left:
        for state in before.get(left.pop(), ()):
            if state not in found:
                found.add(state)
                left.append(state)
    return found


def _trace(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (step := came[state]) is not None:
        state, name = step
        steps.append(name)
    return tuple(reversed(steps))
