"""`GroupTable`: the groups of a store in memory, each behind a lock of its own.

On disk: through `offsets` a group's generation, members and assignment are records of `__consumer_offsets`:
read when the group is first asked for, written when it says so.
Threads: any. A group's lock is held by who reads or changes it; that of the table for no longer than a look,
and to read a group. No interrupt leaves a group half changed: whatever the main thread asks of one is done in
a thread where no signal handler runs, in the order in which it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from segstore.coordinator.group.alarm import Alarm
from segstore.coordinator.group.group import Group
from segstore.coordinator.group.kept import keep, restore
from segstore.coordinator.group.membership import MonotonicMs
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.errors import SegstoreError, StoreClosedError
from segstore.logger import Logger
from segstore.mutex import Mutex, check_apart, nesting
from segstore.storage.store.store import Store
from segstore.threads import Shelter

T = TypeVar("T")
log = Logger("segstore")


class Held:
    """A group and its lock. `gone`: it was deleted, and whoever waited for the lock looks anew."""

    def __init__(self, group: Group) -> None:
        self.lock, self.group, self.gone = nesting(), group, False


class GroupTable:
    """What is due in a group happens when it is asked for, or by the alarm."""

    def __init__(self, store: Store, offsets: GroupOffsets, clock: MonotonicMs) -> None:
        self._store, self._offsets, self._clock = store, offsets, clock
        self._config = store._writer().config
        self._lock = Mutex()
        self._groups: dict[str, Held] = {}
        self._most_changes = 0  # of the groups that were forgotten
        self._closed = False
        self._alarm = Alarm(store._context.scheduler, clock, self.settle)
        self._shelter = Shelter("segstore-groups")

    def ask(self, group_id: str, ask: Callable[[Group], T]) -> T:
        """What `ask` gives of the group, with what is due done, under its lock; those that wait hear of
        changes. Where an interrupt ends the wait for it, it is done all the same, before what is asked next.
        StoreClosedError.
        """
        check_apart("what a group is asked")
        if self._store._context.forked:
            self._store._context.check_open()  # it has no such thread
        return self._shelter.call(partial(self._ask, group_id, ask))

    def _ask(self, group_id: str, ask: Callable[[Group], T]) -> T:
        due, changed = float("inf"), False
        try:
            while not self._closed:
                held = self._groups.get(group_id) or self._load(group_id)
                with held.lock:
                    if held.gone:
                        continue
                    group, before = held.group, held.group.changes
                    try:
                        group.settle(self._clock())
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
        """One that is in memory. Takes no lock."""
        return self._groups.get(group_id)

    def find(self, group_id: str) -> Held | None:
        """One that is in memory, or was kept."""
        held = self._groups.get(group_id)
        if held is None and group_id in self._offsets.groups():
            held = self._shelter.call(partial(self._load, group_id))
        return held

    def ids(self) -> list[str]:
        """Of those in memory."""
        with self._lock:
            return list(self._groups)

    def drop(self, group: Group) -> None:
        """Have it no more; the caller holds its lock. The next of its name is a new one."""
        with self._lock:
            self._groups.pop(group.group_id).gone = True
            self._most_changes = max(self._most_changes, group.changes)

    def empty_since(self, group_id: str) -> int | None:
        """For GroupOffsets: see `offsets_expiry.EmptySince`."""
        held = self._groups.get(group_id)
        if held is None:
            record = self._offsets.group(group_id)
            if record is None or not record.members:
                return -1 if record is None else record.state_timestamp_ms
            held = self._shelter.call(partial(self._load, group_id))
        return None if held.group.members else held.group.empty_since_ms

    def settle(self) -> None:
        """Let happen what is due in all groups."""
        self._alarm.clear()  # first: a group that comes later sets it anew
        for group_id in self.ids():
            self.ask(group_id, lambda group: None)

    def close(self) -> None:
        """The store is being closed: nobody is a member any more. Static members may come back."""
        self._closed = True
        self._alarm.stop()
        self._shelter.close()
        for held in list(self._groups.values()):
            with held.lock:
                for member in held.group.members.values():
                    member.fail(StoreClosedError(f"{self._store.path} is closed"))

    # --- what is kept -------------------------------------------------------------------------

    def _load(self, group_id: str) -> Held:
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
            # Nobody asked for it, and nothing but the number of a generation without members is lost.
            log.exception("group %s is empty now, which could not be written", group.group_id)
