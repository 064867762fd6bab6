"""Once faults end nothing is lost: from a state one member fetches and accepts all, and the start passes
every offset; each offset that nobody is done with is granted on the way (P5, P8).
"""

from __future__ import annotations

from share_partitions.state import Broken, State
from share_partitions.world import ACCEPT, World, offsets_of

MOST = 60  # rounds, of which each does something


def settle(world: World, s: State) -> State:
    """Return the state in which nothing is left to be done. Raises Broken."""
    s = s.copy()
    asked: set[int] = set()
    for _ in range(MOST):
        if not _round(world, s, asked):
            break
    else:
        raise Broken("P5: fetches go on for ever")
    _check(world, s, asked)
    return s


def _round(world: World, s: State, asked: set[int]) -> bool:
    """Do all that the shell, the clock and one member have to do. Returns whether there was anything."""
    if s.answer is not None:
        world._arrives(s)
    busy = _shell(world, s)
    for member, noted in enumerate(s.noted):
        if noted:
            world.acknowledge(s, member, sorted(noted), ACCEPT)
            return True
    if s.core.start < 0 and not s.flights:
        world._take(s, s.core.begin_at(s.end))
        return True
    if s.end < sum(world.bounds.batches):
        world._append(s)
        return True
    if (deadline := s.core.deadline()) is not None:
        s.now = max(s.now, int(deadline))
        world._take(s, s.core.expire(s.now, world.limits))
        return True
    if not world.can_fetch(s):
        return busy
    before = s.grants.copy()
    world.fetch(s, 0)
    if s.answer is not None:
        world._arrives(s)
    asked |= {at for at, count in enumerate(s.grants) if count != before[at]}
    return True


def _shell(world: World, s: State) -> bool:
    busy = bool(s.flights or s.letters)
    while s.flights:
        world._take(s, world.end(s, 0, True, True))
    for at, (_, appended) in enumerate(s.letters):
        if not appended:
            world.send(s, at)
    while s.letters:
        world._take(s, world.archive(s, 0))
    return busy


def _check(world: World, s: State, asked: set[int]) -> None:
    end = sum(world.bounds.batches)
    if s.core.start != end:
        raise Broken(f"P5: the start comes to {s.core.start}, and stays there")
    for at in range(max(s.first, s.log_start), end):
        if at in asked or s.tried[at] or at in offsets_of(world.bounds.aborted):
            continue
        if s.grants[at] < world.limits.deliveries:
            raise Broken(f"P5: offset {at} is lost")
        if world.limits.dead_letters and not s.sent[at]:
            raise Broken(f"P5: offset {at} was given up, and is no dead letter")
    for at in range(s.log_start, end):
        if world.limits.dead_letters and s.promised[at] == 3 and not s.sent[at]:
            raise Broken(f"P3: offset {at} was rejected, and is no dead letter")
