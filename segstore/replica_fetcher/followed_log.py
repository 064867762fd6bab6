"""`FollowedLog`: one partition's log, which follows that of a leader on another machine: what the core
decides, carried out on the engine's log (Kafka: ReplicaFetcherThread, AbstractFetcherThread; rules R1, R6,
R9 to R13, R41).

On disk is what `storage.log.replica` writes. Threads: any, one at a time, by `lock`; an answer to a question
that is no longer asked changes nothing (R11).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from segstore.integers import INT32_MAX
from segstore.leader_epochs import EpochEnd
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.protocol.fetch_bytes import Brought
from segstore.replica_fetcher.fetched_data import FetchedData
from segstore.replica_fetcher.source_answers import check_data
from segstore.replica_fetcher.source_end import SourceEnd
from segstore.replication.core.effects import (
    Append,
    Effects,
    GoOnAt,
    SetHighWatermark,
    SetLogStartOffset,
    Truncate,
    TruncateFullyAndStartAt,
)
from segstore.replication.core.follower import Follower
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.messages import FetchAnswer, FetchedSpan, FetchRequest
from segstore.replication.fetched import describe
from segstore.wire.metadata import NO_LEADER, LeaderAndEpoch

if TYPE_CHECKING:
    from segstore.storage.log.replica import Replica

log = Logger("segstore")


class Key(NamedTuple):
    """A partition of one topic, which is another one once it was deleted and made anew."""

    topic: str
    topic_id: str
    partition: int


class FetchPosition(NamedTuple):
    """What is fetched of a partition: the fields of Kafka's FetchPartition. Epochs that are not known are
    -1.
    """

    offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


class Question(NamedTuple):
    """A fetch under way."""

    position: FetchPosition
    led: LeaderAndEpoch
    follower: Follower
    request: FetchRequest


class FollowedLog:
    """One log. `led` says who leads it; `source` how far the leader's log reaches; `replica_id` is that of
    this replica, -1 for a consumer. `error` is what prevents it from following, None while nothing does.
    """

    def __init__(self, topic: str, topic_id: str, partition: int, replica: Replica, replica_id: int) -> None:
        self.topic, self.topic_id, self.partition, self.replica = topic, topic_id, partition, replica
        self._replica_id = replica_id
        self.lock = Mutex()
        self.led = LeaderAndEpoch(NO_LEADER, -1)
        self.source = SourceEnd()
        self.on_cut: Callable[[tuple[str, ...]], None] | None = None
        """Takes the paths of copies of what was cut."""
        self.on_reached: Callable[[FollowedLog], None] | None = None
        """Called once, when this log shows all that the leader had when it was first fetched."""
        self.is_compared = False
        """Whether the leader's log and this one have the same records where both have any, as far as this log
        reached: nothing is taken before (see `Comparison`)."""
        self.error: Exception | None = None
        self.not_before = 0.0
        """When it may be fetched again, by the monotonic clock."""

    @property
    def key(self) -> Key:
        """Return what identifies it."""
        return Key(self.topic, self.topic_id, self.partition)

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def follow(self, led: LeaderAndEpoch) -> None:
        """Follow another leader, or the same one in another epoch; one of before that may be heard of late
        is not followed.
        """
        if led.leader_epoch >= self.led.leader_epoch or led.leader_epoch < 0:
            self.is_compared = self.is_compared and led == self.led
            self.led = led

    def lacks(self, end: int) -> bool:
        """Return whether this log may lack records that the leader's has below `end`. Raises
        StoreClosedError.
        """
        return not self.is_compared or self.replica.log_end_offset < end

    def delay(self, seconds: float, error: Exception | None) -> None:
        """Fetch nothing for a while, for this reason."""
        self.error, self.not_before = error, time.monotonic() + seconds

    # --- the fetcher's thread ---------------------------------------------------------------------

    def ask(self) -> Question:
        """Return what to fetch next (R8). Raises StoreClosedError where the topic was removed."""
        with self.lock:
            replica, led = self.replica, self.led
            held = ReplicaLog(
                replica.epoch_cache.copy(),
                replica.start_offset,
                replica.log_end_offset,
                replica.high_watermark,
            )
        # Where the leader's epoch is not known, no batch can be of a later one.
        epoch = led.leader_epoch if led.leader_epoch >= 0 else INT32_MAX
        follower = Follower(self._replica_id, held, led.leader, epoch, 0)
        request = follower.fetch(-1)
        start = held.start_offset if self._replica_id >= 0 else -1
        position = FetchPosition(request.fetch_offset, led.leader_epoch, request.last_fetched_epoch, start)
        return Question(position, led, follower, request)

    def take(self, question: Question, data: FetchedData) -> bool:
        """Take an answer without error: append what it brings, or cut the log; return whether there may be
        more.

        Raises CorruptRecordError where what came is damaged; UnusableAnswerError; StorageError;
        InvalidArgumentError where the batches don't follow this log.
        """
        with self.lock:
            if question.led != self.led or not (self.is_compared or data.diverging):
                return False
            answer = FetchAnswer(data.diverging, data.high_watermark, data.log_start_offset, -1)
            fetched, cut = describe(data.records) if data.records else (None, None)
            check_data(data, fetched, repr(self))
            effects = question.follower.on_answer(question.request, answer, fetched)
            for effect in effects:
                if isinstance(effect, Append) and fetched is not None and cut is not None:
                    self._append(question.follower, answer, fetched, data.records[: cut(effect.before)])
                else:
                    self._change(effect, data.diverging)
            if data.diverging is None:
                self._told(data.high_watermark, self.replica.log_end_offset, len(data.records))
            self.error = None
        return bool(effects)

    def _told(self, high_watermark: int, end: int, size: int) -> None:
        """Note what an answer tells of the leader's log."""
        self.source.told(high_watermark, end, size)
        tell = self.on_reached
        if tell is not None and self.source.has_reached_target(self.replica.high_watermark):
            self.on_reached = None
            tell(self)

    def take_next(self, led: LeaderAndEpoch, brought: Brought) -> bool:
        """Do what `take` does with an answer of this leader, where its batches go on where the log ends,
        under the same leader epoch. False, and nothing is done, where it is anything else. Raises
        StorageError, StoreClosedError.
        """
        high_watermark, _, start, records = brought
        with self.lock:
            replica = self.replica
            if led is not self.led or start > replica.start_offset or high_watermark < replica.high_watermark:
                return False
            end = replica.append_next(records, high_watermark)
            if end is None:
                return False
            self._told(high_watermark, end, len(records))
            self.error = None
        return True

    def take_piece(self, led: LeaderAndEpoch, brought: Brought) -> bool:
        """Do what `take` does with whole batches of an answer of this leader, of which those before were
        taken. False, and nothing is done, where another one leads by now. Raises as `take`.
        """
        if self.take_next(led, brought):
            return True
        question = self.ask()
        if question.led is not led:
            return False
        data = FetchedData(0, brought.high_watermark, brought.log_start_offset, None, brought.records)
        return self.take(question, data)

    def go_on(self, question: Question, end_offset: int, data: FetchedData) -> bool:
        """Let the log end at `end_offset`, where the leader's does, which has no batch from the position that
        was asked for to there; `data` has its high watermark (R41). Return whether that was done. Raises
        StorageError, StoreClosedError.
        """
        answer = FetchAnswer(None, data.high_watermark, data.log_start_offset, end_offset)
        with self.lock:
            if question.led != self.led or self.replica.log_end_offset != question.position.offset:
                return False
            if not self.is_compared:
                return False
            effects = question.follower.on_nothing(question.request, answer)
            for effect in effects:
                assert isinstance(effect, GoOnAt)
                self.replica.go_on_at(effect.offset, effect.epoch)
                for each in question.follower.on_gone_on(effect, answer):
                    self._change(each, None)
            self._told(data.high_watermark, self.replica.log_end_offset, 0)
        return bool(effects)

    def out_of_range(self, question: Question, start: int, end: int) -> bool:
        """Cut the log, or begin it anew, where the leader's log has `start` and `end` and not the offset that
        was asked for (R12); return whether anything was done.
        """
        with self.lock:
            if question.led != self.led:
                return False
            effects: Effects = question.follower.on_out_of_range(question.request, start, end)
            for effect in effects:
                self._change(effect, None)
        return bool(effects)

    def compared(self, question: Question) -> None:
        """Take that this log has no other records than the leader of a question, where both have any."""
        with self.lock:
            if question.led == self.led:
                self.is_compared = question.position.offset == self.replica.log_end_offset

    def cut_unlike(self, question: Question, offset: int) -> None:
        """Cut this log at `offset`, from which on the leader of a question has other records. Raises
        StorageError, StoreClosedError.
        """
        with self.lock:
            if question.led == self.led:
                self._truncate(offset, f"which has others from offset {offset} on")

    def _append(
        self, follower: Follower, answer: FetchAnswer, fetched: FetchedSpan, data: bytes | memoryview
    ) -> None:
        if (first := follower.restart(fetched)) is not None:
            self._change(first, None)
            follower.on_start_over(first.offset)
        end = self.replica.append_as_follower(data)
        for effect in follower.on_append(end, answer, fetched):
            self._change(effect, None)

    def _change(self, effect: object, diverging: EpochEnd | None) -> None:
        replica = self.replica
        if isinstance(effect, SetHighWatermark):
            replica.set_high_watermark(effect.offset)
        elif isinstance(effect, SetLogStartOffset):
            replica.set_start_offset(effect.offset)
        elif isinstance(effect, Truncate):
            why = f"whose epoch {diverging.epoch} ends at {diverging.end_offset}" if diverging else ""
            self._truncate(effect.offset, why or "which is shorter")
        elif isinstance(effect, TruncateFullyAndStartAt):
            end = replica.log_end_offset
            if end > replica.start_offset:
                log.warning("%r ends at %d, before the leader's log begins: it begins anew", self, end)
            self.is_compared = False
            replica.truncate_fully_and_start_at(effect.offset)

    def _truncate(self, offset: int, why: str) -> None:
        before = self.replica.log_end_offset
        self.is_compared = False
        cut = self.replica.truncate_to(offset)
        if not cut.cut_bytes:
            return
        if cut.kept and self.on_cut is not None:
            self.on_cut(cut.kept)
        kept = f"; a copy is kept in {', '.join(cut.kept)}" if cut.kept else ""
        log.warning(
            "%r: offsets %d to %d are not in the leader's log, %s, and were cut%s",
            self, cut.end_offset, before - 1, why, kept,
        )  # fmt: skip
