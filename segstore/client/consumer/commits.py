"""`Commits`: the offset commits of one consumer for the consumer's group: those that the application
requests, and automatic ones with `enable_auto_commit`.

On disk: nothing of its own; the group's coordinator writes the offsets. Threads: one, the consumer's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.membership import GroupMembership
from segstore.client.consumer.metrics import ConsumerInterceptors, GroupMetrics
from segstore.client.consumer.no_group import Offsets, OnCommit
from segstore.client.consumer.subscription import Subscription, topic_partition
from segstore.config import arguments
from segstore.coordinator.group.classic.member import monotonic_ms
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.retriable import when_loaded
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalGenerationError,
    InvalidTypeError,
    RebalanceInProgressError,
    RetriableError,
    SegstoreError,
    StaleMemberEpochError,
    StorageError,
    StoreClosedError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    copy_of,
)
from segstore.logger import Logger
from segstore.mutex import calls_out
from segstore.storage.store.store import Store

log = Logger("segstore")

_LEAST_SLEEP_MS = 10
_PATIENCE_MS = 10_000.0
"""How long, in ms, a member retries to commit the positions of partitions that it gives up."""
_NOT_COMMITTED = (
    CommitFailedError,
    RebalanceInProgressError,
    RetriableError,
    StorageError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
_NOT_VALID = (UnknownMemberIdError, IllegalGenerationError, StaleMemberEpochError, RebalanceInProgressError)
_LATE = (
    "the group has handed out its partitions anew since: poll() came later than max_poll_interval_ms={} "
    "after the one before, or not within a rebalance. Process fewer records a poll (max_poll_records), or "
    "allow more time"
)


class CommitFuture:
    """The finished future that `commit_async` returns, with kafka-python's methods."""

    is_done = True

    def __init__(self, exception: SegstoreError | None) -> None:
        self.exception, self.value = exception, None

    def succeeded(self) -> bool:
        """Return whether the offsets are committed."""
        return self.exception is None

    def failed(self) -> bool:
        """Return whether the commit failed."""
        return self.exception is not None

    @calls_out
    def add_callback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> CommitFuture:
        """Call f(*args, None, **kwargs) if the commit succeeded."""
        if self.exception is None:
            f(*args, None, **kwargs)
        return self

    @calls_out
    def add_errback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> CommitFuture:
        """Call f(*args, exception, **kwargs) if the commit failed."""
        if self.exception is not None:
            f(*args, self.exception, **kwargs)
        return self

    def add_both(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> CommitFuture:
        """Call f(*args, None or exception, **kwargs)."""
        return self.add_callback(f, *args, **kwargs).add_errback(f, *args, **kwargs)


class Commits:
    """The commits of one consumer. If the consumer uses `assign`, it commits without a member id. The
    coordinator allows such commits while the group has no members.
    """

    def __init__(
        self,
        store: Store,
        coordinator: GroupCoordinator,
        offsets: GroupOffsets,
        membership: GroupMembership,
        subscription: Subscription,
        config: ConsumerConfig,
        interceptors: ConsumerInterceptors,
        metrics: GroupMetrics,
    ) -> None:
        assert config.group_id is not None
        self._store = store
        self._coordinator, self._offsets, self._group = coordinator, offsets, config.group_id
        self._membership, self._subscription, self._config = membership, subscription, config
        self._interceptors, self._metrics = interceptors, metrics
        self._next = monotonic_ms() + config.auto_commit_interval_ms
        self._callbacks: deque[tuple[OnCommit, Offsets, SegstoreError | None]] = deque()

    # --- on request -------------------------------------------------------------------------------

    def commit(self, offsets: Offsets) -> None:
        """Commit offsets. Raises CommitFailedError, RebalanceInProgressError, FencedInstanceIdError,
        InvalidTypeError, and the errors of GroupOffsets.commit.
        """
        wanted = checked(offsets)
        if not wanted:
            return
        began = monotonic_ms()
        metadata = self._member()
        try:
            self._coordinator.commit(metadata, wanted)
        except _NOT_VALID as error:
            raise self._failed(error) from error
        self._metrics.committed(monotonic_ms() - began)
        self._interceptors.on_commit(wanted)

    def _member(self) -> ConsumerGroupMetadata:
        if not self._subscription.automatic:
            return ConsumerGroupMetadata(self._group)
        if self._membership.may_commit:
            return self._membership.metadata
        if self._membership.is_rebalancing:
            raise RebalanceInProgressError(
                f"group {self._group!r} is handing out its partitions: poll() until that is over, then commit"
            )
        raise CommitFailedError(
            f"this consumer is no member of group {self._group!r}: "
            + _LATE.format(self._config.max_poll_interval_ms)
        )

    def _failed(self, error: SegstoreError) -> SegstoreError:
        if self._subscription.automatic and self._membership.is_rebalancing:
            return RebalanceInProgressError(f"{error}; poll() until that is over, then commit")
        if self._subscription.automatic and not isinstance(error, RebalanceInProgressError):
            self._membership.out(error)
        late = _LATE.format(self._config.max_poll_interval_ms) if self._subscription.automatic else ""
        return CommitFailedError(f"{error}{'; ' if late else ''}{late}")

    def commit_async(self, offsets: Offsets, callback: OnCommit | None) -> CommitFuture:
        """Commit offsets at once. An error is stored in the returned future. `callback` is called in the next
        poll, commit or close, with two arguments: the offsets, and the error or None. Raises
        InvalidTypeError.
        """
        wanted = checked(offsets)
        failed: SegstoreError | None = None
        try:
            self.commit(wanted)
        except SegstoreError as error:
            # The future stores the copy, which has no traceback with frames of the application.
            failed = copy_of(error)
        if callback is not None:
            self._callbacks.append((callback, wanted, failed))
        return CommitFuture(failed)

    @calls_out
    def callbacks(self) -> None:
        """Call the waiting callbacks in order. If a callback raises an exception, `callbacks` raises the
        exception, and the next call of `callbacks` continues with the next callback.
        """
        while self._callbacks:
            callback, offsets, error = self._callbacks.popleft()
            callback(offsets, error)

    # --- automatic commits ----------------------------------------------------------------------------

    def auto(self) -> None:
        """Commit the positions if the auto-commit interval is over. Raises FencedInstanceIdError."""
        if self._config.enable_auto_commit and monotonic_ms() >= self._next:
            self.restart()
            self._positions(self._subscription.consumed(), closing=False)

    def restart(self) -> None:
        """Begin a new auto-commit interval."""
        self._next = monotonic_ms() + self._config.auto_commit_interval_ms

    def wait_ms(self) -> float:
        """Return the ms until `auto` is due."""
        if not self._config.enable_auto_commit:
            return math.inf
        # A consumer that waits has little to commit, so a commit may come up to _LEAST_SLEEP_MS too late.
        return max(self._next - monotonic_ms(), _LEAST_SLEEP_MS)

    def positions(self, only: Collection[TopicPartition] | None = None, closing: bool = False) -> None:
        """Commit the positions of all partitions, or only of the partitions in `only`, which the member will
        give up. Retry while the coordinator loads. If the commit fails, the error is logged, as in Kafka, and
        the records since the last commit will be read again. Raises FencedInstanceIdError unless `closing`.
        """
        consumed = self._subscription.consumed()
        if only is not None:
            consumed = {tp: consumed[tp] for tp in only if tp in consumed}
        self._positions(consumed, closing, _PATIENCE_MS)

    def _positions(self, consumed: Offsets, closing: bool, patience_ms: float = 0) -> None:
        is_out = self._subscription.automatic and not self._membership.may_commit
        if is_out or not consumed or not self._config.enable_auto_commit:
            return

        def commit() -> None:
            old = self._offsets.fetch(self._group, consumed)
            new = {tp: at for tp, at in consumed.items() if tp not in old or old[tp].offset != at.offset}
            self.commit(new)

        try:
            when_loaded(self._store, commit, lambda: None, patience_ms)
        except (FencedInstanceIdError, *_NOT_COMMITTED) as e:
            if isinstance(e, FencedInstanceIdError) and not closing:
                raise
            log.warning("automatic commit of group %s failed, records will be read again: %s", self._group, e)


def checked(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Convert the values of `offsets` to this package's OffsetAndMetadata. A value may be kafka-python's
    OffsetAndMetadata. Raises InvalidTypeError, InvalidArgumentError.
    """
    if not isinstance(offsets, Mapping):
        raise InvalidTypeError(f"offsets must be a dict, not {type(offsets).__name__}")
    found = {}
    for tp, at in offsets.items():
        if not isinstance(at, tuple) or not hasattr(at, "offset") or len(at) > len(OffsetAndMetadata._fields):
            raise InvalidTypeError(
                f"an offset to commit must be an OffsetAndMetadata, not {type(at).__name__}"
            )
        arguments.whole("offset", at.offset, 0)
        found[topic_partition(tp)] = OffsetAndMetadata(*at)
    return found
