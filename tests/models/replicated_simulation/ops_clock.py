"""Steps of the wall clock, which is set forwards and backwards while applications are at work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from replicated_stores import all_in_sync
from simulation.model import hold

from segstore.errors import SegstoreError

from .ops_records import append
from .world import World

FARTHEST_MS = 6 * 3_600_000
"""The clock is never farther off: after a day producers, after a week ids and offsets may be forgotten."""
SETTLING = 0.5
"""Seconds in which what a jump has done would be seen: two heartbeats, and longer than a replica may lag."""


def jump(world: World, topic: str, number: int, tag: int, ms: int) -> str:
    """The clock is set in the middle of an append. Sessions, lags and time-outs of replicas go by another
    clock: where nothing else disturbs them the append is acknowledged, and nobody is fenced, leaves an ISR or
    loses a lead.
    """
    world.part(topic, number)
    before = _undisturbed(world)
    if before is not None:
        world.turns.wait(lambda: False, SETTLING)
        before = before if _undisturbed(world) == before else None
    ms = -ms if abs(world.drift + ms) > FARTHEST_MS else ms

    def set_clock() -> None:
        world.turns.wait(lambda: False, world.rng.choice([0.0, 0.001, 0.005]))
        world.clock.now += ms
        world.drift += ms

    world.turns.start(set_clock, "clock")
    if before is None:
        with suppress(SegstoreError):
            append(world, topic, number, tag, 2, "all")
        world.turns.wait(lambda: False, 0.01)
        return f"by {ms}"
    try:
        append(world, topic, number, tag, 2, "all")
    except SegstoreError as error:
        hold(False, "the wall clock is set by", ms, "and an append fails:", repr(error))
    world.turns.wait(lambda: False, SETTLING)
    # A coordinator may have appended just now, and the followers not have it yet.
    world.turns.wait(lambda: _undisturbed(world) is not None, SETTLING)
    after = _undisturbed(world)
    hold(after == before, "the wall clock is set by", ms, "and replicas go from", before, "to", after)
    return f"by {ms}, seen"


def _undisturbed(world: World) -> Any:
    """Which incarnations are active, leaders and ISRs; None while something else may change them."""
    files, store = world.files, world.live
    disturbed = files.planned or files.broken or files.dead or world.turns.paused or world.away
    if disturbed or world.missing() or not all_in_sync(store) or store.reassignments():
        return None
    manager = store.replicated.manager
    active = {broker: (it.epoch, it.fenced) for broker, it in manager.brokers.items()}
    return files.failures, active, {str(key): (it.leader, it.isr) for key, it in manager.partitions.items()}


OPS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (jump,)}
