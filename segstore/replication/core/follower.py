"""A follower of a partition: it fetches from the leader, and truncates records that the leader does not have
(Kafka: ReplicaFetcherThread, AbstractFetcherThread; rules R8, R10 to R13, R41).

A `Follower` stands for one leader epoch. One fetch is under way at a time. The order of calls is `fetch`,
then `on_answer`, or `on_out_of_range` if the leader's log lacks the fetch offset. If the log or the leader
epoch has changed since `fetch`, the answer changes nothing.
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
    """A follower in one leader epoch; `leader` is -1 if there is none to fetch from."""

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
        """Return whether the answer to a request may still be used: neither the log nor the leader epoch has
        changed since (R11).
        """
        return request == self.fetch(request.broker_epoch)

    def on_answer(self, request: FetchRequest, answer: FetchAnswer, fetched: FetchedSpan | None) -> Effects:
        """Handle an answer, and the span of its records, if it has any (R10, R11).

        No record is appended from the first one on whose epoch is above this leader epoch (KAFKA-18723).
        """
        if not self.awaits(request):
            return ()
        if answer.diverging is not None:
            return (Truncate(truncation_offset(self.log, answer.diverging)),)
        if fetched is None:
            return self._keep_up(answer)
        later = (base for epoch, base in fetched.epochs if epoch > self.leader_epoch)
        first, before, log = fetched.epochs[0][1], min([fetched.next_offset, *later]), self.log
        if before <= request.fetch_offset:
            return ()
        # The leader's log starts within its first batch: only an empty log can begin with that batch (R6;
        # Kafka: UnexpectedAppendOffsetException).
        if first < log.end_offset == log.start_offset:
            return TruncateFullyAndStartAt(first), Append(before)
        return (Append(before),)

    def on_append(self, end_offset: int, answer: FetchAnswer, fetched: FetchedSpan) -> Effects:
        """Note that the records of an answer were appended, up to `end_offset` (R3, R13)."""
        self.log.appended(end_offset, fetched.epochs)
        return self._keep_up(answer)

    def on_nothing(self, request: FetchRequest, answer: FetchAnswer) -> GoOnAt | None:
        """Handle a leader whose log has no batch between the fetch offset and its end (all were compacted):
        move this log's end there, None if the leader's log ends at the fetch offset (R41; Kafka's followers
        keep their end).

        Under its leader epoch the leader has cut nothing since, and appends there under that epoch. So the
        epoch begins there in this log: the last epoch of this log may end below in the leader's.
        """
        if not self.awaits(request) or answer.diverging is not None:
            return None
        ahead = answer.end_offset > request.fetch_offset
        return GoOnAt(answer.end_offset, self.leader_epoch) if ahead else None

    def on_gone_on(self, done: GoOnAt, answer: FetchAnswer) -> Effects:
        """Note that the log ends at the end of the leader's log (R41, R13)."""
        self.log.gone_on(done.offset, done.epoch)
        return self._keep_up(answer)

    def _keep_up(self, answer: FetchAnswer) -> Effects:
        """Follow the leader's high watermark, which may go back, and then its log start offset (R13)."""
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
        """Handle the leader's log start and log end offsets, asked for under this leader epoch (R12)."""
        effect = out_of_range(self.log, leader_start, leader_end) if self.awaits(request) else None
        return () if effect is None else (effect,)
