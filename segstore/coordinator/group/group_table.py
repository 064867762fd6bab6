"""`GroupTable`: the groups of a store in memory, each behind a lock of its own.

On disk: a group's generation, members and assignment are records of `__consumer_offsets`. They are read
when the group is first asked for, and written when the group says so.
Threads: any. Whoever reads or changes a group holds its lock; the lock of the table is held only for a
look-up. Nobody waits long for a group: while it waits for the replicas of its last write, and until it is
known what has become of that, requests get OffsetNotAvailableError, and may be made again (Kafka:
COORDINATOR_LOAD_IN_PROGRESS). No interrupt leaves a group half changed: requests of the main thread run in a
thread where no signal handler runs, in the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from segstore.coordinator.alarm import Alarm
from segstore.coordinator.group.classic.group import ClassicGroup
from segstore.coordinator.group.classic.member import (
    ClassicGroupMember,
    JoinGroupResult,
    Joining,
    MonotonicMs,
    Ticket,
)
from segstore.coordinator.group.classic.record import keep, restore
from segstore.coordinator.group.consumers.group import ConsumerGroup
from segstore.coordinator.group.consumers.keeper import RETRY_MS, ConsumerGroupSettings, Outside
from segstore.coordinator.group.consumers.membership import ConsumerMembership
from segstore.coordinator.group.consumers.topics import AssignableTopics
from segstore.coordinator.group.held import GroupEntry
from segstore.coordinator.group.migration import classic_member, downgrade, stand_in, upgraded
from segstore.coordinator.group.share.membership import ShareMembership
from segstore.coordinator.group.share.share_groups import ShareGroups
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.offsets.consumer_schema import Change
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.retriable import may_be_written, passes
from segstore.errors import (
    GroupNotFoundError,
    InconsistentGroupProtocolError,
    OffsetNotAvailableError,
    SegstoreError,
    StoreClosedError,
)
from segstore.logger import Logger
from segstore.mutex import Mutex, check_apart
from segstore.storage.store.store import Store
from segstore.threads import Shelter

T = TypeVar("T")
_UPGRADES, _DOWNGRADES = ("bidirectional", "upgrade"), ("bidirectional", "downgrade")
log = Logger("segstore")


class GroupTable:
    """All groups in memory. What is due in a group is done when the group is asked for, or by the alarm."""

    def __init__(self, store: Store, offsets: GroupOffsets, clock: MonotonicMs) -> None:
        self._store, self._offsets, self._clock = store, offsets, clock
        self._config, self._settings = store.writer().config, group_settings(store)
        self._lock = Mutex()
        self._groups: dict[str, GroupEntry] = {}
        self._drops = 0
        self._most_changes = 0  # of the groups that were forgotten
        self._closed = False
        self._seen = AssignableTopics({})
        self.shares = ShareGroups(store, offsets, self.topics)
        self._alarm = Alarm(store.context.scheduler, clock, self.run_due)
        self._shelter = Shelter("segstore-groups")

    def ask_held(self, group_id: str, ask: Callable[[GroupEntry], T], make: bool = True) -> T:
        """Return what `ask` returns of the group, under its lock, after what is due was done. Members that
        wait are woken where the group changed. Where an interrupt ends the caller's wait, `ask` is called
        all the same, before any later request. Without `make` a group that does not exist is none
        afterwards: `ask` gets an empty one that is dropped. Raises StoreClosedError.
        """
        check_apart("what a group is asked")
        if self._store.context.forked:
            self._store.context.check_open()  # it has no such thread
        return self._shelter.call(partial(self._ask, group_id, ask, make))

    def _ask(self, group_id: str, ask: Callable[[GroupEntry], T], make: bool) -> T:
        due, changed = float("inf"), False
        try:
            while not self._closed:
                held = self._groups.get(group_id) or self._load(group_id, make)
                with held.lock:
                    if held.gone:
                        continue
                    before = held.changes
                    try:
                        if self._is_ready(held):
                            return ask(held)
                    finally:
                        due = held.due() if held.is_sure else self._clock() + RETRY_MS
                        changed = held.changes != before
            raise StoreClosedError(f"{self._store.path} is closed")
        finally:
            if not self._closed:
                if changed:
                    self._store.nudge()
                self._alarm.set(due)

    def _is_ready(self, held: GroupEntry) -> bool:
        """Do what is due in a group, and return whether there is such a group still."""
        self._read_anew(held)
        held.expire(self._clock())
        self._read_anew(held)  # what was due may have been written, and timed out
        return not held.gone

    def get(self, group_id: str) -> GroupEntry | None:
        """Return a group that is in memory. Takes no lock."""
        return self._groups.get(group_id)

    def find(self, group_id: str) -> GroupEntry | None:
        """Return a group that is in memory, or in the log."""
        held = self._groups.get(group_id)
        if held is None and group_id in self._offsets.groups():
            held = self._shelter.call(partial(self._load, group_id))
        return held

    def ids(self) -> list[str]:
        """Return the ids of the groups in memory."""
        with self._lock:
            return list(self._groups)

    def drop(self, held: GroupEntry) -> None:
        """Drop the group; the caller holds its lock. A later group of the same id is a new one."""
        with self._lock:
            self._groups.pop(held.group.group_id).gone = True
            self._drops += 1
            self._most_changes = max(self._most_changes, held.changes)

    def empty_since(self, group_id: str) -> int | None:
        """Answer for GroupOffsets, see `offsets.state.EmptySince`. A group that the log has with members is
        loaded: their sessions begin, and may end.
        """
        held = self._groups.get(group_id)
        if held is None:
            record, is_consumed = self._offsets.group(group_id), bool(self._offsets.consumer(group_id))
            if not is_consumed and (record is None or not record.members):
                return -1 if record is None else record.state_timestamp_ms
            held = self._shelter.call(partial(self._load, group_id))
        return None if held.has_members else held.group.empty_since_ms

    def run_due(self) -> None:
        """Do what is due in all groups."""
        self._alarm.clear()  # first: a group that comes later sets it anew
        for group_id in self.ids():
            try:
                self.ask_held(group_id, lambda held: None, make=False)
            except StoreClosedError:
                raise
            except SegstoreError as error:  # it is tried again, and is no other group's concern
                if not passes(error):
                    log.exception("group %s: it could not be read what has become of it", group_id)

    def sweep(self) -> None:
        """Drop the groups that have no members, and of which the log has nothing any more (Kafka:
        GroupMetadataManager, cleanupExpiredOffsets).
        """
        for group_id in set(self.ids()) - self._offsets.groups():
            with suppress(OffsetNotAvailableError):  # the next sweep comes
                self.ask_held(group_id, self._drop_unkept, make=False)

    def _drop_unkept(self, held: GroupEntry) -> None:
        is_needed = held.has_members or held.group.pending or self._is_kept(held)
        if not is_needed and self._groups.get(held.group.group_id) is held:
            self.drop(held)

    def close(self) -> None:
        """End all memberships, because the store is being closed. Static members may come back."""
        self._closed = True
        self._alarm.stop()
        self._shelter.close()
        for held in list(self._groups.values()):
            while not self._end(held):
                """A request is late, and ends: with its write, if not before."""

    def _end(self, held: GroupEntry) -> bool:
        with suppress(OffsetNotAvailableError), held.lock:
            for member in held.group.members.values():
                member.fail(StoreClosedError(f"{self._store.path} is closed"))
            return True
        return False

    # --- from one protocol to the other ------------------------------------------------------------

    def join(self, held: GroupEntry, joining: Joining, now: float) -> Ticket[JoinGroupResult]:
        """Have a member of the classic protocol join a group of either. A consumer group becomes a classic
        one where it has no members, or where this static member takes the place of the last one of KIP-848.
        The caller has the group's lock. Raises what `ClassicGroup.join` and `ClassicMembers.join` raise, and
        StorageError.
        """
        consumer = held.consumer
        if held.share is not None:
            raise InconsistentGroupProtocolError(f"group {held.group.group_id!r} is a share group")
        if consumer is None:
            return held.group.join(joining, now)
        if consumer.group.members:
            before = consumer.replaced(joining)
            if before is None:
                return consumer.join(joining, now)
            topics = consumer.group.topics_of(before.subscription)
            old = classic_member(before, stand_in(before, topics, joining), now)
            self._downgrade(held, [before.member_id], old)
            return held.group.join(joining, now)
        self._write_sure(held, lambda: self._offsets.end_consumer(held.group.group_id))
        held.become(held.group)
        return held.group.join(joining, now)

    def as_consumers(self, held: GroupEntry, run: Callable[[ConsumerMembership], T]) -> T:
        """Return what `run` returns of a consumer group. A new one takes the place of a classic group, with
        the members that this has, unless `run` raises. The caller has the group's lock. Raises
        GroupNotFoundError where a classic group has members, and can't become a consumer group.
        """
        if held.consumer is not None:
            return run(held.consumer)
        if held.share is not None:
            raise GroupNotFoundError(f"group {held.group.group_id!r} is a share group, no consumer group")
        classic = held.group
        changes = self._upgrade(classic) if classic.members else []
        consumer = self._membership(held, classic.group_id, changes)
        try:
            found = run(consumer)
        except SegstoreError:
            if held.is_sure and not (held.is_kept or classic.pending or classic.members):
                self.drop(held)  # a group that nobody could join is none
            raise
        self._become_consumers(held, consumer)
        return found

    def as_share(self, held: GroupEntry, run: Callable[[ShareMembership], T]) -> T:
        """Return what `run` returns of a share group; a new one is made if the log has no group of this id.
        The caller has the group's lock. Raises GroupNotFoundError for a group of another kind, also for one
        without members.
        """
        if held.share is not None:
            return run(held.share)
        group_id = held.group.group_id
        if held.consumer or held.has_members or held.group.pending or self._offsets.has(group_id):
            raise GroupNotFoundError(f"group {group_id!r} is not a share group")
        share = self._share(held)
        try:
            found = run(share)
        except SegstoreError:
            if held.is_sure:
                self.drop(held)  # it is none, or what the log has of it
            else:
                held.become(held.group, share=share)
            raise
        held.become(held.group, share=share)
        return found

    def _share(self, held: GroupEntry) -> ShareMembership:
        """Return what the log has of a share group."""
        return self.shares.made(held.group.group_id, partial(self._write_sure, held), self._clock())

    def _become_consumers(self, held: GroupEntry, consumer: ConsumerMembership) -> None:
        """Let a classic group be this consumer group, which has taken its members over."""
        classic = held.group
        held.become(self._empty(classic.group_id), consumer)
        for member in classic.members.values():
            member.fail(classic.in_progress())
            if member.has_pulse and member.member_id in consumer.group.members:
                consumer.pulses[member.member_id] = member

    def _upgrade(self, group: ClassicGroup) -> list[Change]:
        """Return the records of a classic group as a consumer group (GroupMetadataManager:
        validateOnlineUpgrade). Raises GroupNotFoundError.
        """
        policy, most = self._config.group_consumer_migration_policy, self._config.group_consumer_max_size
        if policy not in _UPGRADES:
            raise GroupNotFoundError(
                f"group {group.group_id!r} has members of the classic protocol, and "
                f"group.consumer.migration.policy is {policy}"
            )
        if len(group.members) > most:
            raise GroupNotFoundError(
                f"group {group.group_id!r} has {len(group.members)} members of the classic protocol, and "
                f"group.consumer.max.size is {most}"
            )
        return upgraded(group, self.topics())

    def _downgrade(
        self, held: GroupEntry, leaving: Collection[str], replaced: ClassicGroupMember | None = None
    ) -> None:
        """Make a classic group of a consumer group, of the members that do not leave, and of `replaced`.
        They join anew, but where all have what they shall have, and none has left (GroupMetadataManager:
        convertToClassicGroup). Raises StorageError.
        """
        consumer, now = held.consumer, self._clock()
        assert consumer is not None
        members = [] if replaced is None else [replaced]
        is_stable = replaced is not None
        for member_id, member in consumer.group.members.items():
            classic = member.subscription.classic
            if member_id not in leaving and classic is not None:
                known = consumer.pulses.get(member_id)
                members.append(known or classic_member(member, classic, now))
                is_stable &= member.is_reconciled_to(consumer.group.epoch)
        group = self._empty(consumer.group.group_id)
        assignments = downgrade(consumer.group, group, members, self.topics())
        record = keep(group, assignments, self._store.context.clock())
        self._write_sure(held, lambda: self._offsets.write_group(record, ends_consumer=True))
        held.become(group)
        if not is_stable:
            group.rebalance(now)

    def _membership(self, held: GroupEntry, group_id: str, unwritten: list[Change]) -> ConsumerMembership:
        """Return a consumer group of what the log has of it, and of records that are written with the first
        change.
        """
        config, first = self._config, list(unwritten)

        def write(changes: Sequence[Change]) -> None:
            was_classic = self._offsets.group(group_id) is not None
            all_of = [*first, *changes]
            self._write_sure(
                held, lambda: self._offsets.write_consumer(group_id, all_of, ends_classic=was_classic)
            )
            first.clear()

        settings = ConsumerGroupSettings(
            config.group_consumer_max_size,
            config.group_consumer_assignors,
            config.group_consumer_migration_policy in _DOWNGRADES,
            config.group_max_size,
        )
        group = ConsumerGroup(group_id, self._offsets.consumer(group_id))
        group.replay(unwritten)
        timing = partial(self._settings.timing, group_id)
        clock = self._store.context.clock
        outside = Outside(write, partial(self._downgrade, held), self.topics, clock, timing)
        return ConsumerMembership(group, outside, settings, self._clock())

    def topics(self) -> AssignableTopics:
        """Return the store's topics, the same object until one of them changes."""
        infos = self._store.engine.topics
        if infos is not self._seen.infos:
            self._seen = AssignableTopics(infos)
        return self._seen

    # --- what is kept -------------------------------------------------------------------------

    def _load(self, group_id: str, make: bool = True) -> GroupEntry:
        """Restore the group from the log; make a new one where the log has none, which is kept only with
        `make`.
        """
        held = None
        while held is None:
            drops = self._drops
            held = self._put(self._restored(group_id), drops, make)
        with held.lock:
            due = held.due()
        self._alarm.set(due)  # members that were kept may never come back
        return held

    def _put(self, restored: GroupEntry, drops: int, make: bool) -> GroupEntry | None:
        """Return the group of this id, which is what was `restored`, unless another thread was first; None
        where a group was dropped since `drops`, of which `restored` may be.
        """
        group_id = restored.group.group_id
        with self._lock:
            if group_id in self._groups:
                return self._groups[group_id]
            if drops != self._drops:
                return None
            if make or restored.is_kept:
                # A member that did not hear that the earlier group was dropped must not take this for it.
                restored.count(self._most_changes + 1)
                self._groups[group_id] = restored
            return restored

    def _restored(self, group_id: str) -> GroupEntry:
        held = GroupEntry(self._empty(group_id))
        group, consumer = self._read(held)
        has_share = consumer is None and bool(self._offsets.share(group_id))
        held.become(group, consumer, self._share(held) if has_share else None)
        held.is_kept = self._is_kept(held)
        return held

    def _is_kept(self, held: GroupEntry) -> bool:
        is_modern = held.consumer is not None or held.share is not None
        return is_modern or self._offsets.group(held.group.group_id) is not None

    def _read(self, held: GroupEntry) -> tuple[ClassicGroup, ConsumerMembership | None]:
        """Return what the log has of a group, of either protocol."""
        group_id = held.group.group_id
        group, record = self._empty(group_id), self._offsets.group(group_id)
        if record is not None:
            restore(group, record, self._clock(), self._store.context.clock())
        has_records = bool(self._offsets.consumer(group_id))
        return group, self._membership(held, group_id, []) if has_records else None

    def _write_sure(self, held: GroupEntry, write: Callable[[], None]) -> None:
        """Write records that say what the group is, and note where it is not known whether that was done."""
        try:
            write()
        except SegstoreError as error:
            if may_be_written(error):  # a refusal says nothing of a write before
                held.is_sure = False
            raise

    def _read_anew(self, held: GroupEntry) -> None:
        """Let the group be what the log says, once a write that has failed is committed, or lost. Raises
        OffsetNotAvailableError before.
        """
        if held.is_sure:
            return
        self._offsets.check_decided(held.group.group_id)
        if held.share is not None:
            self._read_share(held, held.share)
            return
        before, (group, consumer) = held.consumer, self._read(held)
        if consumer is not None:
            if before is not None:
                consumer.go_on(before, self._clock())
            self._become_consumers(held, consumer)
        elif before is not None:
            held.become(group)
        held.is_sure = True
        self._drop_unkept(held)  # what would have made it a group may be lost

    def _read_share(self, held: GroupEntry, before: ShareMembership) -> None:
        share = self._share(held) if self._offsets.share(held.group.group_id) else None
        if share is not None:
            share.go_on(before, self._clock())
        held.become(held.group, share=share)
        held.is_sure = True
        self._drop_unkept(held)

    def _empty(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(
            group_id,
            self._write,
            delay_ms=self._config.group_initial_rebalance_delay_ms,
            max_size=self._config.group_max_size,
        )

    def _write(self, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
        record = keep(group, assignments, self._store.context.clock())
        if assignments:
            self._offsets.write_group(record)
            return
        try:
            self._offsets.write_group(record)
        except SegstoreError:
            # No request waits for this record, and only the number of a generation without members is lost.
            log.exception("group %s is empty now, which could not be written", group.group_id)
