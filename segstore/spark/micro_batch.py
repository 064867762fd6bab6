"""What a micro-batch is to read of a partition: it compares offsets of the query's checkpoint with the log,
and tells of what was lost.

On disk: only reads. Threads: one, that which plans.
"""

from __future__ import annotations

from segstore.coordinator.structs import TopicPartition
from segstore.replication.observed_log import GONE, Position
from segstore.spark.logs import There
from segstore.spark.offsets import names
from segstore.spark.plan import Lookup, Range


def range_of(
    lookup: Lookup, partition: TopicPartition, start: Position | None, end: Position
) -> tuple[Range, Position | None] | None:
    """Return the offsets to read, and the position of their end where the log has it as the plan said; None
    where the partition is gone. A new partition, without a `start`, is read from its first record.

    Raises DataLossError where records were deleted, or taken back by an election, unless failOnDataLoss is
    false: then what is left is read, and what came in place of what was taken back.
    """
    try:
        there = lookup.logs.there(partition, start, end)
    except GONE as error:
        lookup.lost(f"{names([partition])} is gone: {error}")
        return None
    begin = 0 if start is None else start.offset
    if start is not None and there.start < start.offset:
        _taken_back(lookup, partition, start, there.start)
        begin = there.start if there.start >= 0 else begin
    elif there.end < end.offset:
        _taken_back(lookup, partition, end, there.end)
    else:
        _check_there(lookup, partition, there, begin, end.offset)
    found = Range(partition, max(begin, there.first), min(end.offset, there.last))
    return found, end if found.end == end.offset and there.end == end.offset else None


def _taken_back(lookup: Lookup, partition: TopicPartition, at: Position, agreed: int) -> None:
    since = f"from offset {agreed} on" if agreed >= 0 else "from where is not known"
    lookup.lost(
        f"{names([partition])}: records before offset {at.offset}, leader epoch {at.epoch}, were taken back, "
        f"since a replica was elected that lacks them, or the topic was made anew: the log goes another way "
        f"{since}"
    )


def _check_there(lookup: Lookup, partition: TopicPartition, there: There, start: int, end: int) -> None:
    name, first, last = names([partition]), there.first, there.last
    if end < start:
        lookup.lost(f"{name}: its offset went from {start} back to {end}, as if the topic was made anew")
    elif start < end and (start < first or last < end):
        lookup.lost(f"{name}: offsets {start} to {end} were to be read, and {first} to {last} are there")
