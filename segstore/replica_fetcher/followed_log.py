"""`FollowedLog`: one partition's log, which replicates the log of a leader on another machine (Kafka:
ReplicaFetcherThread, AbstractFetcherThread; rules R1, R6, R9 to R13, R41 of docs/replication.md).

On disk the partition's log is changed, through `storage.log.replica`. Threads: any. `lock` ensures that one
thread at a time changes the log. The answer to an outdated request is ignored (rule R11).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from segstore.integers import INT32_MAX
from segstore.leader_epochs import EpochEnd
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.protocol.fetch_bytes import Brought
from segstore.replica_fetcher.fetched_data import FetchedData
from segstore.replica_fetcher.source_answers import check_data
from segstore.replica_fetcher.source_end import SourceEnd
from segstore.replication.core.follower import Follower
from segstore.replication.core.messages import FetchAnswer, FetchRequest
from segstore.replication.fetched import brought
from segstore.replication.follower_log import FollowerLog, log_of
from segstore.wire.metadata import NO_LEADER, LeaderAndEpoch

if TYPE_CHECKING:
    from segstore.storage.log.replica import Replica, Truncated

log = Logger("segstore")


class Key(NamedTuple):
    """The key of a partition. A topic that is deleted and created again gets a new `topic_id`."""

    topic: str
    topic_id: str
    partition: int


class FetchPosition(NamedTuple):
    """Fields of Kafka's FetchPartition in a Fetch request. An epoch of -1 is unknown."""

    offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


class Question(NamedTuple):
    """A fetch in flight: its fetch position, the leader, and the follower's state when the request was
    made.
    """

    position: FetchPosition
    led: LeaderAndEpoch
    follower: Follower
    request: FetchRequest


