"""`GroupTable`: the groups of a store in memory, each behind a lock of its own.

On disk: a group's generation, members and assignment are records of `__consumer_offsets`. They are read
when the group is first asked for, and written when the group says so.
Threads: any. Whoever reads or changes a group holds its lock; the lock of the table is held only for a
look-up, and to load a group. No interrupt leaves a group half changed: requests of the main thread run in a
thread where no signal handler runs, in the order in which they were made.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from segstore.coordinator.group.group import Group
from segstore.coordinator.group.member import Joining, Member, MonotonicMs, State
from segstore.coordinator.offsets.group_offsets import GroupOffsets, GroupRecord, MemberRecord
from segstore.errors import SegstoreError, StoreClosedError
from segstore.logger import Logger
from segstore.mutex import Mutex, check_apart, nesting
from segstore.storage.scheduler import Scheduler
from segstore.storage.store.store import Store
from segstore.threads import Shelter

# --- kept --------------------------------------------------------------------------------------

# A group as a record of `__consumer_offsets`, and how a group is restored from it. Threads: under the group's
# lock.


def keep(group: Group, assignments: Mapping[str, bytes], now_ms: int) -> GroupRecord:
    """Return the record of the group with these assignments, at `now_ms` since the epoch."""
    if not assignments:
        group.empty_since_ms = now_ms
    members = tuple(
        MemberRecord(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.subscription(group.protocol),
            assignments[member.member_id],
        )
        for member in group.members.values()
    )
    return GroupRecord(
        group.group_id,
        group.protocol_type,
        group.generation,
        group.protocol,
        group.leader,
        now_ms,
        members,
    )


def restore(group: Group, record: GroupRecord, now: float, now_ms: int) -> None:
    """Restore the group that the last process wrote. Dynamic members ended with that process; static
    members have a session timeout from now on to come back to what they had.
    """
    group.generation, group.protocol_type = record.generation, record.protocol_type
    group.empty_since_ms = now_ms if record.members else record.state_timestamp_ms
    static = [member for member in record.members if member.group_instance_id is not None]
    if not static or not record.protocol:
        return
    group.protocol, group.state = record.protocol, State.STABLE
    for kept in static:
        group.take_up(_member(kept, record, now))
    there = group.members
    group.leader = record.leader if record.leader in there else next(iter(there))
    if len(static) < len(record.members):
        group.rebalance(now)


def _member(kept: MemberRecord, record: GroupRecord, now: float) -> Member:
    joining = Joining(
        protocols=((record.protocol or "", kept.subscription),),
        group_instance_id=kept.group_instance_id,
        client_id=kept.client_id,
        client_host=kept.client_host,
        session_timeout_ms=kept.session_timeout_ms,
        rebalance_timeout_ms=kept.rebalance_timeout_ms,
        protocol_type=record.protocol_type or "",
    )
    member = Member(kept.member_id, joining, now)
    member.assignment, member.synced = kept.assignment, True
    return member


# --- alarm -------------------------------------------------------------------------------------

# `Alarm` calls a function when it is due, through the store's scheduler, which holds it weakly. Threads: any.


class Alarm:
    """Calls `ring` at the earliest time that was `set` since the last `clear`. `due` is that time, in ms of
    `clock`, inf for none. `ring` clears the alarm and sets it anew.
    """

    def __init__(self, scheduler: Scheduler, clock: MonotonicMs, ring: Callable[[], None]) -> None:
        self._scheduler, self._clock, self._ring = scheduler, clock, ring
        self._lock = Mutex()
        self._stopped = False
        self.due = math.inf

    def set(self, due: float) -> None:
        """Call `ring` at `due`, or earlier."""
        me = weakref.ref(self)

        def ring() -> None:
            alarm = me()
            if alarm is not None and alarm._is_for(due):
                alarm._ring()

        with self._lock:
            if due >= self.due or self._stopped:
                return
            self._scheduler.after(max(due - self._clock(), 0) / 1000, ring)
            self.due = due  # last: where the line before is interrupted, the next `set` plans anew

    def _is_for(self, due: float) -> bool:
        """Return whether this call is still the planned one; a call that an earlier one has overtaken does
        nothing.
        """
        with self._lock:
            return self.due == due and not self._stopped

    def clear(self) -> None:
        """Forget the time; whoever is due from now on sets the alarm anew."""
        with self._lock:
            self.due = math.inf

    def stop(self) -> None:
        """Stop, and never call `ring` again."""
        self._stopped = True


# --- group table ------------------------------------------------------------

T = TypeVar("T")
log = Logger("segstore")


class Held:
    """A group and its lock. `gone`: the group was dropped, and a thread that waited for the lock must look
    it up anew.
    """

    def __init__(self, group: Group) -> None:
        self.lock, self.group, self.gone = nesting(), group, False


class GroupTable:
    """All groups in memory. What is due in a group is done when the group is asked for, or by the alarm."""

    def __init__(self, store: Store, offsets: GroupOffsets, clock: MonotonicMs) -> None:
        self._store, self._offsets, self._clock = store, offsets, clock
        self._config = store._writer().config
        self._lock = Mutex()
        self._groups: dict[str, Held] = {}
        self._most_changes = 0  # of the groups that were forgotten
        self._closed = False
        self._alarm = Alarm(store._context.scheduler, clock, self.run_due)
        self._shelter = Shelter("segstore-groups")

    def ask(self, group_id: str, ask: Callable[[Group], T], make: bool = True) -> T:
        """Return what `ask` returns of the group, under its lock, after what is due was done. Members that
        wait are woken where the group changed. Where an interrupt ends the caller's wait, `ask` is called
        all the same, before any later request. Without `make` a group that does not exist is none
        afterwards: `ask` gets an empty one that is dropped. Raises StoreClosedError.
        """
        check_apart("what a group is asked")
        if self._store._context.forked:
            self._store._context.check_open()  # it has no such thread
        return self._shelter.call(partial(self._ask, group_id, ask, make))

    def _ask(self, group_id: str, ask: Callable[[Group], T], make: bool) -> T:
        due, changed = float("inf"), False
        try:
            while not self._closed:
                held = self._groups.get(group_id) or self._load(group_id, make)
                with held.lock:
                    if held.gone:
                        continue
                    group, before = held.group, held.group.changes
                    try:
                        group.expire(self._clock())
                        return ask(group)
                    finally:
                        due, changed = group.due(), group.changes != before
            raise StoreClosedError(f"{self._store.path} is closed")
        finally:
            if not self._closed:
                if changed:
                    self._store._nudge()
                self._alarm.set(due)

    def get(self, group_id: str) -> Held | None:
        """Return a group that is in memory. Takes no lock."""
        return self._groups.get(group_id)

    def find(self, group_id: str) -> Held | None:
        """Return a group that is in memory, or in the log."""
        held = self._groups.get(group_id)
        if held is None and group_id in self._offsets.groups():
            held = self._shelter.call(partial(self._load, group_id))
        return held

    def ids(self) -> list[str]:
        """Return the ids of the groups in memory."""
        with self._lock:
            return list(self._groups)

    def drop(self, group: Group) -> None:
        """Drop the group; the caller holds its lock. A later group of the same id is a new one."""
        with self._lock:
            self._groups.pop(group.group_id).gone = True
            self._most_changes = max(self._most_changes, group.changes)

    def empty_since(self, group_id: str) -> int | None:
        """Answer for GroupOffsets, see `offsets.state.EmptySince`."""
        held = self._groups.get(group_id)
        if held is None:
            record = self._offsets.group(group_id)
            if record is None or not record.members:
                return -1 if record is None else record.state_timestamp_ms
            held = self._shelter.call(partial(self._load, group_id))
        return None if held.group.members else held.group.empty_since_ms

    def run_due(self) -> None:
        """Do what is due in all groups."""
        self._alarm.clear()  # first: a group that comes later sets it anew
        for group_id in self.ids():
            self.ask(group_id, lambda group: None)

    def close(self) -> None:
        """End all memberships, because the store is being closed. Static members may come back."""
        self._closed = True
        self._alarm.stop()
        self._shelter.close()
        for held in list(self._groups.values()):
            with held.lock:
                for member in held.group.members.values():
                    member.fail(StoreClosedError(f"{self._store.path} is closed"))

    # --- what is kept -------------------------------------------------------------------------

    def _load(self, group_id: str, make: bool = True) -> Held:
        """Restore the group from the log; make a new one where the log has none, which is kept only with
        `make`.
        """
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
                if record is None and not make:
                    return Held(group)
                if record is not None:
                    restore(group, record, self._clock(), self._store._context.clock())
                # A member that did not hear that the earlier group was dropped must not take this for it.
                group.changes += self._most_changes + 1
                held = self._groups[group_id] = Held(group)
        with held.lock:
            due = held.group.due()
        self._alarm.set(due)  # members that were kept may never come back
        return held

    def _write(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        record = keep(group, assignments, self._store._context.clock())
        if assignments:
            self._offsets.write_group(record)
            return
        try:
            self._offsets.write_group(record)
        except SegstoreError:
            # No request waits for this record, and only the number of a generation without members is lost.
            log.exception("group %s is empty now, which could not be written", group.group_id)
