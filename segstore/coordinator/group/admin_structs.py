"""What `Groups` tells of a group. Nothing on disk. Threads: any; all are immutable."""

from __future__ import annotations

from dataclasses import dataclass

from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition


@dataclass(frozen=True)
class GroupListing:
    """`state` by Kafka's name, "Unknown" where `error` says why; `protocol_type` is None for a group whose
    offsets were committed without members.
    """

    group_id: str
    state: str
    protocol_type: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class GroupMember:
    """A member and what it was given."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class PartitionState:
    """How far a group is in one partition. `member_id`: who reads it.

    `start` and `end` are the log's offsets, `lag` those from the committed one to the end; None where
    they can't be told: `error` says why. `pending`: an open transaction is about to commit.
    """

    partition: TopicPartition
    committed: OffsetAndMetadata | None
    start: int | None
    end: int | None
    member_id: str | None = None
    pending: bool = False
    error: str | None = None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed.offset, 0)


@dataclass(frozen=True)
class GroupDescription:
    """A group, its members by id, its partitions in order; `generation` is -1 where it never had members."""

    group_id: str
    state: str
    protocol_type: str | None
    protocol: str | None
    generation: int
    members: tuple[GroupMember, ...]
    partitions: tuple[PartitionState, ...]
    error: str | None = None

    @property
    def lag(self) -> int:
        """Of all partitions whose lag is known."""
        return sum(part.lag or 0 for part in self.partitions)
