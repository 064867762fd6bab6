"""`GroupEntry`: a group of any protocol, and its lock.

On disk: nothing. Threads: whoever reads or changes a group holds its lock.
"""

from __future__ import annotations

import math

from segstore.coordinator.group.classic.group import ClassicGroup
from segstore.coordinator.group.consumers.membership import ConsumerMembership
from segstore.coordinator.group.share.membership import ShareMembership
from segstore.errors import OffsetNotAvailableError
from segstore.mutex import BoundedLock


class GroupEntry:
    """A group and its lock. `group` is the group of the classic protocol, which is empty where there is a
    `consumer`, the group of KIP-848's, or a `share`, that of KIP-932's. `gone`: the group was dropped, and a
    thread that waited for the lock must look it up anew. `is_kept`: the log has it. `is_sure`: memory has
    what the log has; else a write that says what the group is has failed, and may be committed later.
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
        """Return a number that grows with each change of which members may have to know."""
        return self._earlier + (self.consumer or self.share or self.group).changes

    def count(self, more: int) -> None:
        """Count so many changes more."""
        self._earlier += more

    def become(
        self,
        group: ClassicGroup,
        consumer: ConsumerMembership | None = None,
        share: ShareMembership | None = None,
    ) -> None:
        """Be another group from now on, which is a change."""
        before = self.changes
        self.group, self.consumer, self.share = group, consumer, share
        self.count(before + 1 - self.changes)

    @property
    def has_members(self) -> bool:
        modern = self.consumer or self.share
        return bool(self.group.members or (modern is not None and modern.group.members))

    def expire(self, now: float) -> None:
        """Remove members whose sessions have ended."""
        self.group.expire(now)
        modern = self.consumer or self.share
        if modern is not None:
            modern.expire(now)

    def due(self) -> float:
        """Return when `expire` has something to do next."""
        modern = self.consumer or self.share
        return min(self.group.due(), math.inf if modern is None else modern.due())
