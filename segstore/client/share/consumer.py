"""`ShareConsumer`: takes records of a share group from a store's topics, and acknowledges them one by one
(KIP-932; Kafka: KafkaShareConsumer).

On disk: nothing of its own; coordinators write what the group has done. Threads: one at a time, another one
gets ConcurrentModificationError; `wakeup` may be called by any thread, and by signal handlers.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from segstore.client.consumer.base import alone
from segstore.client.consumer.ending import ConsumerEnding
from segstore.client.consumer.metrics import Polled
from segstore.client.consumer.records import ConsumerRecord
from segstore.client.share.acknowledgements import (
    ACCEPT,
    RELEASE,
    batches,
)
from segstore.client.share.acknowledging import Acknowledging
from segstore.client.share.base import by_partition, span
from segstore.client.share.config import ShareConsumerConfig
from segstore.client.share.deliveries import At, Made
from segstore.coordinator.retriable import LOADING
from segstore.errors import (
    IllegalStateError,
    InvalidTypeError,
    StoreClosedError,
)
from segstore.mutex import calls_out
from segstore.storage.meta.topics import find_topic
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from segstore.client.share.settings import ShareConsumerSettings

_CLOSE_MS = 30_000
_FLUSH_S = 0.1  # how long an iteration may keep what it has accepted to itself


class ShareConsumer(Acknowledging):
    """A member of the share group `group_id`, whose members share the records of their topics: each record is
    delivered to one of them at a time, until it is acknowledged. Its name for settings is kafka-python's
    spelling of Kafka's; settings of the network are refused by name. A share consumer is a context manager.

    In implicit mode (the default) the records of a poll count as accepted with the next `poll`,
    `commit_sync`, `commit_async` or `close`; with share_acknowledgement_mode="explicit" the application
    acknowledges each one before the next `poll`. Records that nobody acknowledges are delivered again once
    their acquisition locks have run out, `delivery_count` says how often. Delivery is at least once, in no
    order.
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = ShareConsumerConfig.defaults()
    """The default of each setting by name."""

    def __init__(self, store: Store, *topics: str, **settings: Unpack[ShareConsumerSettings]) -> None:
        """Raises ConfigError, InvalidGroupIdError, InvalidTypeError, UnknownTopicOrPartitionError;
        ReadOnlyError over a store opened "r", IllegalStateError in a guest of a shared store.
        """
        super().__init__(store, settings)
        if topics:
            self.subscribe(topics)
        self._ending = ConsumerEnding(self)
        store.attach_client(self._ending)

    def __repr__(self) -> str:
        return f"<ShareConsumer {self.config.client_id} of group {self.config.group_id!r} of {self._store!r}>"

    # --- topics ----------------------------------------------------------------------------------

    @alone
    def subscribe(self, topics: Collection[str]) -> None:
        """Take records of the topics named, in place of those of before; without any as `unsubscribe`. Raises
        UnknownTopicOrPartitionError for a topic that does not exist; InvalidTypeError.
        """
        self._check()
        if isinstance(topics, str) or not isinstance(topics, Collection):
            raise InvalidTypeError(f"topics must be a list of str, not {type(topics).__name__}")
        there = self._store.topics()
        for name in topics:
            if not isinstance(name, str):
                raise InvalidTypeError(f"a topic must be a str, not {type(name).__name__}")
            find_topic(there, name)
        if topics:
            self._membership.want(topics)
        else:
            self._unsubscribe()

    @alone
    def unsubscribe(self) -> None:
        """Leave the group, and want no topics. Records of the last poll may still be acknowledged."""
        self._check()
        self._unsubscribe()

    def _unsubscribe(self) -> None:
        self._release_waiting()
        self._membership.leave()

    def _release_waiting(self) -> None:
        """Give back records that no poll has given: others get them at once."""
        notes: dict[At, dict[int, int]] = {}
        for part in (*self._acks.renewed, *self._deliveries.parts()):
            notes.setdefault(part.at, {}).update(dict.fromkeys(part.offsets(), RELEASE))
        self._acks.renewed.clear()
        self._deliveries.clear()
        if notes:
            self._acknowledge({at: batches(each) for at, each in notes.items()})

    @alone
    def subscription(self) -> set[str]:
        """Return the topics subscribed to."""
        return set(self._membership.topics or ())

    # --- records ---------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Polled:
        """Return records that are acquired now, or within `timeout_ms`, by partition. Acknowledgements that
        are noted are sent before.

        A poll acquires about max_poll_records: with share_acquire_mode="batch_optimized" whole record
        batches, which may be more. With `max_records` no more are returned, and what else was acquired comes
        with the next polls. Records that were renewed come again with the next poll, which acquires no
        others.

        Raises IllegalStateError without a subscription, and in explicit mode unless all records of the last
        poll are acknowledged; WakeupError; RecordDeserializationError, after which the record is released
        unless `acknowledge_offset` says otherwise; CorruptRecordError, whose records were rejected;
        GroupNotFoundError for a group of another kind, GroupMaxSizeReachedError, StorageError,
        StoreClosedError.
        """
        guard = self._guard
        with guard:
            self._check()
            given, waiting = self._poll(timeout_ms, max_records)
            polled, held = by_partition(given)
            self._metrics.left()
            # Last: records that an interrupt keeps from the application count as not given.
            if waiting is not None:
                self._deliveries.keep(waiting)
                self._acks.held = held
            return polled

    def poll_flat(self, timeout_ms: float = 0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return what `poll` returns as one list."""
        guard = self._guard
        with guard:
            self._check()
            given, waiting = self._poll(timeout_ms, max_records)
            _, held = by_partition(given)
            records = (
                given[0].records if len(given) == 1 else [each for part in given for each in part.records]
            )
            self._metrics.left()
            if waiting is not None:  # last, as in `poll`
                self._deliveries.keep(waiting)
                self._acks.held = held
            return records

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """Return how long a record stays with the member to which it was delivered, as it was for the last
        ones; None before the first.
        """
        return self._fetcher.lock_timeout_ms

    def wakeup(self) -> None:
        """Have the running poll, or the next one, raise WakeupError, unless it returns records. Any thread,
        and a signal handler, may call this.
        """
        self._wait.wakeup()

    # --- for AsyncShareConsumer --------------------------------------------------------------------

    def _give_back(self) -> None:
        """Let the next poll return again what the last one returned; does nothing if the consumer was closed
        since.
        """
        guard = self._guard
        with guard:
            if not guard.closed and guard.ender is None:
                self._deliveries.put_back(self._acks.give_back())

    @alone
    def _join(self) -> None:
        """Join the group, if topics are subscribed to."""
        with suppress(*LOADING):
            self._membership.poll()

    def _next(self) -> ConsumerRecord | None:
        """Return the next of the records that `_fill` found, whereby the one before is accepted in implicit
        mode; None once there are no more, or what was accepted is to be sent.
        """
        guard = self._guard
        with guard:
            self._check()
            self._accept_current()
            if not self._deliveries.are_made or time.monotonic() >= self._flush_at:
                return None
            given, waiting = self._take(1)
            if not given:
                return None
            tp, at, (record,), until = given[0]
            self._deliveries.keep(waiting)
            self._acks.hold(tp, at, record[3], record, until)
            self._current = record
            return record

    def _accept_current(self) -> None:
        record, self._current = self._current, None
        if record is not None and not self._is_explicit:
            with suppress(IllegalStateError):  # a commit has sent it
                self._acks.note(record[0], record[1], record[3], ACCEPT)
                self._flush_at = min(self._flush_at, time.monotonic() + _FLUSH_S)

    def _fill(self, timeout_ms: float) -> bool:
        """Send what is accepted, and find records for `_next` within `timeout_ms`; return whether there are
        some.
        """
        guard = self._guard
        with guard:
            self._check()
            self._flush_at = math.inf
            if self._deliveries:
                self._send()
                if self._deliveries.are_made:
                    return True
                given, waiting = self._take(math.inf)
            else:
                given, kept = self._poll(timeout_ms, None)
                waiting = deque() if kept is None else kept
            made = [Made(tp, at, records, until) for tp, at, records, until in given]
            if made:
                self._deliveries.replace(made, waiting)
            return bool(made)

    # --- the consumer itself -----------------------------------------------------------------------

    @alone
    def metrics(self) -> dict[str, dict[str, float]]:
        """Return {group of metrics: {name: value}}, by Kafka's names."""
        return self._metrics.snapshot(self._membership.pulse, self._groups.now())

    def close(self, timeout_ms: float = _CLOSE_MS) -> None:
        """Send the acknowledgements that are noted, in implicit mode of all records of the last poll; give
        back all other records, and leave the group. The store stays open.

        A second call does nothing; nor does a call after the store was closed, which has ended the consumer,
        or in a child of a fork, which has no consumer. After an interrupt within `close` another call goes
        on.
        """
        self._close(True, timeout_ms)

    def _close(self, accepts: bool, timeout_ms: float = _CLOSE_MS) -> None:
        span(timeout_ms)
        guard = self._guard
        if self._store.context.forked:
            guard.closed = True
            return
        if self._is_ended() or (guard.closed and guard.is_within(sys._getframe())):
            return
        entered = False
        try:
            with guard:
                entered = True
                if self._acks.is_telling:
                    self._check()
                self._end(accepts)
        except StoreClosedError:
            if entered:
                raise
            # Another thread is closing the store, and the consumer with it.

    def _is_ended(self) -> bool:
        """Return whether the consumer is closed, and nothing of that is left to do."""
        return self._guard.closed and not self._left_open

    def _end(self, autocommit: bool) -> None:
        """Close; with `autocommit` the application is done with the records of the last poll."""
        if not self._guard.closed:
            try:
                if autocommit and not self._is_explicit:
                    self._acks.note_all()
                self._send()
            finally:
                self._leave()
        self._close_parts()

    def _leave(self) -> None:
        try:
            touched = self._fetcher.touched
            if touched:
                self._coordinator.release(self.config.group_id, self._membership.member_id, touched)
        finally:
            self._membership.leave()
            self._guard.closed = True

    @calls_out
    def _close_parts(self) -> None:
        """Close one part after the other; the part during which an interrupt comes stays the next one."""
        left = self._left_open
        while left:
            try:
                left[0]()
            except Exception:
                del left[0]
                raise
            del left[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. If the block ends by an exception, records of the last poll that nobody has acknowledged are
        not accepted, but released.
        """
        self._close(kind is None)
