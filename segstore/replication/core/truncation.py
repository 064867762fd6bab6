"""Computes the offset to which a follower's log is truncated: because leader epochs diverge, or because the
fetch offset is outside the leader's log (rules R9, R10, R12).
"""

from __future__ import annotations

from segstore.errors import OffsetOutOfRangeError
from segstore.leader_epochs import EpochEnd
from segstore.replication.core.effects import Truncate, TruncateFullyAndStartAt
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.messages import FetchRequest


def divergence(log: ReplicaLog, request: FetchRequest) -> EpochEnd | None:
    """Return (epoch, end offset of that epoch in the leader's log) if the follower's log diverges, None if it
    does not (R9; Kafka: Partition.readRecords, KIP-595).

    A follower with an empty log sends -1 as its last fetched epoch. Raises OffsetOutOfRangeError if the
    leader does not know the epoch that was sent, if the fetch offset is below the leader's log, or if it is
    above the leader's log and no epoch was sent.
    """
    epoch, offset = request.last_fetched_epoch, request.fetch_offset
    end = log.end_offset_for(epoch) if epoch >= 0 else EpochEnd(epoch, log.end_offset)
    if end.end_offset < 0 or offset < log.start_offset:
        raise OffsetOutOfRangeError(offset, log.start_offset, log.end_offset)
    if end.epoch < epoch or end.end_offset < offset:
        if epoch < 0:
            raise OffsetOutOfRangeError(offset, log.start_offset, log.end_offset)
        return end
    return None


def truncation_offset(log: ReplicaLog, diverging: EpochEnd) -> int:
    """Return the offset to which a follower truncates its log after a divergence (R10; Kafka:
    AbstractFetcherThread.getOffsetTruncationState, KIP-279).

    If the follower does not know the diverging epoch, it truncates to the end of its largest epoch below that
    epoch. The leader compares the logs again at the next fetch.
    """
    mine = log.end_offset_for(diverging.epoch)
    if mine.end_offset < 0:
        return min(diverging.end_offset, log.end_offset)
    if mine.epoch != diverging.epoch:
        return min(mine.end_offset, log.end_offset)
    return min(mine.end_offset, diverging.end_offset, log.end_offset)


def out_of_range(
    log: ReplicaLog, leader_start: int, leader_end: int
) -> Truncate | TruncateFullyAndStartAt | None:
    """Return the truncation that a follower must make because its fetch offset is outside the leader's log
    (R12; Kafka: AbstractFetcherThread.fetchOffsetAndTruncate). None means that the follower truncates
    nothing, and fetches again. The leader's log begins at `leader_start` and ends at `leader_end`.
    """
    if leader_end < log.end_offset:
        return Truncate(leader_end)
    if leader_start > log.end_offset:
        return TruncateFullyAndStartAt(leader_start)
    return None
