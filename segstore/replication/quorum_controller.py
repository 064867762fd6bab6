"""The controller of a replicated store: `core.controller` computes the changes of the metadata that an event
causes (the decision of the event). This module writes the changes durably to a majority of voters, and then
publishes them (Kafka: QuorumController; rule R31).

On disk is the metadata log. Threads: one, which handles events in order. The decisions of all events that are
in the queue are written in one batch. Any thread may call `post`. Any thread except for the directories' own
threads may call `call`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from segstore.errors import RequestTimedOutError, SegstoreError, StoreClosedError, copy_of
from segstore.logger import Logger
from segstore.replication.clock import now_ms
from segstore.replication.core.controller import BrokerRecord, Controller, Key, PartitionDecision
from segstore.replication.core.effects import Effects, Persist, Send
from segstore.replication.core.registration import BrokerRegistration, PartitionRegistration
from segstore.replication.metadata.image import MetadataImage, PartitionKey
from segstore.replication.metadata.metadata_log import MetadataLog
from segstore.replication.metadata.records import MetadataRecord, RemoveTopicRecord
from segstore.replication.metadata.snapshot_generator import SnapshotGenerator
from segstore.threads import Background, Latch, take

log = Logger("segstore")

MOST_EVENTS = 1_000
"""The largest number of events in one write."""


class Decision(NamedTuple):
    """The result of one event. `records` are records of topics and settings. `effects` were returned by a
    method of `Controller`. The records in `effects` are written after `records`.
    """

    records: Sequence[MetadataRecord] = ()
    effects: Effects = ()


Event = Callable[[Controller, int], Decision]
"""A function that gets the `Controller` and the time in ms, and returns its `Decision`. If the function
raises an error, `Answer` gets the error, and nothing changes.
"""
Answer = Callable[[list[Any], "Exception | None"], object]
"""A function that gets the result of an event: (messages of the decision's `Send` effects, None), or ([], the
error).
"""


class Published(NamedTuple):
    """Durable changes of the metadata: the new states of changed brokers and partitions, and the new records
    of topics and settings.
    """

    brokers: dict[int, BrokerRegistration]
    partitions: dict[Key, PartitionRegistration]
    records: tuple[MetadataRecord, ...]


class QuorumController:
    """The controller. Its thread calls `publish` with durable changes. `publish` must not block."""

    def __init__(
        self,
        metadata_log: MetadataLog,
        image: MetadataImage,
        core: Controller,
        publish: Callable[[Published], None],
        beat_ms: float,
        snapshots: SnapshotGenerator,
    ) -> None:
        self._log, self.image, self._core, self._publish = metadata_log, image, core, publish
        self._beat, self._snapshots = beat_ms / 1000, snapshots
        self._asked: SimpleQueue[tuple[Event, Answer] | None] = SimpleQueue()
        self._regular: list[tuple[float, float, Event]] = []
        self._over, self._ended = False, Latch()
        self.error: Exception | None = None
        """The error that stopped the controller, None while it works."""

    def start(self) -> None:
        """Start the thread."""
        Background(self._run, "segstore-controller").start()

    def every(self, seconds: float, event: Event) -> None:
        """Handle `event` every `seconds` seconds. Called before `start`."""
        self._regular.append((time.monotonic() + seconds, seconds, event))

    def stop(self, seconds: float) -> bool:
        """Stop the thread. Wait for its end for at most `seconds`, and return whether it has ended."""
        self._over = True
        self._asked.put(None)
        return self._ended.wait(seconds)

    # --- any thread ------------------------------------------------------------------------------

    def post(self, event: Event, answer: Answer | None = None) -> None:
        """Queue an event. The controller's thread handles the event, and then calls `answer`."""
        self._asked.put((event, answer or _ignore))

    def call(self, event: Event, timeout_ms: float = 30_000) -> list[Any]:
        """Queue an event, wait until its changes of the metadata are durable, and return the messages of its
        `Send` effects.

        Raises the event's error, QuorumLostError and StoreClosedError. Raises RequestTimedOutError if the
        event is not handled in time. The event may still be handled later.
        """
        answered: SimpleQueue[tuple[list[Any], Exception | None]] = SimpleQueue()
        self.post(event, lambda answers, error: answered.put((answers, error)))
        if self._ended.is_open:
            self._refuse_rest()
        try:
            answers, error = take(answered, timeout_ms / 1000)
        except Empty:
            raise RequestTimedOutError(f"the controller has not answered within {timeout_ms} ms") from None
        if error is not None:
            raise copy_of(error)
        return answers

    # --- the controller's thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over:
                self.decide(self._next())
        finally:
            self._ended.open()
            self._refuse_rest()

    def _next(self) -> list[tuple[Event, Answer]]:
        """Wait until an event is queued or a periodic event is due. Return the queued events, at most
        MOST_EVENTS, and the periodic events that are due.
        """
        found: list[tuple[Event, Answer]] = []
        with suppress(Empty):
            asked = take(self._asked, self._pause())
            while asked is not None:
                found.append(asked)
                if len(found) == MOST_EVENTS:
                    break
                asked = self._asked.get_nowait()
        return found + self._due()

    def _pause(self) -> float:
        at = min((at for at, _, _ in self._regular), default=time.monotonic() + self._beat)
        return max(at - time.monotonic(), 0.0)

    def _due(self) -> list[tuple[Event, Answer]]:
        now = time.monotonic()
        due = [event for at, _, event in self._regular if at <= now]
        self._regular = [(now + s if at <= now else at, s, e) for at, s, e in self._regular]
        return [(event, _ignore) for event in due]

    def _refuse_rest(self) -> None:
        with suppress(Empty):
            while True:
                asked = self._asked.get_nowait()
                if asked is not None:
                    asked[1]([], self.error or StoreClosedError("the store is closed"))

    def decide(self, events: Iterable[tuple[Event, Answer]]) -> None:
        """Compute the changes of the metadata that the events cause, write all changes durably in one batch,
        publish the changes, and answer the events (R31). Called by the controller's thread, and by
        `open_replicated` before that thread runs.
        """
        batch = _DecisionBatch(self.image, self._log.next_offset)
        answers = [(answer, *self._decided(event, batch)) for event, answer in events]
        if batch.records and self.error is None:
            try:
                self._log.append(batch.records)
            except (SegstoreError, OSError) as error:
                self._lose(error)
            else:
                self._publish(batch.published())
        if self.error is None:
            self._snapshots.look(self.image)
        for answer, messages, failed in answers:
            try:
                # If the write failed, the answer to each event is the write's error. Refused events get this
                # error, too: an event may have been refused because of an earlier event of the batch, whose
                # changes the failed write has lost.
                answer(messages, self.error or failed)
            except Exception:
                log.exception("an answer of the controller failed")

    def _decided(self, event: Event, batch: _DecisionBatch) -> tuple[list[Any], Exception | None]:
        if self.error is not None:
            return [], self.error
        try:
            self._core.next_offset = batch.next_offset
            return batch.add(event(self._core, now_ms())), None
        except SegstoreError as error:
            return [], error
        except Exception as error:
            log.exception("the controller failed")
            self._lose(error)
            return [], error

    def _lose(self, error: Exception) -> None:
        """Stop the controller, because its state in memory may have changes that are not durable (R31)."""
        self.error = error
        log.error("the controller stops: %s", error)


