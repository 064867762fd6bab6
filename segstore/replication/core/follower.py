"""A follower of a partition: it fetches records from the leader, and truncates its log if the log has records
that the leader does not have (Kafka: ReplicaFetcherThread, AbstractFetcherThread; rules R8, R10 to R13, R41).

Each leader epoch has its own `Follower`. One fetch is in flight at a time. The caller calls `fetch`, and
passes the leader's answer to `on_answer`. If the leader's log lacks the fetch offset, the caller calls
`on_out_of_range`, and not `on_answer`. If the log or the leader epoch has changed after `fetch`, the answer
is ignored.
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
    """A follower in one leader epoch. `leader` is -1 if the partition has no leader. Methods return effects,
    which the caller carries out.
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
        """Return whether the answer to a request is still valid: neither the log nor the leader epoch has
        changed after the request was made (R11).
        """
        return request == self.fetch(request.broker_epoch)

    def on_answer(self, request: FetchRequest, answer: FetchAnswer, fetched: FetchedSpan | None) -> Effects:
        """Handle an answer. `fetched` has the offsets and epochs of the answer's batches, None if it has no
        batches (R10, R11).
        """
        if not self.awaits(request):
            return ()
        if answer.diverging is not None:
            return (Truncate(truncation_offset(self.log, answer.diverging)),)
        if fetched is None:
            return self._keep_up(answer)
        # The batches before the first batch with an epoch above this leader epoch are appended (KAFKA-18723).
        later = (base for epoch, base in fetched.epochs if epoch > self.leader_epoch)
        first, before, log = fetched.epochs[0][1], min([fetched.next_offset, *later]), self.log
        # The first batch has a later epoch already: nothing is appended.
        if before <= max(first, request.fetch_offset):
            return ()
        # The first batch may begin below the leader's log start offset. If this log is empty, and begins at
        # that log start offset, it is made to begin at the base offset of the batch (R6; Kafka:
        # UnexpectedAppendOffsetException).
        if first < log.end_offset == log.start_offset:
            return TruncateFullyAndStartAt(first), Append(before)
        return (Append(before),)

    def on_append(self, end_offset: int, answer: FetchAnswer, fetched: FetchedSpan) -> Effects:
        """Record that batches of an answer were appended, and that the log ends at `end_offset` now (R3,
        R13).
        """
        self.log.appended(end_offset, fetched.epochs)
        return self._keep_up(answer)

    def on_nothing(self, request: FetchRequest, answer: FetchAnswer) -> GoOnAt | None:
        """Handle the answer of a leader whose log has no batch at the fetch offset or above, because
        compaction has removed all. Return the effect that moves this log's end offset to the leader's log
        end offset, None if the two are equal or the answer is outdated (R41). In Kafka the follower's log end
        offset does not change.
        """
        if not self.awaits(request) or answer.diverging is not None:
            return None
        # The leader does not truncate its log in its own epoch, and its next batches have that epoch. So the
        # epoch may begin at the leader's log end offset in this log, too. Without the new epoch, the last
        # epoch of this log would reach up to that offset, although it may have ended earlier in the leader's
        # log.
        ahead = answer.end_offset > request.fetch_offset
        return GoOnAt(answer.end_offset, self.leader_epoch) if ahead else None

    def on_gone_on(self, done: GoOnAt, answer: FetchAnswer) -> Effects:
        """Record that this log's end offset was set to the leader's log end offset (R41, R13)."""
        self.log.gone_on(done.offset, done.epoch)
        return self._keep_up(answer)

    def _keep_up(self, answer: FetchAnswer) -> Effects:
        """Set the high watermark and the log start offset to the leader's, but within the offsets of this log
        (R13).
        """
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
        """Handle an OffsetOutOfRangeError of the leader. `leader_start` and `leader_end` are the leader's log
        start and log end offset (R12).
        """
        effect = out_of_range(self.log, leader_start, leader_end) if self.awaits(request) else None
        return () if effect is None else (effect,)
