"""`Primary` serves the standby of a store. The standby is a second store that fetches all records from this
store. `Primary` keeps the standby's registration and fetch offsets. When the standby is promoted, `Primary`
writes the fence file, and from then on this store refuses appends (REPLICATION 7.4; Kafka: the controller's
registrations, and BeginQuorumEpoch).

Writes `.segstore/standby` and `.segstore/fence`. Threads: any; changes are made one at a time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore import names
from segstore.errors import (
    DemotedError,
    DuplicateBrokerRegistrationError,
    FencedLeaderEpochError,
    InvalidRequestError,
    NotLeaderOrFollowerError,
    SegstoreError,
)
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.context import StoreContext, os_errors
from segstore.storage.log.lease_term import LeaseTerm
from segstore.storage.log.standby_acks import StandbyAcks
from segstore.storage.meta.fence import FENCE, Fence
from segstore.storage.meta.lag_note import PRIMARY
from segstore.storage.meta.standby_registration import NOBODY, REGISTRATION, StandbyRegistration
from segstore.storage.meta.store_format import has_living_members
from segstore.storage.store.lag_keeper import EVERY, LagKeeper
from segstore.storage.store.replica_lags import ReplicaLag, bytes_from

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from segstore.storage.log.partition import Partition
    from segstore.storage.meta.topic_info import TopicInfo
    from segstore.storage.store.partitions import Partitions

log = Logger("segstore")
_STEP_BITS = 36  # bits of the random step from one broker epoch to the next; an int64 has room for 2^26 steps
STANDBY_ID = 2
"""The standby's node id on the wire. The primary has node id 1."""
_Key = tuple[str, int]


class Reached(NamedTuple):
    """The fetch position of a standby in a partition: the standby has all records below `offset`.
    `caught_up_ms` (monotonic clock) is the time of the standby's last fetch from the log end offset; if there
    was no such fetch, the time of its first fetch.
    """

    offset: int
    caught_up_ms: int


# `_reached(...)` does the same as `Reached(*...)`, but faster.
_reached: Callable[[tuple[Any, ...]], Reached] = partial(tuple.__new__, Reached)


