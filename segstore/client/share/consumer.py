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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from segstore import names
from segstore.client.consumer.base import Guard, alone
from segstore.client.consumer.config import deserialize_with
from segstore.client.consumer.ending import Ending
from segstore.client.consumer.metrics import Polled
from segstore.client.consumer.records import ConsumerRecord, Deserializers
from segstore.client.share.acknowledgements import (
    ACCEPT,
    RELEASE,
    Acknowledgements,
    HeldRecords,
    OnAcknowledged,
    batches,
)
from segstore.client.share.config import ShareConsumerConfig
from segstore.client.share.deliveries import At, Damage, Deliveries, Given, Made, Undelivered, Waiting
from segstore.client.share.in_store import ShareFetcher
from segstore.client.share.membership import ShareConsumerMembership
from segstore.client.share.metrics import ShareConsumerMetrics
from segstore.client.share.waiting import ShareBell, ShareWait
from segstore.config import arguments
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.topic import check_group
from segstore.coordinator.quotas import CONSUMER_BYTE_RATE, quotas
from segstore.coordinator.retriable import BACKOFF_MS, LOADING, back_off
from segstore.coordinator.share.core.values import AckBatch, AcknowledgeType
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    IllegalStateError,
    InvalidArgumentError,
    InvalidTypeError,
    ReadOnlyError,
    SegstoreError,
    StoreClosedError,
    WakeupError,
)
from segstore.mutex import calls_out
from segstore.storage.meta.topics import find_topic
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from segstore.client.share.settings import ShareConsumerSettings

_CLOSE_MS = 30_000
_FLUSH_S = 0.1  # how long an iteration may keep what it has accepted to itself
_OFFSET = itemgetter(ConsumerRecord._fields.index("offset"))
Kept = deque[Waiting | Damage]


