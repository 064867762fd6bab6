"""`DeadLetterQueue`: copies records that a share group can't process to the group's dead letter topic
(KIP-1191; Kafka: ShareGroupDLQStateManager, ShareGroupDLQRecordFetcher).

On disk: appends to the dead letter topic, and creates it if the store's settings allow that. A record's state
ARCHIVING is durable before its dead letter is appended, and ARCHIVED is written after the append. So a record
is copied again, with the same headers, if a crash comes after the append and before ARCHIVED is durable.
Threads: any thread calls `add`. The store's scheduler copies the dead letters of one share partition after
those of another, and within a share partition in the order in which records became dead letters. If a disk is
full, or replicas do not answer, a share partition's dead letters wait for the next try. Any other failure is
logged and counted, and the records are archived without a dead letter (rules Q70, Q71 of
docs/queue-rules.md).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from segstore.coordinator.group_settings import GroupSettings
from segstore.coordinator.retriable import passes
from segstore.coordinator.share.core.values import Cause, DeadLetter
from segstore.coordinator.share.effects import Failures
from segstore.coordinator.share.metrics import ShareMetrics
from segstore.coordinator.share.partitions import ShareLeader, ShareTurn
from segstore.coordinator.share_settings import DeadLetterRules
from segstore.errors import (
    ConfigError,
    NotLeaderOrFollowerError,
    SegstoreError,
    StoreClosedError,
    TopicAlreadyExistsError,
)
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.records import HEADER_SIZE
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

log = Logger("segstore")

# The first and the longest pause before another try, in seconds.
FIRST_RETRY, LONGEST_RETRY = 1.0, 30.0
ENABLE, STAMPED = "errors.deadletterqueue.group.enable", "message.timestamp.type"
READ_BYTES = 1 << 20
_NUMBERS = 36
"""The largest size of a record's varints and attributes, in bytes."""
MESSAGES = {
    Cause.REJECTED: b"Offset rejected by client.",
    Cause.LIMIT_EXCEEDED: b"Offset delivery count exceeded the threshold.",
}

Headers = tuple[tuple[str, bytes], ...]


class _Letter(NamedTuple):
    """A record of the dead letter topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size(self) -> int:
        """Return an upper bound of the record's size in a batch, in bytes."""
        named = sum(len(name) + len(text) + 10 for name, text in self.headers)
        return _NUMBERS + len(self.key or b"") + len(self.value or b"") + named


class DeadLetterQueue:
    """The dead letters of a store. `settle` is `ShareEffects.settle`, which the owner of the queue sets; it
    writes the new states after each copy.
    """

    def __init__(self, store: Store, settings: GroupSettings, metrics: ShareMetrics) -> None:
        self._store, self._settings, self._metrics = store, settings, metrics
        self._lock, self._copying = Mutex(), Mutex()
        self._waiting: dict[ShareLeader, None] = {}
        self._pause, self._planned, self._closed = FIRST_RETRY, False, False
        self._warned: set[tuple[str, str]] = set()
        self.settle: Callable[[ShareTurn], Failures] = lambda turn: {}

    def add(self, leader: ShareLeader, letters: Sequence[DeadLetter]) -> None:
        """Queue dead letters, which the scheduler copies later."""
        leader.letters.extend(letters)
        with self._lock:
            self._waiting[leader] = None
        self._plan(0.0)

    def close(self) -> None:
        """Try once to copy the dead letters. Those that can't be copied are found again when their share
        partitions are loaded after the next open of the store.
        """
        self.copy()
        self._closed = True

    # --- the scheduler ---------------------------------------------------------------------------

    def _plan(self, seconds: float) -> None:
        # This is a weak reference, because the scheduler must not keep an unused store alive.
        me = weakref.ref(self)

        def run() -> None:
            queue = me()
            if queue is not None and not queue._closed:
                queue.copy()

        self._store.context.scheduler.after(seconds, run)

    def copy(self) -> None:
        """Copy the waiting dead letters of all share partitions, and schedule another try for the letters
        that can't be copied now.
        """
        with self._copying:
            failed = [leader for leader in self._taken() if not self._is_copied(leader)]
        if not failed:
            self._pause = FIRST_RETRY
            return
        with self._lock:
            self._waiting.update(dict.fromkeys(failed))
        if not self._closed:
            self._plan(self._pause)
            self._pause = min(2 * self._pause, LONGEST_RETRY)

    def _taken(self) -> Iterator[ShareLeader]:
        while self._waiting:
            with self._lock:
                leader, _ = self._waiting.popitem()
            yield leader

    def _is_copied(self, leader: ShareLeader) -> bool:
        """Copy the dead letters of a share partition; return False if `copy` must be tried again later."""
        while leader.letters and not leader.is_fenced:
            letters = _neighbours(leader)
            try:
                self._send(leader, letters)
            except StoreClosedError:
                return True
            except NotLeaderOrFollowerError:
                # The share partition was fenced. The next load of its state queues the letters again.
                return False
            except SegstoreError as error:
                if passes(error):
                    log.warning("dead letters of share partition %s wait: %s", leader.key, error)
                    return False
                self._failed(leader, letters, str(error))
        return True

    def _failed(self, leader: ShareLeader, letters: Sequence[DeadLetter], reason: str) -> None:
        """Archive records that can't be copied, and log the reason."""
        first, last = letters[0].first, letters[-1].last
        log.error(
            "offsets %d-%d of share partition %s get no dead letters: %s", first, last, leader.key, reason
        )
        self._metrics.failures[leader.key.group] += 1
        self._archive(leader, first, last)

    def _archive(self, leader: ShareLeader, first: int, last: int) -> None:
        """Archive the offsets from `first` to `last`, and remove their dead letters from the head of the
        queue.
        """
        turn = ShareTurn()
        leader.change(turn, lambda core: core.dead_lettered(first, last))
        letters = leader.letters
        # The lower bound `first` is needed because letters that were queued later may have lower offsets.
        while letters and first <= letters[0].first <= last:
            letter = letters.popleft()
            if letter.last > last:
                letters.appendleft(letter._replace(first=last + 1))
        try:
            self.settle(turn)
        finally:
            turn.abandon()

    # --- copies ----------------------------------------------------------------------------------

    def _send(self, leader: ShareLeader, letters: Sequence[DeadLetter]) -> None:
        """Append the dead letters of adjacent offsets, in as few batches as the topic allows. Raises
        ConfigError if the group has no dead letter topic, and the errors of the append.
        """
        group = leader.key.group
        rules = self._settings.dead_letters(group)
        target = self._target(leader, rules)
        most = target.partition_for_write().validator.largest_batch - HEADER_SIZE
        for batch in _batches(_letters(leader, letters, rules.copies, most), most):
            self._metrics.appends[group] += 1
            target.append_batch(
                [each.value for each in batch],
                [each.key for each in batch],
                headers=[each.headers for each in batch],
                batch_bytes=most + HEADER_SIZE,
            )
            self._metrics.letters[group] += len(batch)
            self._archive(leader, batch[0].offset, batch[-1].offset)

    def _target(self, leader: ShareLeader, rules: DeadLetterRules) -> PartitionLog:
        """Return the log for a share partition's dead letters. Raises ConfigError, and the errors of
        `Store.create_topic`.
        """
        if not rules.topic:
            raise ConfigError(
                f"group {leader.key.group}: errors.deadletterqueue.topic.name is not set any more"
            )
        info = self._store.engine.topics.get(rules.topic)
        fault = rules.fault(None if info is None else info.settings)
        if fault is not None:
            raise ConfigError(fault)
        if info is None:
            info = self._make(rules.topic)
        self._warn_of_loop(leader, rules.topic)
        ids = info.partition_ids
        return self._store.partition(rules.topic, ids[leader.key.partition % len(ids)])

    def _make(self, topic: str) -> Any:
        try:
            return self._store._create_topic(topic, 1, {ENABLE: "true", STAMPED: "CreateTime"})
        except TopicAlreadyExistsError:  # Another thread has created the topic.
            return self._store.engine.topics[topic]

    def _warn_of_loop(self, leader: ShareLeader, topic: str) -> None:
        """Warn once about a group that consumes its own dead letter topic (rule Q72)."""
        at = leader.key.group, topic
        if leader.topic == topic and at not in self._warned:
            self._warned.add(at)
            log.warning("group %s reads %s, which has its own dead letters: each makes another one", *at)