def check_not_fenced(files_of: StoreContext) -> None:
    """Raise DemotedError if the directory has a fence file. Raises CorruptCheckpointError, OSError if the
    file can't be read.
    """
    fence = FENCE.read(files_of.files, files_of.root)
    if fence is not None:
        raise DemotedError(fence.message(files_of.root))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Primary:
    """Keeps the registration of one store's standby. `topics()` returns all topics by name. `partitions()`
    returns the open partitions. Appends with acks=all wait for a standby in sync mode. A standby that has not
    fetched for `lag_time_max_ms` counts as lost (Kafka: replica.lag.time.max.ms).
    """

    def __init__(
        self,
        context: StoreContext,
        lag_time_max_ms: int,
        root_names: Collection[str],
        topics: Callable[[], Mapping[str, TopicInfo]],
        partitions: Callable[[], Partitions],
    ) -> None:
        """Read the registration. Raises CorruptCheckpointError, OSError."""
        self._context, self._topics, self._partitions = context, topics, partitions
        self._lag_time_max_ms = lag_time_max_ms
        self._reached: dict[_Key, Reached] = {}
        self._fetched_ms: int | None = None
        self.fence: Fence | None = None
        known = f"{names.OURS}/{names.STANDBY}" in root_names
        held = REGISTRATION.read(context.files, context.root) if known else None
        self.registration = NOBODY if held is None else held
        self._term: LeaseTerm | None = None
        self._locks: dict[str, Mutex] = {}
        self._on_followed: Callable[[], None] = lambda: None
        self._reregister_above: int | None = None
        """The broker epoch of the last registration before `ask_standby`: a fetch must have a larger broker
        epoch. None if no new registration is required.
        """
        self._keeper: LagKeeper | None = None
        self._opened_ms, self._is_lost = _now_ms(), False

    @property
    def _changing(self) -> Mutex:
        """Return the lock that is held while the registration or the fence changes."""
        # The lock is made at the first change, because few stores have a standby.
        return self._locks.setdefault("changing", Mutex())

    # --- partitions ---------------------------------------------------------------------------

    def opened(self, partition: Partition) -> None:
        """Make a partition that was just opened obey the sync mode, the lease term and the fence. The caller
        holds the store's lock.
        """
        if self.registration.sync:
            self._wait_for_standby(partition)
        partition.writer.term = self._term
        if self.fence is not None:
            self._close_to_appends(partition)

    def _away(self) -> str:
        last = self._fetched_ms
        if last is None:
            return "the standby has not fetched since this store was opened"
        silent = _now_ms() - last
        return f"the standby has not fetched for {silent} ms" if silent > self._lag_time_max_ms else ""

    def _close_to_appends(self, partition: Partition) -> None:
        assert self.fence is not None
        with os_errors(), partition.token:
            partition.writer.recall()
            partition.writer.demoted = self.fence.message(self._context.root)
            partition.writer.follows = True
        if isinstance(partition.acks, StandbyAcks):
            partition.acks.demote()

    # --- registration -------------------------------------------------------------------------

    def register(self, directory_id: str, sync: bool, peer: str = "") -> int:
        """Register a standby at the address `peer`, or register the standby anew. Return the standby's new
        broker epoch. Raises DemotedError, StorageError; DuplicateBrokerRegistrationError if another directory
        is registered; InvalidRequestError if the mode would change from sync to async, or if the mode is sync
        and the store is shared.
        """
        with self._changing, os_errors():
            before = self.registration
            if self.fence is not None and not self.hands_over(directory_id, sync):
                raise DemotedError(self.fence.message(self._context.root))
            if before.is_there and before.directory_id != directory_id:
                raise DuplicateBrokerRegistrationError(
                    f"{self._context.root} has a standby, directory {before.directory_id}, and "
                    f"{directory_id} is another one: `segstore demote --standby` takes the first one away"
                )
            if before.sync and not sync:
                raise InvalidRequestError(
                    "the standby is in sync mode: `segstore demote --standby` takes it away, then it may "
                    "follow in async mode"
                )
            if sync and has_living_members(self._context.files, self._context.root):
                raise InvalidRequestError(
                    f"{self._context.root} is shared, and appends of guests would not wait for a standby in "
                    "sync mode: it may follow in async mode"
                )
            # The step is random, so that no other process can guess the broker epoch, which identifies the
            # standby in its fetches.
            step = 1 + (uuid.uuid4().int >> 128 - _STEP_BITS)
            made = StandbyRegistration(directory_id, sync, before.broker_epoch + step)
            with self._context.reserve:
                REGISTRATION.write(self._context.files, self._context.root, made)
            if sync and not before.sync:
                self._begin_sync(made)
            self.registration = made
            self.begin_notes()
        mode = "sync" if sync else "async"
        told = log.info if before.directory_id == directory_id else log.warning
        at = f" at {peer}" if peer else ""
        told("%s: standby %s%s is registered, in %s mode", self._context.root, directory_id, at, mode)
        return made.broker_epoch

    def hands_over(self, directory_id: str, sync: bool) -> bool:
        """Return whether the standby with this directory id has fenced the store, and is registered in this
        mode. This standby may register anew, because it must still fetch the last records.
        """
        held, fence = self.registration, self.fence
        known = (held.directory_id, held.sync) == (directory_id, sync)
        return fence is not None and fence.directory_id == directory_id and known

    def _begin_sync(self, made: StandbyRegistration) -> None:
        """Make later appends with acks=all wait for the standby. The high watermark begins at the log's end,
        so that readers still see all records that they saw before.
        """
        partitions = self._partitions()
        with partitions.lock:
            self._fetched_ms = _now_ms()
            partitions.begin_sync()
            partitions.on_opened = self.opened
            self.registration = made
            for partition in partitions.all_open():
                with partition.token:
                    # `acks` is set before the high watermark, because an append above the high watermark
                    # waits by means of `acks`.
                    self._wait_for_standby(partition)
                    partition.visible.begin_replica(partition.segments.next_offset)

    def _wait_for_standby(self, partition: Partition) -> None:
        partition.acks, partition.tail.has_standby = StandbyAcks(partition, self._away), True

    def unregister(self) -> bool:
        """Remove the standby's registration, on the operator's command. Return whether a standby was
        registered. If the standby was in sync mode, a new leader epoch begins in each partition, and appends
        with acks=all no longer wait. Raises DemotedError, StorageError.
        """
        with self._changing, os_errors():
            before = self.registration
            if self.fence is not None:
                raise DemotedError(self.fence.message(self._context.root))
            if not before.is_there:
                return False
            if before.sync:
                self._begin_epochs(lambda before: before + 1)
            gone = replace(before, directory_id="", sync=False)
            with self._context.reserve:
                REGISTRATION.write(self._context.files, self._context.root, gone)
            self.registration = gone
            self._reached.clear()
            if before.sync:
                self._end_sync()
        log.warning("%s: standby %s was taken away", self._context.root, before.directory_id)
        return True

    def _begin_epochs(self, after: Callable[[int], int]) -> None:
        """Begin the leader epoch `after(present epoch)` in each partition whose present epoch is smaller."""
        # By the new epoch a returning standby notices that the leadership has changed.
        partitions = self._partitions()
        for topic, number in self._keys():
            before = partitions.get(topic, number).writer.epoch
            if (epoch := after(before)) > before:
                partitions.begin_epoch(topic, number, epoch)

    def _end_sync(self) -> None:
        partitions = self._partitions()
        with partitions.lock:
            partitions.end_sync()
            for partition in partitions.all_open():
                if isinstance(partition.acks, StandbyAcks):
                    partition.acks.end()

    def _keys(self) -> list[_Key]:
        return [(info.name, number) for info in self._topics().values() for number in info.partition_ids]

    # --- fetches ------------------------------------------------------------------------------

    def check_replica(self, replica: int, broker_epoch: int) -> bool:
        """Return whether `replica`, the replica id of a fetch, is the id of a registered standby. Raises
        NotLeaderOrFollowerError if the standby must register anew, or if the fetch does not have the
        registered broker epoch (R8, KIP-903).
        """
        registration = self.registration
        if replica != STANDBY_ID or not registration.is_there:
            return False
        if (floor := self._reregister_above) is not None and broker_epoch <= floor:
            raise NotLeaderOrFollowerError(
                f"replica {replica} must register anew: broker epoch {broker_epoch}"
            )
        if broker_epoch != registration.broker_epoch:
            raise NotLeaderOrFollowerError(
                f"replica {replica} fetches with broker epoch {broker_epoch}, but "
                f"{registration.broker_epoch} is registered"
            )
        if floor is not None:
            self._reregister_above = None
            self._on_followed()
        return True

    def fetched(self, key: _Key, partition: Partition, offset: int) -> None:
        """Record that the standby has all records below `offset`, the offset of its fetch (R17, R18)."""
        visible = partition.visible
        end = visible.log_end_offset
        if not visible.start_offset <= offset <= end:
            return
        now = self._fetched_ms = time.monotonic_ns() // 1_000_000
        before = self._reached.get(key)
        caught_up = now if offset >= end or before is None else before.caught_up_ms
        self._reached[key] = _reached((offset, caught_up))
        acks = partition.acks
        if isinstance(acks, StandbyAcks):
            acks.fetched(offset)

    def lags(self) -> dict[_Key, ReplicaLag]:
        """Return the standby's lag in each partition that it has fetched, by (topic, partition). Raises
        StorageError.
        """
        now, found, partitions = _now_ms(), dict[_Key, ReplicaLag](), self._partitions()
        for key, (offset, caught_up_ms) in list(self._reached.items()):
            if key[0] not in self._topics():
                continue
            written = partitions.get(*key).visible.written
            records = max(written.end_offset - offset, 0)
            found[key] = (
                ReplicaLag(records, bytes_from(written, offset), now - caught_up_ms)
                if records
                else ReplicaLag(0, 0, 0)
            )
        return found

    def begin_notes(self) -> None:
        """Write the standby's lag to `.segstore/lags` every second from now on, for other processes."""
        if self._keeper is None:
            self._keeper = LagKeeper(self._context, PRIMARY, self._lag_time_max_ms)
            self._context.scheduler.every(EVERY, self._note)

    def _note(self) -> None:
        """Write the standby's lag to `.segstore/lags`, for other processes."""
        held, keeper = self.registration, self._keeper
        if held.is_there and keeper is not None:
            away = self._away()
            self._log_loss(away, held.sync)
            # The error may mean that a topic was deleted: the next call of `_note` leaves the topic out.
            with suppress(SegstoreError):
                keeper.note(held.directory_id, away, self.lags())

    def _log_loss(self, away: str, sync: bool) -> None:
        """Log the loss of the standby, for the reason `away`, unless the store was demoted; log its return if
        `away` is "".
        """
        last = self._opened_ms if self._fetched_ms is None else self._fetched_ms
        is_lost = bool(away) and self.fence is None and _now_ms() - last > self._lag_time_max_ms
        was_lost, self._is_lost = self._is_lost, is_lost
        if is_lost and not was_lost:
            waits = ": appends with acks=all wait for it" if sync else ""
            log.warning("%s: %s%s", self._context.root, away, waits)
        elif was_lost and not away:
            log.warning("%s: the standby fetches again", self._context.root)

    # --- a lease ------------------------------------------------------------------------------

    def lead_by(self, term: LeaseTerm, on_followed: Callable[[], None]) -> None:
        """Accept appends only during the lease term, the time for which the lease is held. `on_followed` is
        called at the standby's first fetch after `ask_standby`. Raises StorageError.
        """
        with self._changing, os_errors():
            partitions = self._partitions()
            with partitions.lock:
                self._term, self._on_followed = term, on_followed
                partitions.on_opened = self.opened
            self._close_by(term.why)
            for partition in partitions.all_open():
                with partition.token:
                    partition.writer.recall()
                    partition.writer.term = term

    def closed_by(self, why: str) -> str:
        """Return the text of the error for appends while the primary has no lease; `why` is the reason."""
        return f"{self._context.root} takes no appends: {why}"

    def let_go(self, why: str) -> None:
        """Refuse all changes with the reason `why`, because the lease term is over. Appends that wait for
        acks=all fail.
        """
        with self._changing:
            self._close_by(why)

    def _close_by(self, why: str) -> None:
        if self.fence is None:
            self._context.demoted = why
        for partition in self._partitions().all_open():
            if isinstance(partition.acks, StandbyAcks):
                partition.acks.demote()

    def go_on(self) -> None:
        """Accept changes again, because a lease term has begun."""
        with self._changing:
            if self.fence is not None:
                return
            self._context.demoted = ""
            for partition in self._partitions().all_open():
                if isinstance(partition.acks, StandbyAcks):
                    partition.acks.go_on()

    def ask_standby(self) -> None:
        """Require the standby, if there is one, to register anew and to fetch."""
        held = self.registration
        self._reregister_above = held.broker_epoch if held.is_there else None

    @property
    def is_followed(self) -> bool:
        """Return whether the standby has fetched after `ask_standby`; True if there is no standby."""
        return self._reregister_above is None or not self.registration.is_there

    def begin_epochs(self, epoch: int) -> None:
        """Begin the leader epoch `epoch`, durably, in each partition whose present epoch is smaller. Raises
        StorageError.
        """
        with self._changing, os_errors():
            self._begin_epochs(lambda _: epoch)

    # --- the fence ----------------------------------------------------------------------------

    def demote(self, fence: Fence) -> None:
        """Write the fence file, and refuse appends and changes of topics from now on, even after the next
        open. A second call with the same leader epoch and directory changes nothing. Raises StorageError;
        InvalidRequestError if the fence's directory is not the registered standby's directory;
        FencedLeaderEpochError if the fence's epoch is not above all epochs of this store. After the last two
        errors nothing is changed.
        """
        with self._changing, os_errors():
            held, registered = self.fence, self.registration
            if not registered.is_there or registered.directory_id != fence.directory_id:
                raise InvalidRequestError(
                    f"directory {fence.directory_id!r} is not that of the standby of {self._context.root}"
                )
            if held is not None and (held.leader_epoch, held.directory_id) == (
                fence.leader_epoch,
                fence.directory_id,
            ):
                return
            if fence.leader_epoch <= (known := self.largest_epoch()):
                raise FencedLeaderEpochError(
                    f"leader epoch {fence.leader_epoch}: this store knows {known}, which is no smaller"
                )
            with self._context.reserve:
                FENCE.write(self._context.files, self._context.root, fence)
            partitions = self._partitions()
            with partitions.lock:  # while this lock is held, no topic is changed, and no partition is opened
                self.fence = fence
                partitions.on_opened = self.opened
                self._context.demoted = fence.message(self._context.root)
            for partition in partitions.all_open():
                self._close_to_appends(partition)
        log.error("%s", fence.message(self._context.root))

    def largest_epoch(self) -> int:
        """Return the largest leader epoch of the partitions and of the fence. Raises StorageError."""
        epochs = [self._partitions().get(*key).writer.epoch for key in self._keys()]
        return max([-1 if self.fence is None else self.fence.leader_epoch, *epochs])