class ShareConsumer:
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
        self._acks = Acknowledgements(
            self._acknowledge, lambda: self._coordinator.lock_timeout_ms(config.group_id)
        )
        parts = config.key_deserializer, config.value_deserializer
        self._deliveries = Deliveries(Deserializers(*map(deserialize_with, parts)))
        self._wait = ShareWait(store)
        self._current: ConsumerRecord | None = None  # of an iteration
        self._flush_at = math.inf
        self._bell = ShareBell(self._wait, self._coordinator, config.group_id)
        closes = [getattr(part, "close", None) for part in parts]
        self._left_open: list[Callable[[], object]] = [
            *(self._bell.cancel, self._acks.tell, self._deliveries.clear),
            *(close for close in closes if close is not None),
        ]
        if topics:
            self.subscribe(topics)
        self._ending = Ending(self)
        store._attach_client(self._ending)

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
            polled, held = _by_partition(given)
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
            _, held = _by_partition(given)
            records = (
                given[0].records if len(given) == 1 else [each for part in given for each in part.records]
            )
            self._metrics.left()
            if waiting is not None:  # last, as in `poll`
                self._deliveries.keep(waiting)
                self._acks.held = held
            return records

    def _poll(self, timeout_ms: float, max_records: int | None) -> tuple[list[Given], Kept | None]:
        """Return records, and what is to wait in memory once the application has them; None if that stays as
        it is.
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
        self._acks.tell()
        return self._find(most, want, deadline)

    def _limits(self, max_records: int | None) -> tuple[float, int]:
        """Return how many records a poll returns at most, and how many it asks for."""
        if max_records is not None:
            most = arguments.whole("max_records", max_records, 1)
            return most, min(most, self.config.max_poll_records)
        want = self.config.max_poll_records
        return (want if self.config.is_strict else math.inf), want

    def _find(self, most: float, want: int, deadline: float) -> tuple[list[Given], Kept | None]:
        """Return what is found until `deadline`, or until a signal handler closes the consumer, or another
        thread closes the store or asks for the guard.
        """
        guard, membership = self._guard, self._membership
        while True:
            if guard.ender is not None and guard.ending:
                guard.given_up = True
                return [], None
            if guard.asked:
                return [], None
            try:
                membership.poll()
            except LOADING:  # the next look asks again
                if not back_off(self._store, deadline):
                    return [], None
                continue
            self._wait.begin([*membership.partitions.values()])
            given, waiting, is_found = self._look(most, want)
            if given or guard.closed:
                return given, None if guard.closed else waiting
            self._check_woken()
            left = deadline - time.monotonic()
            if is_found:  # gaps only
                continue
            if left <= 0:
                return [], None
            self._sleep(left)

    def _sleep(self, left: float) -> None:
        wait_ms = min(self._membership.wait_ms(), self._fetcher.wait_ms())
        if self._fetcher.is_refused:
            wait_ms = min(wait_ms, BACKOFF_MS)
        self._wait.wait(min(left, wait_ms / 1000), is_deaf=self._fetcher.is_holding_back)

    def _look(self, most: float, want: int) -> tuple[list[Given], Kept, bool]:
        """Return records, what waits after them, and whether anything was acquired."""
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

    def _take(self, most: float) -> tuple[list[Given], Kept]:
        try:
            return self._deliveries.look(most)
        except Undelivered as failed:
            error = failed.error
            self._hold_failed(failed)
        try:
            raise error
        finally:
            del error  # the deserializer's error has this frame in its traceback

    def _hold_failed(self, failed: Undelivered) -> None:
        """Let the application acknowledge a record that could not be deserialized, which else is released."""
        offset = failed.error.offset
        held = self._acks.hold(failed.tp, failed.at, offset, None, failed.until)
        held.notes[offset] = RELEASE

    def _check(self) -> None:
        guard = self._guard
        if guard.closed or guard.ender is not None:
            guard.check()
        if self._acks.is_telling:
            raise IllegalStateError(
                "an acknowledgement commit callback may not call the share consumer, but for wakeup()"
            )

    def _check_woken(self) -> None:
        if self._wait.is_woken:
            self._wait.is_woken = False
            raise WakeupError("wakeup() was called")

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

    # --- acknowledgements ------------------------------------------------------------------------

    def acknowledge(
        self, record: ConsumerRecord, type: AcknowledgeType = AcknowledgeType.ACCEPT, *others: object
    ) -> None:
        """Note what became of a record of the last poll, in place of an earlier note: ACCEPT, it is done
        with; RELEASE, it is to be delivered again; REJECT, it is never to be delivered again; RENEW, its
        acquisition lock begins anew, and it comes again with the next poll. The note is sent by the next
        `poll`, `commit_sync`, `commit_async` or `close`.

        Raises IllegalStateError in implicit mode, and for a record that the last poll did not give, or whose
        acknowledgement was sent; InvalidArgumentError, InvalidTypeError.
        """
        guard = self._guard
        with guard:
            self._check()
            if others or not isinstance(record, ConsumerRecord):
                raise InvalidTypeError(
                    f"record must be a ConsumerRecord, not {type_name(record)}: by its place a record is "
                    "acknowledged by acknowledge_offset(topic, partition, offset, type)"
                )
            if not self._is_explicit:
                raise _implicit()
            self._acks.note(record[0], record[1], record[3], type)

    def acknowledge_offset(
        self, topic: str, partition: int, offset: int, type: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Do as `acknowledge` with a record of the last poll by its place; also with one for which that poll
        raised RecordDeserializationError, in both modes. Raises what `acknowledge` raises.
        """
        guard = self._guard
        with guard:
            self._check()
            if not isinstance(topic, str):
                raise InvalidTypeError(f"topic must be a str, not {type_name(topic)}")
            number = arguments.whole("partition", partition, 0)
            at = arguments.whole("offset", offset, 0)
            if not self._is_explicit and not self._acks.is_failed(topic, number, at):
                raise _implicit()
            self._acks.note(topic, number, at, type)

    def commit_sync(self, timeout_ms: float | None = None) -> dict[TopicPartition, SegstoreError | None]:
        """Send all acknowledgements that are noted, in implicit mode of all records of the last poll; return
        for each partition None once they are in the log, or the error after which none of them counts:
        InvalidRecordStateError if a lock has run out, StorageError, and others.

        Raises InvalidTypeError, ClientClosedError, StoreClosedError.
        """
        guard = self._guard
        with guard:
            self._check()
            if timeout_ms is not None:
                span(timeout_ms)
            if not self._is_explicit:
                self._acks.note_all()
            found = self._send()
            self._acks.tell()
            return found

    def commit_async(self) -> None:
        """Do as `commit_sync`; errors go to the acknowledgement commit callback, in the next `poll`,
        `commit_sync` or `close`.
        """
        guard = self._guard
        with guard:
            self._check()
            if not self._is_explicit:
                self._acks.note_all()
            self._send()

    def set_acknowledgement_commit_callback(self, callback: OnAcknowledged | None) -> None:
        """Have callback({partition: offsets}, error) called for each partition whose acknowledgements were
        sent, within `poll`, `commit_sync` and `close`; `error` is None if they count. What the callback
        raises goes to the application. The callback may call `wakeup` only. None: call nothing more.
        """
        guard = self._guard
        with guard:
            self._check()
            if callback is not None and not callable(callback):
                raise InvalidTypeError(f"callback must be callable, or None, not {type_name(callback)}")
            self._acks.callback = callback

    def _send(self) -> dict[TopicPartition, SegstoreError | None]:
        acks = self._acks
        sent, failed = acks.sent, acks.failed
        found = acks.send()
        if found:
            self._metrics.acknowledged(acks.sent - sent, acks.failed - failed)
        return found

    def _acknowledge(self, acks: Mapping[At, Sequence[AckBatch]]) -> Mapping[At, SegstoreError | None]:
        return self._coordinator.acknowledge(self.config.group_id, self._membership.member_id, acks)

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
        if self._store._context.forked:
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


