"""Where a follower's log has to be cut: by diverging epochs, and where it is out of the leader's range (rules
R9, R10, R12).
"""

from __future__ import annotations

from segstore.errors import OffsetOutOfRangeError
from segstore.leader_epochs import EpochEnd
from segstore.replication.core.effects import Truncate, TruncateFullyAndStartAt
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.messages import FetchRequest


def divergence(log: ReplicaLog, request: FetchRequest) -> EpochEnd | None:
    """Return where the follower's log leaves the leader's, None where it does not (R9; Kafka:
    Partition.readRecords, KIP-595).

    A follower with an empty log sends no epoch. Raises OffsetOutOfRangeError where the leader knows nothing
    of the epoch, or the fetch offset is outside the leader's log.
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
    """Return where a follower cuts its log when told of a divergence (R10; Kafka:
    AbstractFetcherThread.getOffsetTruncationState, KIP-279).

    Where the follower does not know the leader's epoch, it cuts to the end of the largest epoch below, and
    its next fetch asks again.
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
    """Return what a follower does whose fetch offset the leader does not have: given the leader's log start
    and log end offsets (R12; Kafka: AbstractFetcherThread.fetchOffsetAndTruncate). None: fetch again.
    """
    if leader_end < log.end_offset:
        return Truncate(leader_end)
    if leader_start > log.end_offset:
        return TruncateFullyAndStartAt(leader_start)
    return None
