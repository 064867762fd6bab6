"""`ShareKeeper`: holds a share group, has its changes written, and ends the sessions of its members (KIP-932;
Kafka: GroupMetadataManager).

On disk: the records of a change are given to `write`, and count once they are written. Threads: under the
group's lock. `now` is ms of the monotonic clock in every method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from segstore.coordinator.group.consumers.pulses import ConsumerPulses
from segstore.coordinator.group.consumers.sessions import Sessions, Wait
from segstore.coordinator.group.consumers.topics import AssignableTopics
from segstore.coordinator.group.share.change import ShareDraft
from segstore.coordinator.group.share.group import ShareGroup, ShareGroupInfo
from segstore.coordinator.group.share.initialising import DurableStates
from segstore.coordinator.offsets.share_schema import ShareChange, ShareStateTopics
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share_settings import ShareTiming
from segstore.errors import OffsetNotAvailableError, SegstoreError
from segstore.logger import Logger

log = Logger("segstore")

WriteShare = Callable[[Sequence[ShareChange]], None]
"""Writes records, all or none; raises if that fails."""
Fence = Callable[[Collection[ShareKey]], None]
"""Drops share partitions from memory: what they know is not so any more."""
RETRY_MS = 500.0
"""How long a change waits that the group makes by itself, and that could not be written."""


class ShareOutside(NamedTuple):
    """What a group asks of others. `topics` returns what the store has now: the same object as long as no
    topic has changed. `wall` returns ms since the epoch; `timing`, what holds for the group now.
    """

    write: WriteShare
    topics: Callable[[], AssignableTopics]
    wall: Callable[[], int]
    timing: Callable[[], ShareTiming]
    states: Callable[[], DurableStates]
    fence: Fence
    max_size: int


class ShareKeeper:
    """The members of `group`, whose sessions begin with this object. `changes` counts the changes of which
    members may have to know.
    """

    def __init__(self, group: ShareGroup, outside: ShareOutside, now: float) -> None:
        self.group, self._outside = group, outside
        self.changes = 0
        self._sessions, self.pulses = Sessions(), ConsumerPulses()
        self._seen: AssignableTopics | None = None
        self._may_assign_at = -math.inf
        for member_id in group.members:
            self._extend(member_id, now)

    def go_on(self, before: ShareKeeper, now: float) -> None:
        """Take over the signs of life of the members that the group had `before` it was read anew from the
        log. Sessions begin anew, as after each load: no heartbeat could be answered before.
        """
        self.pulses, self._may_assign_at = before.pulses, before._may_assign_at
        for member_id in before.group.members.keys() - self.group.members.keys():
            self.pulses.forget(member_id)

    # --- time ------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Remove members whose sessions have ended, and assign the group anew if that had to wait. What can't
        be written is tried again.
        """
        late = [*self._feel(now), *self._sessions.over(now)]
        late = [member_id for member_id in dict.fromkeys(late) if member_id in self.group.members]
        try:
            self.fence(late)
            if self._is_assignment_due(now):
                self._reassign(now)
        except SegstoreError as error:
            if not isinstance(error, OffsetNotAvailableError):  # as after each failover
                log.exception("share group %s: a change could not be written", self.group.group_id)
            self._may_assign_at = now + RETRY_MS
            for member_id in late:
                self._sessions.await_until(member_id, Wait.SESSION, now + RETRY_MS)

    def due(self) -> float:
        """Return when `expire` has something to do next."""
        timing = self._outside.timing()
        interval = min(timing.heartbeat_interval_ms, timing.session_timeout_ms / 2)
        assigns = self._may_assign_at if self._is_stale else math.inf
        return min(self._sessions.due(), self.pulses.due(interval), assigns)

    @property
    def _is_stale(self) -> bool:
        return bool(self.group.members) and self.group.epoch > self.group.target_epoch

    def _is_assignment_due(self, now: float) -> bool:
        return self._is_stale and now >= self._may_assign_at

    def _reassign(self, now: float) -> None:
        draft = self._draft(self._outside.topics())
        draft.reassign()
        self._commit(draft, now)

    def _feel(self, now: float) -> list[str]:
        """Look at the pulses of members in this process; return the members that were dropped, or poll too
        late.
        """
        late = []
        for member_id, is_alive in self.pulses.look(now):
            if member_id in self.group.members and is_alive:
                self._extend(member_id, now)
            else:
                self.pulses.forget(member_id)
                late.append(member_id)
        return late

    def _extend(self, member_id: str, now: float) -> None:
        timeout = self._outside.timing().session_timeout_ms
        self._sessions.await_until(member_id, Wait.SESSION, now + timeout)

    # --- changes -----------------------------------------------------------------------------------

    def fence(self, member_ids: Collection[str]) -> None:
        """Remove members. The locks of their records end by themselves."""
        if member_ids:
            draft = self._draft(self._outside.topics())
            draft.fence(member_ids)
            self._commit(draft)
            self._sessions.forget(member_ids)
            for member_id in member_ids:
                self.pulses.forget(member_id)

    def raise_epoch(self, least: int) -> None:
        """Have the group's epoch be `least` at least: a share partition's state has that state epoch."""
        if self.group.epoch < least:
            draft = self._draft(self._outside.topics(), least)
            draft.raise_epoch()
            self._commit(draft)

    def _draft(self, topics: AssignableTopics, epoch: int = 0) -> ShareDraft:
        return ShareDraft(self.group, topics, self._outside.wall(), epoch)

    def _commit(self, draft: ShareDraft, now: float | None = None) -> None:
        if draft.changes:
            self._write(draft.changes)
            self.changes += 1
        if draft.has_assigned and now is not None:
            self._may_assign_at = now + self._outside.timing().assignment_interval_ms

    def _write(self, changes: Sequence[ShareChange]) -> None:
        self._outside.write(changes)
        self.group.replay(changes)

    def note(self, partitions: ShareStateTopics, draft: ShareDraft | None = None) -> None:
        """Write which partitions have a state, get one, or lose it, behind the records of `draft`."""
        found = self._draft(self._outside.topics()) if draft is None else draft
        found.note(partitions)
        self._write(found.changes)

    def info(self) -> ShareGroupInfo:
        """Return the group as administrators see it."""
        return self.group.info()