def _check_keeps(store: Store, config: ShareConsumerConfig) -> None:
    """Raise ReadOnlyError, IllegalStateError unless this process keeps share groups: acquisition locks are
    memory of the process that writes the store.
    """
    if store.mode == "r":
        raise ReadOnlyError(
            f"group_id={config.group_id!r}: share groups belong to the process that writes {store.path}, "
            f'which was opened with mode="r" here: {_other_way(store)}'
        )
    store._check_keeps(f"ShareConsumer(group_id={config.group_id!r})")


def _other_way(store: Store) -> str:
    """Return how else a process that only reads the store gets records of a share group."""
    address = ""
    with suppress(OSError):
        address = store._context.files.lock_address(names.below(store.path, names.LOCK))
    if address:
        return f"join the group with a Kafka client at {address}, where that process serves it"
    return 'open it with "rw" if no other process does, or join with a Kafka client by segstore serve'


def span(timeout_ms: Any) -> float:
    """Return a time-out in ms. Raises InvalidTypeError, InvalidArgumentError."""
    found = arguments.milliseconds("timeout_ms", timeout_ms)
    if timeout_ms < 0:
        raise InvalidArgumentError(f"timeout_ms={timeout_ms}: must be at least 0")
    return found


def _by_partition(given: list[Given]) -> tuple[Polled, dict[TopicPartition, HeldRecords]]:
    """Return records by partition, and as records that the application has."""
    polled: Polled = {}
    held: dict[TopicPartition, HeldRecords] = {}
    for tp, at, records, until in given:
        by_offset: dict[int, ConsumerRecord | None] = dict(zip(map(_OFFSET, records), records, strict=True))
        there = held.get(tp)
        if there is None:
            polled[tp], held[tp] = records, HeldRecords(at, by_offset, until)
        else:
            polled[tp] = [*polled[tp], *records]
            there.records.update(by_offset)
            there.until = min(there.until, until)
    return polled, held


def _implicit() -> IllegalStateError:
    return IllegalStateError(
        'records are acknowledged one by one only with share_acknowledgement_mode="explicit"; in implicit '
        "mode the next poll, commit or close accepts them"
    )


def type_name(value: object) -> str:
    """Return the name of a value's type."""
    return type(value).__name__
