"""`ShareKeeper`: owns a share group, writes its changes, and removes members whose sessions have expired
(KIP-932; Kafka: GroupMetadataManager).

On disk: `write` writes the records of a change; after that the change is applied in memory. Threads: under
the group's lock. `now` is ms of the monotonic clock in every method.
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
"""Writes all records or none. Raises if the write fails."""
Fence = Callable[[Collection[ShareKey]], None]
"""Drops share partitions from memory, because their state on disk was replaced or deleted."""
RETRY_MS = 500.0
"""Delay of the next attempt to write a removal or an assignment that `expire` could not write."""


class ShareOutside(NamedTuple):
    """The functions of the store that a share group calls. `topics` returns the store's topics; it returns
    the same object until a topic changes. `wall` returns ms since the epoch; `timing` returns the group's
    current timeouts.
    """

    write: WriteShare
    topics: Callable[[], AssignableTopics]
    wall: Callable[[], int]
    timing: Callable[[], ShareTiming]
    states: Callable[[], DurableStates]
    fence: Fence
    max_size: int


class ShareKeeper:
    """The members of a share group and their sessions, which start when this object is made. The counter
    `changes` grows with each change that members may have to see; a member then asks for its assignment
    again.
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
        """Use the `Pulse` objects of `before`, which was the group's object until the group was read again
        from the log. All sessions begin anew, because heartbeats could not be answered until then.
        """
        self.pulses, self._may_assign_at = before.pulses, before._may_assign_at
        for member_id in before.group.members.keys() - self.group.members.keys():
            self.pulses.forget(member_id)

    # --- time ------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Remove members whose sessions have expired, and assign the group anew if an assignment is due. If a
        change can't be written, it is tried again after RETRY_MS.
        """
        late = [*self._check_pulses(now), *self._sessions.over(now)]
        late = [member_id for member_id in dict.fromkeys(late) if member_id in self.group.members]
        try:
            self.fence(late)
            if self._is_assignment_due(now):
                self._reassign(now)
        except SegstoreError as error:
            # OffsetNotAvailableError is usual after a failover, and is not logged.
            if not isinstance(error, OffsetNotAvailableError):
                log.exception("share group %s: a change could not be written", self.group.group_id)
            self._may_assign_at = now + RETRY_MS
            for member_id in late:
                self._sessions.await_until(member_id, Wait.SESSION, now + RETRY_MS)

    def due(self) -> float:
        """Return the time at which `expire` must be called next."""
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

    def _check_pulses(self, now: float) -> list[str]:
        """Check each `Pulse`, and return the ids of the members whose consumer was garbage collected or polls
        too late.
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
        """Remove members. The acquisition locks of the records that these members have acquired are not
        released; they time out.
        """
        if member_ids:
            draft = self._draft(self._outside.topics())
            draft.fence(member_ids)
            self._commit(draft)
            self._sessions.forget(member_ids)
            for member_id in member_ids:
                self.pulses.forget(member_id)

    def raise_epoch(self, least: int) -> None:
        """If the group's epoch is lower than `least`, raise it at least to `least`, which is the state
        epoch of a share partition of the group.
        """
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
        """Write the records of `draft`, followed by a record of the share partitions: those that have a
        state, those whose state is being created, and those whose state is being deleted.
        """
        found = self._draft(self._outside.topics()) if draft is None else draft
        found.note(partitions)
        self._write(found.changes)

    def info(self) -> ShareGroupInfo:
        """Return the group's description."""
        return self.group.info()