def _neighbours(leader: ShareLeader) -> list[DeadLetter]:
    """Return the dead letters at the head of the queue, up to the first gap between their offsets."""
    found: list[DeadLetter] = []
    for letter in list(leader.letters):
        if found and letter.first != found[-1].last + 1:
            break
        found.append(letter)
    return found


def _letters(
    leader: ShareLeader, letters: Sequence[DeadLetter], copies: bool, most: int
) -> Iterator[_Letter]:
    """Yield a record of the dead letter topic for each offset. It has no key and no value, only headers, if
    not `copies`, or if the original record is no longer in the log, or is too large (rule Q69).
    """
    first, last = letters[0].first, letters[-1].last
    copied = _copied(leader.log, first, last) if copies else iter(())
    record = next(copied, None)
    for letter in letters:
        for offset in range(letter.first, letter.last + 1):
            while record is not None and record[0] < offset:
                record = next(copied, None)
            headers = _headers(leader, letter, offset)
            made = _Letter(offset, None, None, headers)
            if record is not None and record[0] == offset:
                whole = _Letter(offset, record[1], record[2], headers)
                made = whole if whole.size <= most else made
            yield made


def _copied(source: PartitionLog, first: int, last: int) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Yield (offset, key, value) of the records from `first` to `last`. If a read fails, log the error, and
    stop.
    """
    at = first
    while at <= last:
        try:
            records = source.read(max(at, source.start_offset), READ_BYTES)
        except SegstoreError as error:
            log.warning(
                "%s-%d: dead letters from offset %d on are not copied: %s",
                source.topic,
                source.partition,
                at,
                error,
            )
            return
        if records.next_offset <= at:
            return
        at = records.next_offset
        columns = zip(records.offsets.tolist(), records.keys.tolist(), records.values.tolist(), strict=True)
        yield from takewhile(lambda row: row[0] <= last, columns)


def _headers(leader: ShareLeader, letter: DeadLetter, offset: int) -> Headers:
    return (
        ("__dlq.errors.topic", leader.topic.encode()),
        ("__dlq.errors.partition", b"%d" % leader.key.partition),
        ("__dlq.errors.offset", b"%d" % offset),
        ("__dlq.errors.group", leader.key.group.encode()),
        ("__dlq.errors.delivery.count", b"%d" % letter.count),
        ("__dlq.errors.message", MESSAGES[letter.cause]),
    )


def _batches(letters: Iterator[_Letter], most: int) -> Iterator[list[_Letter]]:
    """Yield lists of one or more records that fit into one batch."""
    batch: list[_Letter] = []
    size = 0
    for letter in letters:
        if batch and size + letter.size > most:
            yield batch
            batch, size = [], 0
        batch.append(letter)
        size += letter.size
    if batch:
        yield batch
