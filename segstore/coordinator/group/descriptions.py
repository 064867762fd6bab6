"""The values that `Groups` returns: groups, their members, and their progress in partitions.

On disk: nothing. Threads: any; all are immutable.
"""

from __future__ import annotations

from dataclasses import dataclass

from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition

CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
"""The types of groups (Kafka: GroupType)."""


@dataclass(frozen=True)
class GroupListing:
    """A group in a list. `state` is Kafka's name of the group's state, or "Unknown" if `error` is set.
    `protocol_type` is None if the group has committed offsets and never had members. `group_type` is
    CLASSIC, CONSUMER or SHARE.
    """

    group_id: str
    state: str
    protocol_type: str | None = None
    error: str | None = None
    group_type: str = CLASSIC


@dataclass(frozen=True)
class GroupMember:
    """A member and its assigned partitions."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class PartitionState:
    """A group's progress in one partition. `member_id` is the member that reads the partition.

    `start` and `end` are the log start offset and the log end offset. `lag` is `end` minus the committed
    offset, as in Kafka. For a share group, `complete` is the number of records after the share partition's
    start offset that are acknowledged or archived; `lag` does not count them (KIP-1226). `unread` is `lag`
    without the records that retention removed.

    `start` and `end` are None if the partition can't be read; `error` then has the reason. `lag` and `unread`
    are None if `end` or `complete` is None, or if no offset was committed. `pending` is True if an open
    transaction has an offset of the partition to commit for the group.
    """

    partition: TopicPartition
    committed: OffsetAndMetadata | None
    start: int | None
    end: int | None
    member_id: str | None = None
    pending: bool = False
    error: str | None = None
    complete: int | None = 0

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None or self.complete is None:
            return None
        return max(self.end - self.committed.offset - self.complete, 0)

    @property
    def unread(self) -> int | None:
        if self.lag is None or self.start is None or self.end is None:
            return None
        return min(self.lag, self.end - self.start)


@dataclass(frozen=True)
class GroupDescription:
    """A group with its members, sorted by id, and its partitions, sorted. `generation` is -1 if the group
    never had members. For a consumer group (KIP-848) or share group (KIP-932), `generation` is the group
    epoch and `protocol` the assignor. `group_type` is CLASSIC, CONSUMER or SHARE.
    """

    group_id: str
    state: str
    protocol_type: str | None
    protocol: str | None
    generation: int
    members: tuple[GroupMember, ...]
    partitions: tuple[PartitionState, ...]
    error: str | None = None
    group_type: str = CLASSIC
    complete: int | None = 0

    @property
    def lag(self) -> int:
        """Return the sum of `lag` of the partitions whose `lag` is known."""
        return sum(part.lag or 0 for part in self.partitions)

    @property
    def unread(self) -> int:
        """Return the sum of `unread` of the partitions whose `unread` is known."""
        return sum(part.unread or 0 for part in self.partitions)
