"""`ShareParts`: the base of `ShareConsumer`. It makes and connects the consumer's parts, and finds the
records of a poll.

On disk: nothing of its own. Threads: one at a time, the consumer's.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any

from segstore import names
from segstore.client.consumer.base import Guard
from segstore.client.consumer.config import deserialize_with
from segstore.client.consumer.metrics import Polled
from segstore.client.consumer.records import ConsumerRecord, Deserializers
from segstore.client.share.acknowledgements import (
    RELEASE,
    Acknowledgements,
    HeldRecords,
)
from segstore.client.share.config import ShareConsumerConfig
from segstore.client.share.deliveries import Deliveries, PendingError, PolledRecords, Undelivered, Waiting
from segstore.client.share.in_store import ShareFetcher
from segstore.client.share.membership import ShareConsumerMembership
from segstore.client.share.metrics import ShareConsumerMetrics
from segstore.client.share.waiting import ShareBell, ShareWait
from segstore.config import arguments
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.topic import check_group
from segstore.coordinator.quotas import CONSUMER_BYTE_RATE, quotas
from segstore.coordinator.retriable import BACKOFF_MS, LOADING, back_off
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    IllegalStateError,
    InvalidArgumentError,
    InvalidTypeError,
    ReadOnlyError,
    SegstoreError,
    WakeupError,
)
from segstore.storage.store.store import Store
from segstore.threads import longest_sleep

_OFFSET = itemgetter(ConsumerRecord._fields.index("offset"))
Kept = deque[Waiting | PendingError]


class ShareParts:
    """The base of `ShareConsumer`: makes and connects the parts of the consumer."""

    def __init__(self, store: Store, settings: Mapping[str, Any]) -> None:
        """Raises ConfigError, InvalidGroupIdError, InvalidTypeError. Raises ReadOnlyError for a store that
        was opened "r", and IllegalStateError in a guest of a shared store.
        """
        if not isinstance(store, Store):
            raise InvalidTypeError(
                f"store must be a Store, as segstore.open() gives, not {type(store).__name__}"
            )
        self.config = config = ShareConsumerConfig.parse(settings)
        _check_keeps(store, config)
        check_group(config.group_id)
        self._store, self._guard, self._is_explicit = store, Guard(store.path), config.is_explicit
        self._groups = shared(store, GroupCoordinator)
        self._coordinator = shared(store, ShareCoordinator)
        self._metrics = ShareConsumerMetrics(config)
        self._membership = ShareConsumerMembership(store, self._groups, config, self._metrics)
        throttle = quotas(store).throttle(CONSUMER_BYTE_RATE, config.client_id)
        self._fetcher = ShareFetcher(
            self._coordinator, self._membership.member_id, config, self._metrics, throttle
        )
        # The parts get partial functions. Bound methods of this object would form a reference cycle, which
        # would keep a dropped consumer, and its membership, alive.
        self._acknowledge = partial(
            self._coordinator.acknowledge, config.group_id, self._membership.member_id
        )
        lock_ms = partial(self._coordinator.lock_timeout_ms, config.group_id)
        self._acks = Acknowledgements(self._acknowledge, lock_ms)
        parts = config.key_deserializer, config.value_deserializer
        self._deliveries = Deliveries(Deserializers(*map(deserialize_with, parts)))
        self._wait = ShareWait(store)
        # `_current` is the last record that an iteration has returned.
        self._current: ConsumerRecord | None = None
        self._flush_at = math.inf
        self._bell = ShareBell(self._wait, self._coordinator, config.group_id)
        closes = [getattr(part, "close", None) for part in parts]
        self._left_open: list[Callable[[], object]] = [
            *(self._bell.cancel, self._acks.run_callbacks, self._deliveries.clear),
            *(close for close in closes if close is not None),
        ]

    # --- a poll -----------------------------------------------------------------------------------

    def _poll(self, timeout_ms: float, max_records: int | None) -> tuple[list[PolledRecords], Kept | None]:
        """Return (records, queue). `queue` has the deliveries that remain after these records, or is None if
        the queue stays as it is. The caller must pass the queue to `Deliveries.keep` as soon as the
        application has the records.
        """
        most, want = self._limits(max_records)
        deadline = time.monotonic() + span(timeout_ms) / 1000
        self._metrics.polled()
        if self._membership.topics is None:
            raise IllegalStateError("the share consumer is not subscribed to topics: call subscribe() first")
        self._check_woken()
        if self._is_explicit and self._acks.has_unacknowledged:
            raise IllegalStateError("All records must be acknowledged in explicit acknowledgement mode.")
        if not self._is_explicit:
            self._acks.note_all()
        self._send()
        self._acks.run_callbacks()
        return self._find(most, want, deadline)

    def _limits(self, max_records: int | None) -> tuple[float, int]:
        """Return (the most records that a poll may return, the number of records that a poll tries to
        acquire).
        """
        if max_records is not None:
            most = arguments.whole("max_records", max_records, 1)
            return most, min(most, self.config.max_poll_records)
        want = self.config.max_poll_records
        return (want if self.config.is_strict else math.inf), want

    def _find(self, most: float, want: int, deadline: float) -> tuple[list[PolledRecords], Kept | None]:
        """Wait for records until `deadline`, and return them as `_poll` does. Return no records if a signal
        handler closes the consumer, or if another thread closes the store or waits for the consumer's lock.
        """
        guard, membership, began = self._guard, self._membership, time.monotonic()
        while True:
            if guard.ender is not None and guard.ending:
                guard.given_up = True
                return [], None
            if guard.asked:
                return [], None
            try:
                membership.poll()
            except LOADING:
                # The coordinator still loads the group: call `poll` again after a pause.
                if not back_off(self._store, deadline):
                    return [], None
                continue
            self._wait.begin([*membership.partitions.values()])
            given, waiting, is_found = self._look(most, want)
            if given or guard.closed:
                return given, None if guard.closed else waiting
            self._check_woken()
            now = time.monotonic()
            if is_found:
                # All acquired offsets were gaps, so this loop acquires again at once.
                continue
            if now >= deadline:
                return [], None
            self._sleep(deadline - now, longest_sleep(now - began) * 1000)

    def _sleep(self, left: float, longest_ms: float) -> None:
        wait_ms = min(self._membership.wait_ms(), self._fetcher.wait_ms(), longest_ms)
        if self._fetcher.is_refused:
            wait_ms = min(wait_ms, BACKOFF_MS)
        self._wait.wait(min(left, wait_ms / 1000), is_deaf=self._fetcher.is_holding_back)

    def _look(self, most: float, want: int) -> tuple[list[PolledRecords], Kept, bool]:
        """Return (records, queue, whether another call may find more). `queue` has the deliveries that remain
        after the records. The last member is True if records were returned, or offsets were acquired.
        """
        renewed = self._acks.renewed
        if renewed:
            self._deliveries.put_back([*renewed])
            renewed.clear()
        if self._deliveries:
            given, waiting = self._take(most)
            if given:
                return given, waiting, True
        self._deliveries.add(self._fetcher.fetch([*self._membership.partitions], want))
        given, waiting = self._take(most)
        return given, waiting, self._fetcher.has_acquired

    def _take(self, most: float) -> tuple[list[PolledRecords], Kept]:
        try:
            return self._deliveries.look(most)
        except Undelivered as failed:
            error = failed.error
            self._hold_failed(failed)
        try:
            raise error
        finally:
            # The traceback of the error refers to this frame, which refers to the error: `del` breaks this
            # cycle.
            del error

    def _hold_failed(self, failed: Undelivered) -> None:
        """Store RELEASE for a record that could not be deserialized. The application may call
        `acknowledge_offset` to replace RELEASE.
        """
        offset = failed.error.offset
        held = self._acks.hold(failed.tp, failed.at, offset, None, failed.until)
        held.notes[offset] = RELEASE

    def _check(self) -> None:
        guard = self._guard
        if guard.closed or guard.ender is not None:
            guard.check()
        if self._acks.is_calling_back:
            raise IllegalStateError(
                "an acknowledgement commit callback may not call the share consumer, but for wakeup()"
            )

    def _check_woken(self) -> None:
        if self._wait.is_woken:
            self._wait.is_woken = False
            raise WakeupError("wakeup() was called")

    # --- acknowledgements -------------------------------------------------------------------------

    def _send(self) -> dict[TopicPartition, SegstoreError | None]:
        acks = self._acks
        sent, failed = acks.sent, acks.failed
        found = acks.send()
        if found:
            self._metrics.acknowledged(acks.sent - sent, acks.failed - failed)
        return found


def _check_keeps(store: Store, config: ShareConsumerConfig) -> None:
    """Raise ReadOnlyError or IllegalStateError unless this process writes the store. The acquisition locks of
    share groups are in the memory of the process that writes.
    """
    if store.mode == "r":
        raise ReadOnlyError(
            f"group_id={config.group_id!r}: share groups belong to the process that writes {store.path}, "
            f'which was opened with mode="r" here: {_other_way(store)}'
        )
    store.check_keeps(f"ShareConsumer(group_id={config.group_id!r})")


def _other_way(store: Store) -> str:
    """Return advice on how a process that only reads the store can join a share group."""
    address = ""
    with suppress(OSError):
        address = store.context.files.lock_address(names.below(store.path, names.LOCK))
    if address:
        return f"join the group with a Kafka client at {address}, where that process serves it"
    return 'open it with "rw" if no other process does, or join with a Kafka client by segstore serve'


def span(timeout_ms: Any) -> float:
    """Check a time-out in ms, and return it as a float. Raises InvalidTypeError, InvalidArgumentError."""
    milliseconds = arguments.milliseconds("timeout_ms", timeout_ms)
    if timeout_ms < 0:
        raise InvalidArgumentError(f"timeout_ms={timeout_ms}: must be at least 0")
    return milliseconds


def by_partition(given: list[PolledRecords]) -> tuple[Polled, dict[TopicPartition, HeldRecords]]:
    """Return a poll's records by partition, and the same records as HeldRecords."""
    polled: Polled = {}
    held: dict[TopicPartition, HeldRecords] = {}
    for tp, at, records, until in given:
        by_offset: dict[int, ConsumerRecord | None] = dict(zip(map(_OFFSET, records), records, strict=True))
        earlier = held.get(tp)
        if earlier is None:
            polled[tp], held[tp] = records, HeldRecords(at, by_offset, until)
        else:
            polled[tp] = [*polled[tp], *records]
            earlier.records.update(by_offset)
            earlier.until = min(earlier.until, until)
    return polled, held


def type_name(value: object) -> str:
    """Return the name of a value's type."""
    return type(value).__name__
