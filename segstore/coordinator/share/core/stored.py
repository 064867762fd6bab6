"""The load of a share partition's durable state, with its checks (Kafka: SharePartition.maybeInitialize).

Pure functions.
"""

from __future__ import annotations

from segstore.coordinator.share.core.in_flight import ENDS, InFlight
from segstore.coordinator.share.core.runs import NOWHERE, StateRun
from segstore.coordinator.share.core.values import Durable, OffsetRange, RecordState, StateBatch

DURABLE_STATES = frozenset(RecordState) - {RecordState.ACQUIRED}


class CorruptStateError(ValueError):
    """The durable state of a share partition contradicts itself, and is not loaded (rule Q61)."""


def check(durable: Durable) -> None:
    """Raise CorruptStateError unless batches are disjoint, in order, not below the start, and in durable
    states.
    """
    end = durable.start
    for batch in durable.batches:
        if batch.first < end or batch.last < batch.first or durable.start < 0:
            raise CorruptStateError(
                f"batch {batch.first}-{batch.last} of a share partition's state must begin at {end} "
                f"or above, and end behind its beginning; the start is {durable.start}"
            )
        if batch.state not in DURABLE_STATES or batch.count < 0:
            raise CorruptStateError(
                f"batch {batch.first}-{batch.last} of a share partition's state has state {batch.state} and "
                f"delivery count {batch.count}: allowed are {sorted(DURABLE_STATES)}, and 0 or more"
            )
        end = batch.last + 1


def cut_above(durable: Durable, log_end: int) -> Durable:
    """Return the state without offsets from `log_end` on, the end of a log that has lost records in a crash
    (rule Q48); the same object if there are no such offsets. With these offsets in the state, new records
    that get the same offsets would never be granted.
    """
    if durable.start <= log_end and all(batch.last < log_end for batch in durable.batches):
        return durable
    batches = tuple(
        StateBatch(each.first, min(each.last, log_end - 1), each.state, each.count)
        for each in durable.batches
        if each.first < log_end
    )
    complete = sum(each.last - each.first + 1 for each in batches if each.state in ENDS)
    return durable._replace(start=min(durable.start, log_end), complete=complete, batches=batches)


def loaded(durable: Durable) -> InFlight:
    """Return the offsets in flight of a durable state. Raises CorruptStateError."""
    check(durable)
    flight = InFlight(durable.start)
    for batch in durable.batches:
        state = RecordState(batch.state)
        ends = state in ENDS
        count, piece = (0, NOWHERE) if ends else (batch.count, OffsetRange(batch.first, batch.last))
        flight.add(StateRun(batch.first, batch.last, state, count, piece))
    flight.runs.join(durable.start, flight.next_new)
    flight.advance()
    return flight
