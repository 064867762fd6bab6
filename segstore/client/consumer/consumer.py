"""`Consumer`: reads the records of a store's topics, as kafka-python's KafkaConsumer does.

This module has the methods that read. `seek_and_commit` has the methods for topics, positions and commits,
and `base` makes the consumer's parts. On disk: nothing of its own. Threads: one at a time; a second thread
gets ConcurrentModificationError.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from segstore.client.consumer.base import alone
from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.ending import ConsumerEnding
from segstore.client.consumer.fetcher import FetchedRecords
from segstore.client.consumer.metrics import Polled
from segstore.client.consumer.records import ConsumerRecord
from segstore.client.consumer.seek_and_commit import Assigning, Committing, Seeking
from segstore.client.consumer.tailing import given_of
from segstore.config import arguments
from segstore.config.options import shown
from segstore.coordinator.retriable import LOADING, back_off
from segstore.errors import (
    ClientClosedError,
    InvalidArgumentError,
    InvalidTypeError,
    StoreClosedError,
    copy_of,
)
from segstore.storage.store.store import Store
from segstore.threads import longest_sleep

if TYPE_CHECKING:
    import pyarrow
    from typing_extensions import Self, Unpack

    from segstore.client.consumer.settings import ConsumerSettings

T = TypeVar("T")


_USUAL_MS = 1 << 31


class Consumer(Assigning, Seeking, Committing):
    """A consumer of records from assigned partitions, or from all partitions of the topics it subscribed to.

    `settings` are kafka-python's, with its defaults; network settings are refused by name. With a group_id
    the consumer shares the partitions of its topics with the group's other members. Each member may be polled
    by a thread of its own, or one thread may poll several members one after another. Without a group_id the
    first `poll` after `subscribe` assigns all partitions of the topics, and later polls add new partitions.
    Iterating yields single records. A consumer is a context manager.
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = ConsumerConfig.defaults()
    """{setting: default}, as in kafka-python. Programs use the keys to find the settings that a consumer has.
    """

    def __init__(self, store: Store, *topics: str, **settings: Unpack[ConsumerSettings]) -> None:
        """Raises ConfigError, InvalidTypeError, UnknownTopicOrPartitionError."""
        super().__init__(store, settings)
        parts = self.config.key_deserializer, self.config.value_deserializer
        closes = [getattr(part, "close", None) for part in parts]
        self._left_open: list[Callable[[], object]] = [
            *(self._subscription.unsubscribe, self._iteration.clear, self._interceptors.close),
            *(close for close in closes if close is not None),
        ]
        if topics:
            self.subscribe(topics)
        self._ending = ConsumerEnding(self)
        store.attach_client(self._ending)

    def __repr__(self) -> str:
        return f"<Consumer {self.config.client_id} of {self._store!r}>"

    # --- records ----------------------------------------------------------------------------

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> Polled:
        """Return up to `max_records` (by default max_poll_records) records by partition. If there are no
        records, wait up to `timeout_ms` for new ones. Each poll begins with the partition after the last one
        that was read.

        The positions move to the next offset after the returned records. With `update_offsets=False` the
        positions stay, and the next poll returns the same records again unless the caller seeks. Raises
        NoOffsetForPartitionError, OffsetOutOfRangeError (both only with auto_offset_reset "none"),
        CorruptRecordError, RecordDeserializationError, StorageError, StoreClosedError, and
        UnknownTopicOrPartitionError for a partition that was assigned by `assign`. After an error the
        positions are unchanged.
        """
        guard = self._guard
        with guard:
            if guard.closed or guard.ender is not None:
                guard.check()
            most = self.config.max_poll_records
            if max_records is not None:
                most = arguments.whole("max_records", max_records, 1)
            if self._iteration.parts:
                self._iteration.clear()
            now = time.monotonic()
            usual = type(timeout_ms) is int and 0 <= timeout_ms <= _USUAL_MS
            deadline = now + timeout_ms / 1000 if usual else self._deadline(timeout_ms)
            self._metrics.polled(now)
            came = self._following.again(now, deadline)
            if came is None:
                return self._poll(most, deadline, update_offsets)
            polled, state, at, leader_epoch = came
            if polled and self._interceptors.all:
                polled = self._interceptors.on_consume(polled)
            # The positions are set after all other work: if an interrupt comes before that, the records count
            # as not read.
            if update_offsets and state is not None:
                state.position, state.leader_epoch, state.reset = at, leader_epoch, None
            return polled

    def _poll(self, most: int, deadline: float, update_offsets: bool) -> Polled:
        """Return new records. If there are none, wait for records until `deadline`."""
        given = self._wait(partial(self._fetcher.records, most), deadline, self._following.wait)
        polled = self._consumed(given)
        if update_offsets:
            for part in given:
                # The positions are set after all other work: if an interrupt comes before that, the records
                # count as not read.
                part.state.seek(part.at, part.leader_epoch)
        return polled

    @alone
    def poll_arrow(self, timeout_ms: float = 0) -> pyarrow.Table:
        """Return all records of a fetch as a pyarrow.Table: up to max_partition_fetch_bytes of each
        partition, and fetch_max_bytes in all. If there are no records, wait up to `timeout_ms` for new ones.
        If no record came, the table has no rows.

        Columns: topic (dictionary of int32 to string), partition (int32), offset and timestamp (int64, ms),
        key and value (binary, as stored: deserializers and interceptors are applied by `poll` only), headers
        (list of structs of key and value). Raises the errors of `poll`.
        """
        from segstore.client.consumer.arrow_tables import table

        self._iteration.clear()
        deadline = self._deadline(timeout_ms)
        self._metrics.polled(time.monotonic())
        fetched = self._wait(self._fetcher.columns, deadline, self._following.sleep)
        made = table([(part.tp, part.records) for part in fetched])
        for part in fetched:
            part.state.seek(part.records.next_offset, int(part.records.batches["leader_epoch"][-1]))
        return made

    def _deadline(self, timeout_ms: Any) -> float:
        try:
            timeout = float(timeout_ms)
        except (TypeError, ValueError):
            raise InvalidTypeError(f"timeout_ms must be a number, not {type(timeout_ms).__name__}") from None
        except OverflowError:
            raise InvalidArgumentError(f"timeout_ms={shown(timeout_ms)}: must fit a float") from None
        if not timeout >= 0:
            raise InvalidArgumentError(f"timeout_ms={timeout_ms}: must be at least 0")
        return time.monotonic() + timeout / 1000

    def _wait(
        self,
        look: Callable[[], list[T]],
        deadline: float,
        sleep: Callable[[float, float], list[T] | None],
    ) -> list[T]:
        """Call `look` and `sleep` alternately until one of them returns records, and return the records.
        `sleep` waits until a process publishes new log ends, or wakes waiting consumers for another reason;
        if `sleep` itself has read new records, it returns these records. Return an empty list after
        `deadline`. Return an empty list earlier if a listener or signal handler closes the consumer, or if
        another thread closes the store or waits for the consumer's lock.
        """
        subscription, coordination, guard = self._subscription, self._coordination, self._guard
        began = time.monotonic()
        while True:
            self._following.begin()
            if guard.ender is not None and guard.ending:
                guard.given_up = True
                return []
            if guard.asked:
                return []
            try:
                coordination.poll()
                if subscription.unresolved:
                    self._positions.resolve()
            except LOADING:
                # The coordinator still loads the group: call `poll` again after a pause.
                if not back_off(self._store, deadline):
                    return []
                continue
            found = look()
            if found or guard.closed:
                return found
            now = time.monotonic()
            if subscription.unresolved and self._may_resolve():
                continue
            if now >= deadline:
                return found
            longest_ms = longest_sleep(now - began) * 1000
            came = sleep(deadline, min(coordination.wait_ms(), self._fetcher.wait_ms(), longest_ms))
            if came:
                return came

    def _may_resolve(self) -> bool:
        """Return whether a partition has an open log, but no position. Its position was dropped because the
        records there had been deleted or truncated. `resolve` can find a new position at once.
        """
        states = self._subscription.states.values()
        return any(state.position is None and state.log is not None for state in states)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        """Return the next record. The iteration ends if no record comes within consumer_timeout_ms, or if the
        consumer is closed.
        """
        guard = self._guard
        with guard:
            if guard.closed:
                self._check_store()
            deadline = None
            while (record := self._iteration.take()) is None and not guard.closed:
                deadline = deadline or time.monotonic() + self.config.consumer_timeout_ms / 1000
                if not self._fill(deadline):
                    break
        if record is None:
            raise StopIteration
        return record

    def _fill(self, deadline: float) -> bool:
        """Fetch records for the iteration, and wait for them until `deadline`. Return whether there are
        records.
        """
        now = time.monotonic()
        self._metrics.polled(now)
        came = self._following.again(now, deadline)
        if came is None:
            records = partial(self._fetcher.records, self.config.max_poll_records)
            given = self._wait(records, deadline, self._following.wait)
        else:
            given = given_of(came)
        polled = self._consumed(given)
        for part in given:
            self._iteration.put(part, polled.get(part.tp, ()))
        return bool(given)

    def _consumed(self, given: list[FetchedRecords]) -> Polled:
        """Pass the records of these partitions through the interceptors, and return the result."""
        polled = {part.tp: part.records for part in given}
        return self._interceptors.on_consume(polled) if polled and self._interceptors.all else polled

    def _check_store(self) -> None:
        """Raise StoreClosedError if the consumer was closed because its store was closed. If the application
        closed the consumer, do nothing: the iteration ends.
        """
        refusal = self._guard.refusal()
        if isinstance(refusal, StoreClosedError):
            raise copy_of(refusal)

    # --- for AsyncConsumer ---------------------------------------------------------------------

    @alone
    def _update(self) -> None:
        """Update the assignment. If the consumer has no group, assign all partitions of its topics. If it has
        a group, begin to join the group.
        """
        with suppress(*LOADING):
            self._coordination.poll()

    @alone
    def _fill_alone(self, deadline: float) -> bool:
        return self._fill(deadline)

    def _take(self) -> ConsumerRecord | None:
        guard = self._guard
        with guard:
            if guard.closed:
                self._check_store()
                return None
            return self._iteration.take()

    def _give_back(self) -> None:
        """Make the next poll return the last poll's records again. If the consumer is closed, do nothing."""
        with contextlib.suppress(ClientClosedError, StoreClosedError):
            self._give_back_alone()

    @alone
    def _give_back_alone(self) -> None:
        self._fetcher.give_back()

    # --- the consumer itself -----------------------------------------------------------------

    @alone
    def metrics(self) -> dict[str, dict[str, float]]:
        """Return {group of metrics: {name: value}}, by Kafka's names."""
        return {**self._metrics.snapshot(), **self._coordination.metrics()}

    def bootstrap_connected(self) -> bool:
        """Return whether the consumer and its store are open; there is no broker to connect to."""
        return not (self._guard.closed or self._store.context.closed)

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """Leave the group and give up all partitions. The store stays open.

        After an interrupt call `close` again: it leaves the group, and closes deserializers and interceptors,
        as far as the interrupted call has not done so. A call after a complete `close` does nothing. Nor does
        a call in a forked child, or after the store was closed, because a store closes its consumers.
        """
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
                self._end(autocommit, timeout_ms)
        except StoreClosedError:
            if entered:
                raise
            # Another thread is closing the store, and that closes the consumer.

    def _is_ended(self) -> bool:
        """Return whether `close` has finished."""
        return self._guard.closed and not self._left_open

    def _end(self, autocommit: bool, timeout_ms: float | None = None) -> None:
        if self._guard.closed:
            self._close_parts()
            return
        try:
            self._coordination.close(autocommit, timeout_ms)
        finally:
            if self._coordination.left:
                self._guard.closed = True
                self._close_parts()

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
        self.close(autocommit=kind is None)
