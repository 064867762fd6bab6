"""`GroupCoordinator`: the groups of a store, and who looks at the clock for them.

On disk: a group's generation, members and assignment are records of `__consumer_offsets`, which `offsets`
writes: when a generation becomes stable, when a group becomes empty.
Threads: any. Each group has a lock, held while an offset is committed too: no commit slips past a rebalance.
Nothing waits here: who has to gets a ticket, and is woken in `store.wait` when there is news.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from segstore.client.groups.group import Group
from segstore.client.groups.kept import keep, restore
from segstore.client.groups.membership import (
    Joined,
    Joining,
    MemberInfo,
    MonotonicMs,
    State,
    Ticket,
    monotonic_ms,
)
from segstore.client.groups.offsets import GroupOffsets
from segstore.client.shared import shared
from segstore.client.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    NonEmptyGroupError,
    SegstoreError,
    StoreClosedError,
)
from segstore.storage.store import Store

log = logging.getLogger("segstore")


class _Held:
    """A group and its lock. `gone`: it was deleted, and whoever waited for the lock looks anew."""

    def __init__(self, group: Group) -> None:
        self.lock, self.group, self.gone = threading.RLock(), group, False


class GroupCoordinator:
    """Kafka's classic group coordinator (GroupMetadataManager). A shared part of its store."""

    def __init__(self, store: Store, clock: MonotonicMs = monotonic_ms) -> None:
        self._store, self._clock = store, clock
        self._config = store._writer().config
        self._offsets = shared(store, GroupOffsets)
        self._lock = threading.Lock()
        self._groups: dict[str, _Held] = {}
        self._alarm = float("inf")
        self._most_changes = 0  # of the groups that were forgotten
        self._closed = False
        self._offsets.empty_since = self._empty_since

    def now(self) -> float:
        """Ms of the clock by which members live."""
        return self._clock()

    # --- membership --------------------------------------------------------------------------

    def join(self, group_id: str, joining: Joining) -> Ticket[Joined]:
        """Join, or join again. InvalidGroupIdError, InvalidSessionTimeoutError, UnknownMemberIdError,
        FencedInstanceIdError, InconsistentGroupProtocolError, GroupMaxSizeReachedError.
        """
        self._check_joining(group_id, joining)
        with self._held(group_id) as group:
            return group.join(joining, self._clock())

    def sync(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        protocol: str,
        assignments: Mapping[str, bytes] | None = None,
        group_instance_id: str | None = None,
    ) -> Ticket[bytes]:
        """Ask for the assignment; the leader brings all of them. UnknownMemberIdError,
        IllegalGenerationError, RebalanceInProgressError, FencedInstanceIdError, StorageError: it may be
        brought again.
        """
        with self._held(group_id) as group:
            return group.sync(
                member_id, group_instance_id, generation, protocol, assignments or {}, self._clock()
            )

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, group_instance_id: str | None = None
    ) -> None:
        """Live on. RebalanceInProgressError: join again. UnknownMemberIdError, IllegalGenerationError,
        FencedInstanceIdError.
        """
        with self._held(group_id) as group:
            group.heartbeat(member_id, group_instance_id, generation, self._clock())

    def leave(self, group_id: str, member_id: str, group_instance_id: str | None = None) -> None:
        """Be no member any more: for a static one too. UnknownMemberIdError, FencedInstanceIdError."""
        with self._held(group_id) as group:
            group.leave(member_id, group_instance_id, self._clock())

    def _check_joining(self, group_id: str, joining: Joining) -> None:
        if not isinstance(group_id, str) or not group_id:
            raise InvalidGroupIdError(f"group_id={group_id!r}: must be a str that is not empty")
        least = self._config.group_min_session_timeout_ms
        most = self._config.group_max_session_timeout_ms
        if not least <= joining.session_timeout_ms <= most:
            raise InvalidSessionTimeoutError(
                f"session_timeout_ms={joining.session_timeout_ms}: must be from {least} to {most}, the "
                "store's group.min.session.timeout.ms and group.max.session.timeout.ms"
            )

    # --- commits -------------------------------------------------------------------------------

    def commit(
        self, metadata: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Commit what a member may. Errors as `check_commit`, and what GroupOffsets.commit raises."""
        group_id = _named(metadata)
        with self._held(group_id) as group:
            _check(group, metadata, self._clock())
            self._offsets.commit(group_id, offsets)

    def check_commit(
        self, group_id: str, generation: int, member_id: str, group_instance_id: str | None = None
    ) -> None:
        """Whether that member may commit now; without one (-1, "") only while the group has no members.
        UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError, RebalanceInProgressError.
        """
        with self._held(group_id) as group:
            group.check_commit(generation, member_id, group_instance_id, self._clock())

    def validate(self, metadata: ConsumerGroupMetadata) -> None:
        """Whether a transaction may commit offsets for that member, or for a group by its id alone.
        UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError.
        """
        with self.validated(metadata):
            pass

    @contextmanager
    def validated(self, metadata: ConsumerGroupMetadata) -> Iterator[None]:
        """As `validate`, and it stays so within the block."""
        with self._held(_named(metadata)) as group:
            _check(group, metadata, self._clock(), transactional=True)
            yield

    # --- what others ask -----------------------------------------------------------------------

    def state(self, group_id: str) -> State:
        """DEAD where there is no such group."""
        held = self._find(group_id)
        return State.DEAD if held is None else held.group.state

    def members(self, group_id: str) -> list[MemberInfo]:
        """The members and what they have; none where there is no such group."""
        held = self._find(group_id)
        if held is None:
            return []
        with held.lock:
            return held.group.infos()

    def generation(self, group_id: str) -> int:
        """The group's present generation, -1 where there is no such group."""
        held = self._find(group_id)
        return -1 if held is None else held.group.generation

    def changes(self, group_id: str) -> int:
        """Changes whenever a member should look what became of it. Takes no lock."""
        held = self._groups.get(group_id)
        return -1 if held is None else held.group.changes

    def groups(self) -> dict[str, State]:
        """All groups that have members, or had some, or offsets."""
        with self._lock:
            known = set(self._groups)
        return {group_id: self.state(group_id) for group_id in sorted(known | self._offsets.groups())}

    @contextmanager
    def emptied(self, group_id: str) -> Iterator[None]:
        """The group has no members, and gets none within the block. NonEmptyGroupError."""
        with self._held(group_id) as group:
            if group.members:
                raise NonEmptyGroupError(
                    f"group {group_id!r} is {group.state.value} and has {len(group.members)} members: "
                    "stop them first"
                )
            yield

    def forget(self, group_id: str) -> None:
        """The group was deleted: it begins anew, where it has no members."""
        with self._held(group_id) as group:
            if not group.members:
                group.state = State.DEAD
                with self._lock:
                    self._groups.pop(group_id).gone = True
                    self._most_changes = max(self._most_changes, group.changes)

    # --- groups and their locks ------------------------------------------------------------------

    def _find(self, group_id: str) -> _Held | None:
        held = self._groups.get(group_id)
        if held is None and group_id in self._offsets.groups():
            held = self._load(group_id)
        return held

    def _load(self, group_id: str) -> _Held:
        """The group as it was left; a new one where there was none."""
        with self._lock:
            held = self._groups.get(group_id)
            if held is None:
                group = Group(
                    group_id,
                    self._write,
                    delay_ms=self._config.group_initial_rebalance_delay_ms,
                    max_size=self._config.group_max_size,
                )
                record = self._offsets.group(group_id)
                if record is not None:
                    restore(group, record, self._clock(), self._store._context.clock())
                # Who has not heard that the group before was forgotten must not take this one for it.
                group.changes += self._most_changes + 1
                held = self._groups[group_id] = _Held(group)
        with held.lock:
            due = held.group.due()
        self._wake_at(due)  # members that were kept may never come back
        return held

    @contextmanager
    def _held(self, group_id: str) -> Iterator[Group]:
        """The group, with what is due done, under its lock; those that wait hear of changes.
        StoreClosedError.
        """
        held = self._locked(group_id)
        group, before = held.group, held.group.changes
        try:
            group.settle(self._clock())
            yield group
        finally:
            due, changed = group.due(), group.changes != before
            held.lock.release()
            if not self._closed:
                if changed:
                    self._store._nudge()
                self._wake_at(due)

    def _locked(self, group_id: str) -> _Held:
        while True:
            if self._closed:
                raise StoreClosedError(f"{self._store.path} is closed")
            held = self._groups.get(group_id) or self._load(group_id)
            held.lock.acquire()
            if not held.gone:
                return held
            held.lock.release()

    def _empty_since(self, group_id: str) -> int | None:
        """For GroupOffsets: see `offsets_expiry.EmptySince`."""
        held = self._groups.get(group_id)
        if held is None:
            record = self._offsets.group(group_id)
            if record is None or not record.members:
                return -1 if record is None else record.state_timestamp_ms
            held = self._load(group_id)
        return None if held.group.members else held.group.empty_since_ms

    def _write(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        record = keep(group, assignments, self._store._context.clock())
        if assignments:
            self._offsets.write_group(record)
            return
        try:
            self._offsets.write_group(record)
        except SegstoreError:
            # Nobody asked for it, and nothing but the number of a generation without members is lost.
            log.exception("group %s is empty now, which could not be written", group.group_id)

    # --- time ------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let happen what is due in all groups. The scheduler calls it; so may who owns the clock."""
        with self._lock:
            self._alarm = float("inf")
            there = list(self._groups)
        for group_id in there:
            with self._held(group_id):
                pass

    def _wake_at(self, due: float) -> None:
        with self._lock:
            if due >= self._alarm or self._closed:
                return
            self._alarm = due
        me = weakref.ref(self)

        def ring() -> None:
            coordinator = me()
            # One that was overtaken by an earlier ring does nothing: each that settles arms the next.
            if coordinator is not None and not coordinator._closed and coordinator._alarm == due:
                coordinator.settle()

        self._store._context.scheduler.after(max(due - self._clock(), 0) / 1000, ring)

    def close(self) -> None:
        """The store is being closed: nobody is a member any more. Static members may come back."""
        self._closed = True
        for held in list(self._groups.values()):
            with held.lock:
                for member in held.group.members.values():
                    member.fail(StoreClosedError(f"{self._store.path} is closed"))


def _named(metadata: ConsumerGroupMetadata) -> str:
    if not isinstance(metadata.group_id, str) or not metadata.group_id:
        raise InvalidGroupIdError(f"group_id={metadata.group_id!r}: must be a str that is not empty")
    return metadata.group_id


def _check(group: Group, metadata: ConsumerGroupMetadata, now: float, transactional: bool = False) -> None:
    group.check_commit(
        metadata.generation_id, metadata.member_id, metadata.group_instance_id, now, transactional
    )