class FollowedLog:
    """One log that replicates a leader's log. `led` is the leader and the leader epoch. `source` has the
    leader's high watermark in the last answer. `replica_id` is the id of this replica, -1 if it fetches as a
    consumer. `error` is the error of the last fetch, None if there was none.
    """

    def __init__(self, topic: str, topic_id: str, partition: int, replica: Replica, replica_id: int) -> None:
        self.topic, self.topic_id, self.partition, self.replica = topic, topic_id, partition, replica
        self._replica_id = replica_id
        self.lock = Mutex()
        self._log = FollowerLog(replica, on_truncated=self._truncated)
        self.led = LeaderAndEpoch(NO_LEADER, -1)
        self.source = SourceEnd()
        self.on_cut: Callable[[tuple[str, ...]], None] | None = None
        """A function that is called after a truncation, with the paths of copies of the removed segments in
        the quarantine.
        """
        self.on_reached: Callable[[FollowedLog], None] | None = None
        """A function that is called once: when this log's high watermark reaches the high watermark in the
        leader's first fetch answer.
        """
        self.is_compared = False
        """Whether `LogComparison` has found that this log and the leader's log have equal records. No batch
        is appended while it is False.
        """
        self.error: Exception | None = None
        self.not_before = 0.0
        """The earliest time of the next fetch, by the monotonic clock."""

    @property
    def key(self) -> Key:
        """Return the key of the partition."""
        return Key(self.topic, self.topic_id, self.partition)

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def follow(self, led: LeaderAndEpoch) -> None:
        """Set the leader. If the leader epoch of `led` is known and lower than before, ignore `led`: it
        comes from outdated metadata.
        """
        if led.leader_epoch >= self.led.leader_epoch or led.leader_epoch < 0:
            self.is_compared = self.is_compared and led == self.led
            self.led = led

    def lacks(self, end: int) -> bool:
        """Return whether this log may lack records that the leader has below the offset `end`. Raises
        StoreClosedError.
        """
        return not self.is_compared or self.replica.log_end_offset < end

    def delay(self, seconds: float, error: Exception | None) -> None:
        """Set `error`, and delay this log's next fetch by `seconds`."""
        self.error, self.not_before = error, time.monotonic() + seconds

    # --- the fetcher's thread ---------------------------------------------------------------------

    def ask(self) -> Question:
        """Return this log's next fetch (rule R8). Raises StoreClosedError if the topic was removed."""
        with self.lock:
            held, led = log_of(self.replica), self.led
        # If the leader epoch is unknown, batches of any epoch may be appended.
        epoch = led.leader_epoch if led.leader_epoch >= 0 else INT32_MAX
        follower = Follower(self._replica_id, held, led.leader, epoch, 0)
        request = follower.fetch(-1)
        start = held.start_offset if self._replica_id >= 0 else -1
        position = FetchPosition(request.fetch_offset, led.leader_epoch, request.last_fetched_epoch, start)
        return Question(position, led, follower, request)

    def take(self, question: Question, data: FetchedData) -> bool:
        """Handle an answer without an error code: append its batches, or truncate the log. Return whether the
        log has changed.

        Raises UnusableAnswerError and StorageError. Raises CorruptRecordError if batches are damaged, and
        InvalidArgumentError if they begin below this log's end, or their leader epochs fall.
        """
        with self.lock:
            if question.led != self.led or not (self.is_compared or data.diverging):
                return False
            answer = FetchAnswer(data.diverging, data.high_watermark, data.log_start_offset, -1)
            found = brought(data.records) if data.records else None
            check_data(data, None if found is None else found.fetched, repr(self))
            has_changed = self._log.take(question.follower, question.request, answer, found)
            if data.diverging is None:
                self._note_answer(data.high_watermark, self.replica.log_end_offset, len(data.records))
            self.error = None
        return has_changed

    def _note_answer(self, high_watermark: int, end: int, size: int) -> None:
        """Pass the leader's high watermark in an answer, this log's end offset, and the size of the answer's
        records to `source`.
        """
        self.source.note_answer(high_watermark, end, size)
        on_reached = self.on_reached
        if on_reached is not None and self.source.has_reached_target(self.replica.high_watermark):
            self.on_reached = None
            on_reached(self)

    def take_next(self, led: LeaderAndEpoch, brought: Brought) -> bool:
        """Append the batches of an answer, and return True. `take_next` is a fast path of `take`. If only
        `take` can handle the answer, return False: for example, the answer is outdated, its first batch
        begins below the log's end, or a batch does not have the latest leader epoch. Raises StorageError,
        StoreClosedError.
        """
        high_watermark, _, start, records = brought
        with self.lock:
            replica = self.replica
            if led is not self.led or start > replica.start_offset or high_watermark < replica.high_watermark:
                return False
            end = replica.append_next(records, high_watermark)
            if end is None:
                return False
            self._note_answer(high_watermark, end, len(records))
            self.error = None
        return True

    def take_piece(self, led: LeaderAndEpoch, brought: Brought) -> bool:
        """Append the next complete batches of a long answer, and return True. If `led` is not the leader any
        more, or the batches can't be appended, return False. Raises the errors of `take`.
        """
        if self.take_next(led, brought):
            return True
        question = self.ask()
        if question.led is not led:
            return False
        data = FetchedData(0, brought.high_watermark, brought.log_start_offset, None, brought.records)
        return self.take(question, data)

    def go_on(self, question: Question, end_offset: int, data: FetchedData) -> bool:
        """Set the log end offset to `end_offset`, the leader's log end offset, because the leader's log has
        no batch at the fetch offset of `question` or above (rule R41). `data` has the leader's high
        watermark. Return whether the log has changed. Raises StorageError, StoreClosedError.
        """
        answer = FetchAnswer(None, data.high_watermark, data.log_start_offset, end_offset)
        with self.lock:
            if question.led != self.led or self.replica.log_end_offset != question.position.offset:
                return False
            if not self.is_compared:
                return False
            has_changed = self._log.go_on(question.follower, question.request, answer)
            self._note_answer(data.high_watermark, self.replica.log_end_offset, 0)
        return has_changed

    def out_of_range(self, question: Question, start: int, end: int) -> bool:
        """If the fetch offset of `question` is outside the leader's log, truncate this log, or empty it and
        begin it anew (rule R12). `start` and `end` are the leader's log start and log end offset. Return
        whether this log has changed. Raises StorageError, StoreClosedError.
        """
        role = question.follower
        with self.lock:
            if question.led != self.led:
                return False
            if start > (own := self.replica.log_end_offset) > self.replica.start_offset:
                log.warning("%r ends at %d, before the leader's log begins: it begins anew", self, own)
            has_changed = self._log.apply(
                role.log, partial(role.on_out_of_range, question.request, start, end)
            )
            self.is_compared = self.is_compared and not has_changed
        return has_changed

    def compared(self, question: Question) -> None:
        """Record that this log and the log of the leader in `question` have the same records at all offsets
        that both logs have.
        """
        with self.lock:
            if question.led == self.led:
                self.is_compared = question.position.offset == self.replica.log_end_offset

    def cut_unlike(self, question: Question, offset: int) -> None:
        """Truncate this log to `offset`, because the leader in `question` has different records at that
        offset or above. Raises StorageError, StoreClosedError.
        """
        with self.lock:
            if question.led == self.led:
                end = self.replica.log_end_offset
                self._cut(end, self.replica.truncate_to(offset), f"which has others from offset {offset} on")

    def _truncated(self, before: int, cut: Truncated, diverging: EpochEnd | None) -> None:
        why = f"whose epoch {diverging.epoch} ends at {diverging.end_offset}" if diverging else ""
        self._cut(before, cut, why or "which is shorter")

    def _cut(self, before: int, cut: Truncated, why: str) -> None:
        """Called after a truncation. Mark the log for a new comparison, and log a warning with the offsets
        that were removed.
        """
        self.is_compared = False
        if not cut.cut_bytes:
            return
        if cut.kept and self.on_cut is not None:
            self.on_cut(cut.kept)
        kept = f"; a copy is kept in {', '.join(cut.kept)}" if cut.kept else ""
        log.warning(
            "%r: offsets %d to %d are not in the leader's log, %s, and were cut%s",
            self, cut.end_offset, before - 1, why, kept,
        )  # fmt: skip
