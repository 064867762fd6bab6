"""`range_of`: finds the offsets of a partition that a micro-batch reads. It compares the offsets in the
query's checkpoint with the log, and reports data loss.

On disk: only reads. Threads: one, the planner's.
"""

from __future__ import annotations

from segstore.coordinator.structs import TopicPartition
from segstore.replication.observed_log import GONE, OffsetAndEpoch
from segstore.spark.logs import There
from segstore.spark.offsets import names
from segstore.spark.plan import Lookup, PlannedRange, divergence_text


def range_of(
    lookup: Lookup, partition: TopicPartition, start: OffsetAndEpoch | None, end: OffsetAndEpoch
) -> tuple[PlannedRange, OffsetAndEpoch | None] | None:
    """Return (offsets to read, position of their end); None if the partition was deleted. The position is
    None if the log does not have the planned end. If `start` is None, the partition is new, and is read from
    its first record.

    Raises DataLossError if records were deleted, or were lost in an election or by a restore of an older
    copy. If failOnDataLoss is false, a warning is logged instead, and the query continues at the first offset
    at which the log differs from the plan.
    """
    try:
        there = lookup.logs.there(partition, start, end)
    except GONE as error:
        lookup.lost(f"{names([partition])} is gone: {error}")
        return None
    begin = 0 if start is None else start.offset
    if start is not None and there.start < start.offset:
        lookup.lost(divergence_text(partition, start, there.start))
        begin = there.start if there.start >= 0 else begin
    elif there.end < end.offset:
        lookup.lost(divergence_text(partition, end, there.end))
    else:
        _check_there(lookup, partition, there, begin, end.offset)
    # If the log differs from the plan at an offset below the planned end, this micro-batch ends at the first
    # such offset, and the next micro-batch begins there. So no record is read twice.
    stop = max(begin, there.end) if 0 <= there.end < end.offset else end.offset
    found = PlannedRange(partition, max(begin, there.first), min(stop, there.last))
    return found, end if found.end == end.offset and there.end == end.offset else None


def _check_there(lookup: Lookup, partition: TopicPartition, there: There, start: int, end: int) -> None:
    name, first, last = names([partition]), there.first, there.last
    if end < start:
        lookup.lost(f"{name}: its offset went from {start} back to {end}, as if the topic was made anew")
    elif start < end and (start < first or last < end):
        lookup.lost(f"{name}: offsets {start} to {end} were to be read, and {first} to {last} are there")
