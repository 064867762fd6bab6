"""The properties of grants, of states and of steps."""

from __future__ import annotations

from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.values import AcknowledgeType, AcquireMode, Grant, RecordState
from share_partitions.bounds import Bounds
from share_partitions.state import Broken, State

ENDED = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
FINAL = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)


def check_grant(s: State, before: SharePartition, grant: Grant, bounds: Bounds) -> None:
    """Check a grant in the state before its effects on what lies outside of the core."""
    last = -1
    granted: list[tuple[int, int]] = []
    for first, end, count in grant.acquired:
        if first <= last or end < first or not before.fetch_offset() <= first <= end < s.end:
            raise Broken(f"P12: {grant.acquired} does not rise, or was not read")
        last = end
        granted += [(at, count) for at in range(first, end + 1)]
    for at, count in granted:
        _check_offset(s, at, count, bounds)
    _check_sizes(before, granted, bounds)


def _check_offset(s: State, at: int, count: int, bounds: Bounds) -> None:
    holder = s.holders[at]
    if holder is not None and holder[1] > s.now:
        raise Broken(f"P1: offset {at} is granted, and {holder[0]} holds it")
    if s.promised[at] in FINAL:
        raise Broken(f"P{2 if s.promised[at] == 1 else 3}: offset {at} is granted again")
    grants = s.grants[at] + 1
    if not grants - s.faults <= count <= grants or grants > bounds.deliveries + s.faults:
        raise Broken(f"P4: offset {at} is granted for the {grants}. time, with count {count}")
    if count > bounds.deliveries:
        raise Broken(f"P4: offset {at} is granted with count {count}")
    if any(first <= at <= last for first, last in bounds.aborted):
        raise Broken(f"Q44: offset {at} of an aborted transaction is granted")
    if at < s.log_start:
        raise Broken(f"Q41: offset {at} below the log's start is granted")


def _check_sizes(before: SharePartition, granted: list[tuple[int, int]], bounds: Bounds) -> None:
    if bounds.mode == AcquireMode.RECORD_LIMIT and len(granted) > bounds.want:
        raise Broken(f"Q19: {len(granted)} offsets are granted")
    new = [at for at, _ in granted if at >= before.next_new]
    room = bounds.window - before.window
    begun = {each.base for each in bounds.log if any(each.base <= at <= each.last for at in new)}
    if new and (room <= 0 or any(base - before.start >= bounds.window for base in begun)):
        raise Broken(f"Q26: {new} are granted, and the window is full")
    limit = bounds.deliveries
    if limit > 2 and len(granted) > 1 and any(count == limit for _, count in granted):
        raise Broken(f"Q24: {granted} are granted together, of which one is on its last delivery")


def check_state(s: State, bounds: Bounds) -> None:
    """Check the core against itself, and against what is durable."""
    core = s.core
    expected, locked, done = core.start, [], 0
    for run in core.runs():
        if run.first < expected or run.last < run.first:
            raise Broken("runs overlap, or lie below the start")
        expected = run.last + 1
        if run.state is RecordState.ACQUIRED and not run.write:
            assert run.lock is not None
            locked.append(run.lock.until)
        if (run.target if run.write else run.state) in ENDED:
            done += run.last - run.first + 1
    if core.runs() and core.next_new != expected:
        raise Broken("the last run does not end the window")
    if core.deadline() != min(locked, default=None):
        raise Broken(f"Q37: locks end at {sorted(locked)}, and {core.deadline()} is waited for")
    if core.complete != done:
        raise Broken(f"P10: {done} are done with from the start on, not {core.complete}")
    if s.durable_start > core.start >= 0:
        raise Broken("P6: the durable start is above that in memory")
    lowest = core.runs()[0] if core.runs() else None
    if lowest and lowest.first == core.start and lowest.state in ENDED and not lowest.write:
        raise Broken("Q15: the start could move")
    for at, holder in enumerate(s.holders):
        if holder and holder[1] > s.now and s.log_start <= at < core.start:
            raise Broken(f"Q15: the start is {core.start}, and {holder[0]} holds {at}")
    for at, sent in enumerate(s.sent):
        if sent > 1 + s.faults:
            raise Broken(f"P3: offset {at} has {sent} dead letters")


def check_step(before: State, after: State) -> None:
    """Check what may not change at a step."""
    crashed = after.used.get("crash", 0) - before.used.get("crash", 0)
    if not crashed and 0 <= after.core.start < before.core.start:
        raise Broken("P6: the start went down")
    if after.durable_start < before.durable_start:
        raise Broken("P6: the durable start went down")
