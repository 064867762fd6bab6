"""`GroupTable`: the groups of a store in memory, each with its own lock.

On disk: a group's generation, members and assignment are records of `__consumer_offsets`. The records are
read at the first request to the group, and written when the group calls its `write`.
Threads: any. A thread that reads or changes a group holds the group's lock; the table's lock is held only
while a group is looked up, added or dropped. No request waits long for a group: if the replicas have not
confirmed the group's last write, or if the outcome of this write is unknown, a request raises
OffsetNotAvailableError (Kafka: COORDINATOR_LOAD_IN_PROGRESS), and the caller may repeat it. Requests of the
main thread run in a thread of their own, one after the other. No signal handler runs in that thread, so an
interrupt can't leave a group half changed.
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
    """All groups in memory. Members whose sessions have expired are removed by the next request to their
    group, or by `run_due`, which a timer (`Alarm`) calls.
    """

    def __init__(self, store: Store, offsets: GroupOffsets, clock: MonotonicMs) -> None:
        self._store, self._offsets, self._clock = store, offsets, clock
        self._config, self._settings = store.writer().config, group_settings(store)
        self._lock = Mutex()
        self._groups: dict[str, GroupEntry] = {}
        self._drops = 0
        self._most_changes = 0  # the largest change counter of all dropped groups
        self._closed = False
        self._seen = AssignableTopics({})
        self.shares = ShareGroups(store, offsets, self.topics)
        self._alarm = Alarm(store.context.scheduler, clock, self.run_due)
        self._shelter = Shelter("segstore-groups")

    def ask_held(self, group_id: str, ask: Callable[[GroupEntry], T], make: bool = True) -> T:
        """Remove members whose sessions have expired, call `ask` with the group, and return the result of
        `ask`, all under the group's lock. If the group changed, wake the members that wait. If an interrupt
        ends the caller's wait, `ask` still runs before any later request. If the group is missing and `make`
        is False, `ask` gets an empty group that is not put into the table. Raises StoreClosedError.
        """
        check_apart("what a group is asked")
        if self._store.context.forked:
            # `check_open` raises ForkedError: a forked child lacks the thread that runs requests.
            self._store.context.check_open()
        return self._shelter.call(partial(self._ask, group_id, ask, make))

    def _ask(self, group_id: str, ask: Callable[[GroupEntry], T], make: bool) -> T:
        due, changed = float("inf"), False
        try:
            while not self._closed:
                entry = self._groups.get(group_id) or self._load(group_id, make)
                with entry.lock:
                    if entry.gone:
                        continue
                    before = entry.changes
                    try:
                        if self._is_ready(entry):
                            return ask(entry)
                    finally:
                        due = entry.due() if entry.is_sure else self._clock() + RETRY_MS
                        changed = entry.changes != before
            raise StoreClosedError(f"{self._store.path} is closed")
        finally:
            if not self._closed:
                if changed:
                    self._store.nudge()
                self._alarm.set(due)

    def _is_ready(self, entry: GroupEntry) -> bool:
        """Remove members whose sessions have expired, and return whether the group still exists."""
        self._read_anew(entry)
        entry.expire(self._clock())
        self._read_anew(entry)  # it may be unknown whether `expire` has written its records
        return not entry.gone

    def get(self, group_id: str) -> GroupEntry | None:
        """Return a group, or None if it is not in memory. Takes no lock."""
        return self._groups.get(group_id)

    def find(self, group_id: str) -> GroupEntry | None:
        """Return a group from memory or from the log; None if neither has the group."""
        entry = self._groups.get(group_id)
        if entry is None and group_id in self._offsets.groups():
            entry = self._shelter.call(partial(self._load, group_id))
        return entry

    def ids(self) -> list[str]:
        """Return the ids of the groups in memory."""
        with self._lock:
            return list(self._groups)

    def drop(self, entry: GroupEntry) -> None:
        """Drop the group; the caller holds the group's lock. If the id is used again, there is a new
        `GroupEntry`.
        """
        with self._lock:
            self._groups.pop(entry.group.group_id).gone = True
            self._drops += 1
            self._most_changes = max(self._most_changes, entry.changes)

    def empty_since(self, group_id: str) -> int | None:
        """Return the time at which the last member left a group (ms since the epoch, -1: not known), or None
        if the group has members. If the group is not in memory, and has members in the log, load the group:
        this starts the members' sessions.
        """
        entry = self._groups.get(group_id)
        if entry is None:
            record, is_consumed = self._offsets.group(group_id), bool(self._offsets.consumer(group_id))
            if not is_consumed and (record is None or not record.members):
                return -1 if record is None else record.state_timestamp_ms
            entry = self._shelter.call(partial(self._load, group_id))
        return None if entry.has_members else entry.group.empty_since_ms

    def run_due(self) -> None:
        """In all groups, remove members whose sessions have expired, and end each rebalance's wait for
        members whose deadline has passed.
        """
        self._alarm.clear()  # a clear after the loop would lose the alarms that the loop sets
        for group_id in self.ids():
            try:
                self.ask_held(group_id, lambda entry: None, make=False)
            except StoreClosedError:
                raise
            except SegstoreError as error:  # The loop goes on: the next run tries this group again.
                if not passes(error):
                    log.exception("group %s: it could not be read what has become of it", group_id)

    def sweep(self) -> None:
        """Drop groups that have no members and no records in the log (Kafka: GroupMetadataManager,
        cleanupExpiredOffsets).
        """
        for group_id in set(self.ids()) - self._offsets.groups():
            with suppress(OffsetNotAvailableError):  # after this error, the next sweep drops the group
                self.ask_held(group_id, self._drop_unkept, make=False)

    def _drop_unkept(self, entry: GroupEntry) -> None:
        is_needed = entry.has_members or entry.group.pending or self._is_kept(entry)
        if not is_needed and self._groups.get(entry.group.group_id) is entry:
            self.drop(entry)

    def close(self) -> None:
        """Refuse further requests. Members that wait for an answer get StoreClosedError."""
        self._closed = True
        self._alarm.stop()
        self._shelter.close()
        for entry in list(self._groups.values()):
            while not self._end(entry):
                """The lock is held by a late request, which releases it after its write at the latest."""

    def _end(self, entry: GroupEntry) -> bool:
        with suppress(OffsetNotAvailableError), entry.lock:
            for member in entry.group.members.values():
                member.fail(StoreClosedError(f"{self._store.path} is closed"))
            return True
        return False

    # --- upgrade and downgrade ---------------------------------------------------------------------

    def join(self, entry: GroupEntry, joining: Joining, now: float) -> Ticket[JoinGroupResult]:
        """Handle a JoinGroup request to a classic or consumer group; return a `Ticket`, which is completed
        with the answer to the member. A consumer group is downgraded to a classic group if it has no members,
        or if the joining static member replaces the last KIP-848 member. The caller holds the group's lock.
        Raises the errors of `ClassicGroup.join` and `ClassicMembers.join`, and StorageError.
        """
        consumer = entry.consumer
        if entry.share is not None:
            raise InconsistentGroupProtocolError(f"group {entry.group.group_id!r} is a share group")
        if consumer is None:
            return entry.group.join(joining, now)
        if consumer.group.members:
            before = consumer.replaced(joining)
            if before is None:
                return consumer.join(joining, now)
            topics = consumer.group.topics_of(before.subscription)
            old = classic_member(before, stand_in(before, topics, joining), now)
            self._downgrade(entry, [before.member_id], old)
            return entry.group.join(joining, now)
        self._write_sure(entry, lambda: self._offsets.end_consumer(entry.group.group_id))
        entry.become(entry.group)
        return entry.group.join(joining, now)

    def as_consumers(self, entry: GroupEntry, run: Callable[[ConsumerMembership], T]) -> T:
        """Call `run` with the consumer group, and return the result of `run`. If `run` succeeds on a classic
        group, this group becomes a consumer group with the same members. The caller holds the group's lock.
        Raises the errors of `run`, and GroupNotFoundError for a share group, or for a classic group that has
        members and can't be upgraded.
        """
        if entry.consumer is not None:
            return run(entry.consumer)
        if entry.share is not None:
            raise GroupNotFoundError(f"group {entry.group.group_id!r} is a share group, no consumer group")
        classic = entry.group
        changes = self._upgrade(classic) if classic.members else []
        consumer = self._membership(entry, classic.group_id, changes)
        try:
            found = run(consumer)
        except SegstoreError:
            if entry.is_sure and not (entry.is_kept or classic.pending or classic.members):
                self.drop(entry)  # the group was created for this request, and the request failed
            raise
        self._become_consumers(entry, consumer)
        return found

    def as_share(self, entry: GroupEntry, run: Callable[[ShareMembership], T]) -> T:
        """Call `run` with the share group, and return the result of `run`. If the log has no group of this
        id, create a share group. The caller holds the group's lock. Raises GroupNotFoundError for a group of
        another type, even if that group has no members.
        """
        if entry.share is not None:
            return run(entry.share)
        group_id = entry.group.group_id
        if entry.consumer or entry.has_members or entry.group.pending or self._offsets.has(group_id):
            raise GroupNotFoundError(f"group {group_id!r} is not a share group")
        share = self._share(entry)
        try:
            found = run(share)
        except SegstoreError:
            if entry.is_sure:
                self.drop(entry)  # the next request loads the group from the log, if the log has it
            else:
                entry.become(entry.group, share=share)
            raise
        entry.become(entry.group, share=share)
        return found

    def _share(self, entry: GroupEntry) -> ShareMembership:
        """Return a share group that is made from its records in the log."""
        return self.shares.made(entry.group.group_id, partial(self._write_sure, entry), self._clock())

    def _become_consumers(self, entry: GroupEntry, consumer: ConsumerMembership) -> None:
        """Replace a classic group by a consumer group that has the same members."""
        classic = entry.group
        entry.become(self._empty(classic.group_id), consumer)
        for member in classic.members.values():
            member.fail(classic.in_progress())
            if member.has_pulse and member.member_id in consumer.group.members:
                consumer.pulses[member.member_id] = member

    def _upgrade(self, group: ClassicGroup) -> list[Change]:
        """Return the records that turn a classic group into a consumer group (GroupMetadataManager:
        validateOnlineUpgrade). Raises GroupNotFoundError if the group can't be upgraded.
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
        self, entry: GroupEntry, leaving: Collection[str], replaced: ClassicGroupMember | None = None
    ) -> None:
        """Convert a consumer group to a classic group. The classic group gets `replaced`, if given, and all
        members of the classic protocol that are not in `leaving`. `replaced` stands for the last KIP-848
        member, which a static member will replace. The members must join again, unless `replaced` is given
        and all other members have their target assignment (GroupMetadataManager: convertToClassicGroup).
        Raises StorageError.
        """
        consumer, now = entry.consumer, self._clock()
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
        self._write_sure(entry, lambda: self._offsets.write_group(record, ends_consumer=True))
        entry.become(group)
        if not is_stable:
            group.rebalance(now)

    def _membership(self, entry: GroupEntry, group_id: str, unwritten: list[Change]) -> ConsumerMembership:
        """Return a consumer group, made first from its records in the log, then from the records `unwritten`.
        When the group writes its first change, it also writes `unwritten`.
        """
        config, first = self._config, list(unwritten)

        def write(changes: Sequence[Change]) -> None:
            was_classic = self._offsets.group(group_id) is not None
            all_of = [*first, *changes]
            self._write_sure(
                entry, lambda: self._offsets.write_consumer(group_id, all_of, ends_classic=was_classic)
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
        outside = Outside(write, partial(self._downgrade, entry), self.topics, clock, timing)
        return ConsumerMembership(group, outside, settings, self._clock())

    def topics(self) -> AssignableTopics:
        """Return the store's topics; it is the same object until a topic changes."""
        infos = self._store.engine.topics
        if infos is not self._seen.infos:
            self._seen = AssignableTopics(infos)
        return self._seen

    # --- the log ------------------------------------------------------------------------------

    def _load(self, group_id: str, make: bool = True) -> GroupEntry:
        """Return the group, restored from the log, or a new group if the log has no such group; a new group
        is put into the table only if `make`.
        """
        entry = None
        while entry is None:
            drops = self._drops
            entry = self._put(self._restored(group_id), drops, make)
        with entry.lock:
            due = entry.due()
        self._alarm.set(due)  # at `due` the timer removes restored members that have not come back
        return entry

    def _put(self, restored: GroupEntry, drops: int, make: bool) -> GroupEntry | None:
        """If the log has the group, or if `make`, put `restored` into the table. Return `restored`. If
        another thread has put the group into the table before, return that thread's group. If any group was
        dropped since `drops` was read, return None: `restored` may be made from records of the dropped group.
        """
        group_id = restored.group.group_id
        with self._lock:
            if group_id in self._groups:
                return self._groups[group_id]
            if drops != self._drops:
                return None
            if make or restored.is_kept:
                # The counter begins above the counters of all dropped groups, so that members of an earlier
                # group with this id see a change of the counter.
                restored.count(self._most_changes + 1)
                self._groups[group_id] = restored
            return restored

    def _restored(self, group_id: str) -> GroupEntry:
        entry = GroupEntry(self._empty(group_id))
        group, consumer = self._read(entry)
        has_share = consumer is None and bool(self._offsets.share(group_id))
        entry.become(group, consumer, self._share(entry) if has_share else None)
        entry.is_kept = self._is_kept(entry)
        return entry

    def _is_kept(self, entry: GroupEntry) -> bool:
        is_modern = entry.consumer is not None or entry.share is not None
        return is_modern or self._offsets.group(entry.group.group_id) is not None

    def _read(self, entry: GroupEntry) -> tuple[ClassicGroup, ConsumerMembership | None]:
        """Return (classic group, consumer group or None), made from the records in the log. The classic group
        is empty if the log has no classic group of this id.
        """
        group_id = entry.group.group_id
        group, record = self._empty(group_id), self._offsets.group(group_id)
        if record is not None:
            restore(group, record, self._clock(), self._store.context.clock())
        has_records = bool(self._offsets.consumer(group_id))
        return group, self._membership(entry, group_id, []) if has_records else None

    def _write_sure(self, entry: GroupEntry, write: Callable[[], None]) -> None:
        """Write a group's records, and set `is_sure` to False if the outcome of the write is unknown."""
        try:
            write()
        except SegstoreError as error:
            if may_be_written(error):  # if the write was refused, `is_sure` does not change
                entry.is_sure = False
            raise

    def _read_anew(self, entry: GroupEntry) -> None:
        """If `is_sure` is False because the outcome of a write was unknown, reload the group from the log.
        Raises OffsetNotAvailableError if the outcome is still unknown.
        """
        if entry.is_sure:
            return
        self._offsets.check_decided(entry.group.group_id)
        if entry.share is not None:
            self._read_share(entry, entry.share)
            return
        before, (group, consumer) = entry.consumer, self._read(entry)
        if consumer is not None:
            if before is not None:
                consumer.go_on(before, self._clock())
            self._become_consumers(entry, consumer)
        elif before is not None:
            entry.become(group)
        entry.is_sure = True
        self._drop_unkept(entry)  # if the group's first write failed, the log may lack the group

    def _read_share(self, entry: GroupEntry, before: ShareMembership) -> None:
        share = self._share(entry) if self._offsets.share(entry.group.group_id) else None
        if share is not None:
            share.go_on(before, self._clock())
        entry.become(entry.group, share=share)
        entry.is_sure = True
        self._drop_unkept(entry)

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
            # The failure is only logged, because no request waits for this record. Without the record, only
            # the number of the present generation is lost, and this generation has no members.
            log.exception("group %s is empty now, which could not be written", group.group_id)
