"""`GroupEntry`: a group of any protocol, and its lock.

On disk: nothing. Threads: a thread that reads or changes a group holds the group's lock.
"""

from __future__ import annotations

import math

from segstore.coordinator.group.classic.group import ClassicGroup
from segstore.coordinator.group.consumers.membership import ConsumerMembership
from segstore.coordinator.group.share.membership import ShareMembership
from segstore.errors import OffsetNotAvailableError
from segstore.mutex import BoundedLock


class GroupEntry:
    """A group and its lock. `group` is the classic group; it is empty if there is a `consumer` group
    (KIP-848) or a `share` group (KIP-932). `gone` is True if the group was dropped: a thread that has waited
    for the lock must then look the group up again. `is_kept` says whether the log has records of the group.
    `is_sure` is False after a failed write that may still be committed: the group in memory may then differ
    from its records in the log.
    """

    def __init__(self, group: ClassicGroup, is_kept: bool = True) -> None:
        self.group, self.gone, self.is_kept = group, False, is_kept
        self.lock = BoundedLock(self._late)
        self.consumer: ConsumerMembership | None = None
        self.share: ShareMembership | None = None
        self.is_sure = True
        self._earlier = 0

    def _late(self) -> OffsetNotAvailableError:
        return OffsetNotAvailableError(
            f"group {self.group.group_id!r}: an earlier request still waits for the replicas of "
            "__consumer_offsets, or for a disk"
        )

    @property
    def changes(self) -> int:
        """Return the group's change counter. If the counter has changed, a member asks for its assignment
        again.
        """
        return self._earlier + (self.consumer or self.share or self.group).changes

    def count(self, more: int) -> None:
        """Add `more` to the change counter."""
        self._earlier += more

    def become(
        self,
        group: ClassicGroup,
        consumer: ConsumerMembership | None = None,
        share: ShareMembership | None = None,
    ) -> None:
        """Replace the groups of this entry, and add one to the change counter."""
        before = self.changes
        self.group, self.consumer, self.share = group, consumer, share
        self.count(before + 1 - self.changes)

    @property
    def has_members(self) -> bool:
        modern = self.consumer or self.share
        return bool(self.group.members or (modern is not None and modern.group.members))

    def expire(self, now: float) -> None:
        """Remove members whose sessions have expired, end a rebalance's wait for members if its deadline has
        passed, and assign a share group anew if an assignment is due.
        """
        self.group.expire(now)
        modern = self.consumer or self.share
        if modern is not None:
            modern.expire(now)

    def due(self) -> float:
        """Return the time at which `expire` must be called next."""
        modern = self.consumer or self.share
        return min(self.group.due(), math.inf if modern is None else modern.due())