class _DecisionBatch:
    """The `Decision`s that are written together. Each is applied to the image before the write. If the write
    fails, the controller stops, and the image is not used any more.
    """

    def __init__(self, image: MetadataImage, next_offset: int) -> None:
        self._image, self.next_offset = image, next_offset
        self.records: list[MetadataRecord] = []
        self._topic_records: list[MetadataRecord] = []
        self._brokers: dict[int, BrokerRegistration] = {}
        self._partitions: dict[Key, PartitionRegistration] = {}

    def add(self, decision: Decision) -> list[Any]:
        """Add a decision. Return the messages of its `Send` effects."""
        for record in decision.records:
            if isinstance(record, RemoveTopicRecord):
                self._forget(record.topic_id)
            self._add(record)
            self._topic_records.append(record)
        answers = []
        for effect in decision.effects:
            if isinstance(effect, Persist):
                self._add(self._image.record_of(effect.record))
                self._note(effect.record)
            elif isinstance(effect, Send):
                answers.append(effect.message)
        return answers

    def _forget(self, topic_id: str) -> None:
        """Remove the partitions of a deleted topic from this batch's changes, because a later topic of the
        batch may have the same name.
        """
        name = self._image.topic_name(topic_id)
        kept = {
            k: s for k, s in self._partitions.items() if not isinstance(k, PartitionKey) or k.topic != name
        }
        self._partitions = kept

    def _add(self, record: MetadataRecord) -> None:
        self._image.apply(record, self.next_offset)
        self.records.append(record)
        self.next_offset += 1

    def _note(self, record: BrokerRecord | PartitionDecision) -> None:
        if isinstance(record, BrokerRecord):
            self._brokers[record.broker] = record.registration
        else:
            self._partitions[record.partition] = record.registration

    def published(self) -> Published:
        """Return the changes of all decisions in the batch."""
        return Published(self._brokers, self._partitions, tuple(self._topic_records))


def _ignore(answers: list[Any], error: Exception | None) -> None:
    if error is not None and not isinstance(error, SegstoreError):
        log.warning("the controller: %s", error)
