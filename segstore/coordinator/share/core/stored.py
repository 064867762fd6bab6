"""The load of a share partition's durable state, with its checks (Kafka: SharePartition.maybeInitialize).

Pure functions.
"""

from __future__ import annotations

from segstore.coordinator.share.core.in_flight import ENDS, InFlight
from segstore.coordinator.share.core.runs import NOWHERE, StateRun
from segstore.coordinator.share.core.values import Durable, OffsetRange, RecordState, StateBatch

DURABLE_STATES = frozenset(RecordState) - {RecordState.ACQUIRED}


class CorruptStateError(ValueError):
    """The durable state of a share partition contradicts itself, and can't be loaded (rule Q61)."""


def check(durable: Durable) -> None:
    """Raise CorruptStateError unless the batches are disjoint, ordered by offset and not below the start, and
    have durable record states and delivery counts of 0 or more.
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
    """Return the state without the offsets from `log_end` on; `durable` itself if it has no such offsets.
    `log_end` is the end of a log that may have lost records in a crash (rule Q48). If the offsets of lost
    records stayed in the state, new records that get the same offsets would never be granted.
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
    """Return the `InFlight` object for a durable state. Raises CorruptStateError."""
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
