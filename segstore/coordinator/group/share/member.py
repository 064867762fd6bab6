"""`ShareMember`: a member of a share group (KIP-932), and its heartbeats (Kafka: ShareGroupMember,
ShareGroupHeartbeatRequest).

Threads: any; all objects are immutable.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from segstore.coordinator.group.classic.member import Pulse
from segstore.coordinator.offsets.consumer_schema import Assignment
from segstore.coordinator.offsets.share_schema import ShareCurrent, ShareSubscription
from segstore.errors import FencedMemberEpochError, InvalidRequestError

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
"""The epochs by which a member joins, and leaves (Kafka: ShareGroupHeartbeatRequest)."""
LONGEST_MEMBER_ID = 36
"""Limit of a member id's length in characters; the member chooses the id."""
SHARE_CLIENT_HOST = "/127.0.0.1"
"""The client host of a share group's member, if the member is a consumer in the store's own process."""


@dataclass(frozen=True, kw_only=True)
class ShareHeartbeat:
    """A heartbeat of a share group's member. `epoch` is 0 if the member joins, -1 if it leaves. If the rack
    or the topics are None, they have not changed. If there is a `pulse`, the member is a consumer in this
    process, and the coordinator checks its pulse.
    """

    member_id: str
    epoch: int
    rack_id: str | None = None
    topic_names: Collection[str] | None = None
    client_id: str = ""
    client_host: str = SHARE_CLIENT_HOST
    pulse: Pulse | None = None

    def merged(self, before: ShareSubscription) -> ShareSubscription:
        """Return the member's subscription, with the values of this heartbeat in place of earlier values."""
        names = self.topic_names
        return ShareSubscription(
            before.rack_id if self.rack_id is None else self.rack_id,
            self.client_id,
            self.client_host,
            before.topic_names if names is None else frozenset(names),
        )

    def check(self) -> None:
        """Raise InvalidRequestError unless the heartbeat's values are valid (GroupCoordinatorService:
        throwIfShareGroupHeartbeatRequestIsInvalid).
        """
        check_member_id(self.member_id)
        if self.epoch < LEAVE_EPOCH:
            raise InvalidRequestError(f"member_epoch={self.epoch}: must be at least {LEAVE_EPOCH}")
        if self.rack_id is not None and not self.rack_id.strip():
            raise InvalidRequestError("rack_id must not be empty")
        if self.epoch == JOIN_EPOCH and not self.topic_names:
            raise InvalidRequestError("subscribed_topic_names must be given to join")


def check_member_id(member_id: str | None) -> str:
    """Return `member_id`. Raises InvalidRequestError if the id is empty or too long."""
    if not member_id or not member_id.strip():
        raise InvalidRequestError("member_id must not be empty")
    if len(member_id) > LONGEST_MEMBER_ID:
        raise InvalidRequestError(
            f"member_id has {len(member_id):,} characters: allowed are {LONGEST_MEMBER_ID}"
        )
    return member_id


class ShareBeaten(NamedTuple):
    """The answer to a heartbeat; `assignment` is None if the assignment has not changed."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int
    assignment: Assignment | None = None


@dataclass(frozen=True)
class ShareMember:
    """A member of a share group, with its subscription and its current assignment."""

    member_id: str
    subscription: ShareSubscription = ShareSubscription()  # noqa: RUF009  # immutable
    current: ShareCurrent = ShareCurrent()  # noqa: RUF009

    @property
    def epoch(self) -> int:
        return self.current.epoch

    @property
    def assigned(self) -> Assignment:
        return self.current.assigned

    def check_epoch(self, epoch: int) -> None:
        """Raise FencedMemberEpochError unless the member may send this epoch. The previous epoch is accepted,
        because the last answer may have been lost.
        """
        if epoch not in (JOIN_EPOCH, self.epoch, self.current.previous_epoch):
            raise FencedMemberEpochError(
                f"member {self.member_id!r} comes with epoch {epoch}, and has {self.epoch}: it must join "
                "again"
            )

    def given(self, epoch: int, target: Assignment) -> ShareMember:
        """Return the member with this epoch, and with `target` as its assignment. Members of share groups get
        new partitions at once: no other member has to revoke them first.
        """
        if self.epoch == epoch and self.current.assigned == target:
            return self
        return replace(self, current=ShareCurrent(epoch, self.epoch, target))
