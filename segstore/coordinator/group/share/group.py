"""`ShareGroup`: the state of a share group (KIP-932), built from its records in `__consumer_offsets` (Kafka:
ShareGroup, ModernGroup).

A change is a list of records. They are written first, and then applied by `replay`, which also applies the
stored records after a restart. Threads: under the group's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from segstore.coordinator.group.share.member import ShareMember
from segstore.coordinator.offsets.consumer_schema import NOTHING, Assignment, GroupEpoch, TargetAssignment
from segstore.coordinator.offsets.share_schema import (
    ShareChange,
    ShareCurrent,
    ShareKind,
    ShareRecordKey,
    ShareStateTopics,
    ShareSubscription,
    ShareTargetEpoch,
    ShareValue,
)
from segstore.errors import UnknownMemberIdError

ASSIGNOR = "simple"
"""The only assignor of share groups (Kafka: SimpleAssignor)."""
FIRST_EPOCH = 2
"""The first epoch that is written for a group, as in Kafka."""


class ShareGroupState(Enum):
    """The state of a group (Kafka: ShareGroup.ShareGroupState); each value is Kafka's name of the state."""

    EMPTY = "Empty"
    STABLE = "Stable"


@dataclass(frozen=True)
class ShareGroupInfo:
    """A share group in a description; `targets` has the target assignments by member id."""

    state: ShareGroupState
    epoch: int
    target_epoch: int
    members: tuple[ShareMember, ...]
    targets: Mapping[str, Assignment]
    assignor: str = ASSIGNOR


class ShareGroup:
    """The state of a share group. `epoch` grows whenever the group has to be assigned anew; `target_epoch` is
    the epoch of `targets`, the target assignments by member id. `partitions` lists the share partitions that
    have a durable state, those whose state is being created, and those whose state is being deleted.
    """

    def __init__(self, group_id: str, records: Mapping[ShareRecordKey, ShareValue]) -> None:
        self.group_id = group_id
        self.epoch = self.metadata_hash = self.target_epoch = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.partitions = ShareStateTopics()
        # The records are sorted by type, so that subscriptions come first: `replay` ignores the assignment of
        # a member that has no subscription.
        self.replay(sorted(records.items(), key=lambda each: each[0].kind))

    # --- records -----------------------------------------------------------------------------

    def replay(self, changes: Iterable[ShareChange]) -> None:
        """Apply records that were written to the log."""
        for key, value in changes:
            self._apply(key, value)

    def _apply(self, key: ShareRecordKey, value: ShareValue | None) -> None:
        name = key.member_id
        if isinstance(value, GroupEpoch):
            self.epoch, self.metadata_hash = value
        elif isinstance(value, ShareTargetEpoch):
            self.target_epoch = value.epoch
        elif isinstance(value, ShareSubscription):
            self.members[name] = replace(self.members.get(name) or ShareMember(name), subscription=value)
        elif isinstance(value, ShareCurrent):
            if name in self.members:
                self.members[name] = replace(self.members[name], current=value)
        elif isinstance(value, TargetAssignment):
            self.targets[name] = value.partitions
        elif isinstance(value, ShareStateTopics):
            self.partitions = value
        else:
            self._delete(key)

    def _delete(self, key: ShareRecordKey) -> None:
        if key.kind is ShareKind.MEMBER:
            self.members.pop(key.member_id, None)
        elif key.kind is ShareKind.TARGET:
            self.targets.pop(key.member_id, None)
        elif key.kind is ShareKind.PARTITIONS:
            self.partitions = ShareStateTopics()

    # --- queries ---------------------------------------------------------------------------------

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def next_epoch(self) -> int:
        """Return the group epoch that the next change gets."""
        return max(self.epoch + 1, FIRST_EPOCH)

    def member(self, member_id: str) -> ShareMember:
        """Return the member with this id. Raises UnknownMemberIdError."""
        if member_id not in self.members:
            raise UnknownMemberIdError(
                f"share group {self.group_id!r} has no member {member_id!r}: it left, was taken for failed, "
                "or never joined"
            )
        return self.members[member_id]

    def target(self, member_id: str) -> Assignment:
        """Return the target assignment of a member."""
        return self.targets.get(member_id, NOTHING)

    def subscribed(self) -> set[str]:
        """Return the topics that any member subscribes to (ModernGroup: isSubscribedToTopic)."""
        return {name for member in self.members.values() for name in member.subscription.topic_names}

    def info(self) -> ShareGroupInfo:
        """Return the group's description."""
        members = tuple(self.members.values())
        return ShareGroupInfo(self.state, self.epoch, self.target_epoch, members, dict(self.targets))
