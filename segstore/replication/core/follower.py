"""A follower of a partition: it fetches from the leader, and truncates records that the leader does not have
(Kafka: ReplicaFetcherThread, AbstractFetcherThread; rules R8, R10 to R13, R41).

Each leader epoch has its own `Follower`. One fetch is under way at a time. The order of calls is `fetch`,
then `on_answer`, or `on_out_of_range` if the leader's log lacks the fetch offset. If the log or the leader
epoch has changed since `fetch`, the answer is ignored.
"""

from __future__ import annotations

from segstore.replication.core.effects import (
    Append,
    Effects,
    GoOnAt,
    SetHighWatermark,
    SetLogStartOffset,
    Truncate,
    TruncateFullyAndStartAt,
)
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.messages import FetchAnswer, FetchedSpan, FetchRequest
from segstore.replication.core.truncation import out_of_range, truncation_offset


class Follower:
    """A follower in one leader epoch; `leader` is -1 without a leader. Methods return the effects of a
    change, for the caller to carry out.
    """

    __slots__ = ("leader", "leader_epoch", "log", "partition_epoch", "replica_id")

    def __init__(
        self, replica_id: int, log: ReplicaLog, leader: int, leader_epoch: int, partition_epoch: int
    ) -> None:
        self.replica_id, self.log, self.leader = replica_id, log, leader
        self.leader_epoch, self.partition_epoch = leader_epoch, partition_epoch

    def copy(self, log: ReplicaLog) -> Follower:
        """Return a copy that uses another log."""
        return type(self)(self.replica_id, log, self.leader, self.leader_epoch, self.partition_epoch)

    def fetch(self, broker_epoch: int) -> FetchRequest:
        """Return the request to send to the leader (R8)."""
        log = self.log
        return FetchRequest(
            self.replica_id,
            broker_epoch,
            self.leader_epoch,
            log.end_offset,
            log.epochs.current,
            log.start_offset,
        )

    def awaits(self, request: FetchRequest) -> bool:
        """Return whether the answer to a request is still valid: neither the log nor the leader epoch may
        have changed since the request (R11).
        """
        return request == self.fetch(request.broker_epoch)

    def on_answer(self, request: FetchRequest, answer: FetchAnswer, fetched: FetchedSpan | None) -> Effects:
        """Handle an answer; `fetched` is the span of its batches, None without batches (R10, R11)."""
        if not self.awaits(request):
            return ()
        if answer.diverging is not None:
            return (Truncate(truncation_offset(self.log, answer.diverging)),)
        if fetched is None:
            return self._keep_up(answer)
        # Batches are appended up to the first one with an epoch above this leader epoch (KAFKA-18723).
        later = (base for epoch, base in fetched.epochs if epoch > self.leader_epoch)
        first, before, log = fetched.epochs[0][1], min([fetched.next_offset, *later]), self.log
        if before <= max(first, request.fetch_offset):  # every batch is of a later epoch
            return ()
        # The first batch may begin below the leader's log start, where an empty log begins. This log then
        # starts over at the base offset of the batch (R6; Kafka: UnexpectedAppendOffsetException).
        if first < log.end_offset == log.start_offset:
            return TruncateFullyAndStartAt(first), Append(before)
        return (Append(before),)

    def on_append(self, end_offset: int, answer: FetchAnswer, fetched: FetchedSpan) -> Effects:
        """Note that batches of an answer were appended, up to `end_offset` (R3, R13)."""
        self.log.appended(end_offset, fetched.epochs)
        return self._keep_up(answer)

    def on_nothing(self, request: FetchRequest, answer: FetchAnswer) -> GoOnAt | None:
        """Handle the answer of a leader whose log has no batch from the fetch offset on, because compaction
        has removed all batches there. Return the effect that moves this log's end offset to the leader's,
        None if both ends are equal or the answer is outdated (R41). In Kafka a follower keeps its log end
        offset.
        """
        if not self.awaits(request) or answer.diverging is not None:
            return None
        # The leader does not truncate in its own epoch, and its next batches, from its log end offset on,
        # have that epoch. So the epoch may begin at that offset in this log, too. Without the new epoch, this
        # log's last epoch would seem to go on, although it may have ended earlier in the leader's log.
        ahead = answer.end_offset > request.fetch_offset
        return GoOnAt(answer.end_offset, self.leader_epoch) if ahead else None

    def on_gone_on(self, done: GoOnAt, answer: FetchAnswer) -> Effects:
        """Note that this log's end was moved to the end of the leader's log (R41, R13)."""
        self.log.gone_on(done.offset, done.epoch)
        return self._keep_up(answer)

    def _keep_up(self, answer: FetchAnswer) -> Effects:
        """Set the high watermark and the log start offset to the leader's, within this log (R13)."""
        log = self.log
        high_watermark = max(min(answer.high_watermark, log.end_offset), log.start_offset)
        start_offset = max(min(answer.log_start_offset, high_watermark), log.start_offset)
        effects: Effects = ()
        if high_watermark != log.high_watermark:
            effects = (SetHighWatermark(high_watermark),)
        if start_offset != log.start_offset:
            effects += (SetLogStartOffset(start_offset),)
            log.epochs.truncate_from_start(start_offset)
        log.high_watermark, log.start_offset = high_watermark, start_offset
        return effects

    def on_out_of_range(self, request: FetchRequest, leader_start: int, leader_end: int) -> Effects:
        """Handle the log start and log end offset of the leader, if its log lacks the fetch offset (R12)."""
        effect = out_of_range(self.log, leader_start, leader_end) if self.awaits(request) else None
        return () if effect is None else (effect,)
