"""`ShareConsumer`: acquires records of a share group from a store's topics, and acknowledges each of them
(KIP-932; Kafka: KafkaShareConsumer).

On disk: nothing of its own; coordinators write the state of the group. Threads: one at a time; a second
thread gets ConcurrentModificationError. Any thread, and a signal handler, may call `wakeup`.
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
# A `for` loop over the consumer sends an acknowledgement at most so many seconds after it was given.
_FLUSH_S = 0.1


class ShareConsumer(Acknowledging):
    """A member of the share group `group_id`, whose members share the records of their topics: each record is
    delivered to one member at a time, until it is acknowledged. Settings have Kafka's names in the spelling
    of kafka-python. A network setting is ignored with a warning, or raises ConfigError, which names it. A
    share consumer is a context manager.

    In implicit mode (the default) the next `poll`, `commit_sync`, `commit_async` or `close` accepts the
    records of a poll. With share_acknowledgement_mode="explicit" the application must acknowledge each record
    before the next `poll`. If a record gets no acknowledgement, it is delivered again after its acquisition
    lock has expired. A record's `delivery_count` is the number of its deliveries. Delivery is at least once,
    in no particular order.
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = ShareConsumerConfig.defaults()
    """{setting: default}."""

    def __init__(self, store: Store, *topics: str, **settings: Unpack[ShareConsumerSettings]) -> None:
        """Raises ConfigError, InvalidGroupIdError, InvalidTypeError, UnknownTopicOrPartitionError. Raises
        ReadOnlyError for a store that was opened "r", and IllegalStateError in a guest of a shared store.
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
        """Subscribe to the named topics instead of the earlier topics. If `topics` is empty, leave the group.
        Raises InvalidTypeError, and UnknownTopicOrPartitionError for a topic that does not exist.
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
        """Leave the group, and drop the subscription. Records of the last poll may still be acknowledged."""
        self._check()
        self._unsubscribe()

    def _unsubscribe(self) -> None:
        self._release_waiting()
        self._membership.leave()

    def _release_waiting(self) -> None:
        """Release the acquired records that no poll has returned, so that other members can acquire them at
        once.
        """
        notes: dict[At, dict[int, int]] = {}
        for part in (*self._acks.renewed, *self._deliveries.parts()):
            notes.setdefault(part.at, {}).update(dict.fromkeys(part.offsets(), RELEASE))
        self._acks.renewed.clear()
        self._deliveries.clear()
        if notes:
            self._acknowledge({at: batches(each) for at, each in notes.items()})

    @alone
    def subscription(self) -> set[str]:
        """Return the subscribed topics."""
        return set(self._membership.topics or ())

    # --- records ---------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Polled:
        """Send the stored acknowledgements, then acquire records, and return them by partition. If there are
        none, wait up to `timeout_ms` for some.

        A poll acquires about max_poll_records. With share_acquire_mode="batch_optimized" it acquires whole
        record batches, which may have more records. If `max_records` is given, a poll returns at most that
        many, and the next polls return the remaining acquired records. If records were acknowledged with
        RENEW, the next poll returns these again, and acquires no other records.

        Raises WakeupError, GroupMaxSizeReachedError, StorageError, StoreClosedError. Raises IllegalStateError
        if there is no subscription, and in explicit mode if a record of the last poll is not acknowledged.
        Raises RecordDeserializationError; the record is then released, unless `acknowledge_offset` sets
        another acknowledgement. Raises CorruptRecordError for a damaged batch; its records were rejected.
        Raises GroupNotFoundError if the group is no share group.
        """
        guard = self._guard
        with guard:
            self._check()
            given, waiting = self._poll(timeout_ms, max_records)
            polled, held = by_partition(given)
            self._metrics.left()
            # The queue is replaced after all other work: if an interrupt comes before that, the records count
            # as not returned.
            if waiting is not None:
                self._deliveries.keep(waiting)
                self._acks.held = held
            return polled

    def poll_flat(self, timeout_ms: float = 0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return the records of `poll` as one list."""
        guard = self._guard
        with guard:
            self._check()
            given, waiting = self._poll(timeout_ms, max_records)
            _, held = by_partition(given)
            records = (
                given[0].records if len(given) == 1 else [each for part in given for each in part.records]
            )
            self._metrics.left()
            if waiting is not None:
                # The queue is replaced after all other work: if an interrupt comes before that, the records
                # count as not returned.
                self._deliveries.keep(waiting)
                self._acks.held = held
            return records

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """Return the ms for which the last delivered records stay acquired by this member; None before the
        first delivery.
        """
        return self._fetcher.lock_timeout_ms

    def wakeup(self) -> None:
        """Make the running poll raise WakeupError, or the next poll if none is running. A running poll that
        has found records returns them, and the next poll raises the error. Any thread, and a signal handler,
        may call `wakeup`.
        """
        self._wait.wakeup()

    # --- for AsyncShareConsumer --------------------------------------------------------------------

    def _give_back(self) -> None:
        """Make the next poll return the last poll's records again. If the consumer is closed, do nothing."""
        guard = self._guard
        with guard:
            if not guard.closed and guard.ender is None:
                self._deliveries.put_back(self._acks.give_back())

    @alone
    def _join(self) -> None:
        """Join the group, if there is a subscription."""
        with suppress(*LOADING):
            self._membership.poll()

    def _next(self) -> ConsumerRecord | None:
        """Return the next record that `_fill` has found. In implicit mode, first accept the record that was
        returned before. Return None if the caller must call `_fill`, because there are no more records, or
        acknowledgements must be sent.
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
            with suppress(IllegalStateError):
                # `note` raises IllegalStateError if a commit has already sent an acknowledgement for this
                # record.
                self._acks.note(record[0], record[1], record[3], ACCEPT)
                self._flush_at = min(self._flush_at, time.monotonic() + _FLUSH_S)

    def _fill(self, timeout_ms: float) -> bool:
        """Send the stored acknowledgements, and wait up to `timeout_ms` for records for `_next`. Return
        whether there are records.
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
        """Send the stored acknowledgements. In implicit mode, first store ACCEPT for all other records of the
        last poll. Then release the acquired records that have no acknowledgement, and leave the group. The
        store stays open.

        A second call does nothing. A call in a forked child does nothing, nor does a call after the store was
        closed, because a store closes its consumers. If `close` was interrupted, another call does the
        remaining work.
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
                if self._acks.is_calling_back:
                    self._check()
                self._end(accepts)
        except StoreClosedError:
            if entered:
                raise
            # Another thread is closing the store, and that closes the consumer.

    def _is_ended(self) -> bool:
        """Return whether `close` has finished."""
        return self._guard.closed and not self._left_open

    def _end(self, autocommit: bool) -> None:
        """Close the consumer. If `autocommit` is True, and the mode is implicit, first accept the records of
        the last poll.
        """
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
        """Close the consumer's parts in order. After an interrupt, the next call continues with the part
        whose `close` was interrupted.
        """
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
        """Close the consumer. If the block has raised an exception, release the records of the last poll that
        have no acknowledgement.
        """
        self._close(kind is None)
