"""`ClassicMembership`: one consumer's membership in a group by the classic protocol. It sends the join and
sync requests, and finds out when the group rebalances. `GroupLeader`: computes the assignments if this member
is the group's leader.

Threads: one, the consumer's; the coordinator reads the membership's `Pulse`, which has the times of the last
poll and heartbeat.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from enum import Enum

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.membership import GroupMembership
from segstore.coordinator.consumer_protocol import decode_assignment, decode_subscription, encode_assignment
from segstore.coordinator.group.assignors.base import Assignor
from segstore.coordinator.group.classic.member import JoinGroupResult, Joining, MemberInfo, Protocols, Ticket
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.structs import UNJOINED, TopicPartition
from segstore.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    RetriableError,
    StorageError,
    StoreClosedError,
    UnknownMemberIdError,
)
from segstore.storage.meta.topics import TopicInfo

REBALANCING, STABLE = "<rebalancing>", "<stable>"


_NOT_IN = (
    UnknownMemberIdError,
    IllegalGenerationError,
    RebalanceInProgressError,
    # This error is raised if a member with KIP-848's protocol has joined between this member's join and sync
    # requests: the group may have chosen another protocol then.
    InconsistentGroupProtocolError,
)
"""If `sync` raises one of these errors, the member must join again."""


class MemberPhase(Enum):
    """The state of a member. Each value is kafka-python's name of the state."""

    OUT = UNJOINED
    JOINING = REBALANCING
    SYNCING = REBALANCING + " "
    IN = STABLE


class ClassicMembership(GroupMembership):
    """A membership by the classic protocol. An interrupt may come at any time: the coordinator still handles
    a request that was sent, and the member may send each request again.
    """

    def __init__(self, coordinator: GroupCoordinator, config: ConsumerConfig) -> None:
        super().__init__(coordinator, config)
        self.phase = MemberPhase.OUT
        # `_new_id` is the member id that the member itself chooses for its first join.
        self._new_id = ""
        self.protocol = ""
        self._joining: Ticket[JoinGroupResult] | None = None
        self._syncing: Ticket[bytes] | None = None
        self._seen = -1

    @property
    def _state(self) -> str:
        return self.phase.value.strip()

    @property
    def may_commit(self) -> bool:
        """Return whether the phase is IN, or is JOINING and the member still has its earlier generation."""
        return self.phase is MemberPhase.IN or (self.phase is MemberPhase.JOINING and self.generation >= 0)

    @property
    def is_rebalancing(self) -> bool:
        return self.phase is not MemberPhase.IN and (
            self.generation >= 0 or self.phase is not MemberPhase.OUT
        )

    @property
    def left(self) -> bool:
        return self.phase is MemberPhase.OUT and not self.member_id and not self._new_id

    # --- joining ---------------------------------------------------------------------------------

    def join(self, protocols: Protocols) -> None:
        """Send a join request. If the coordinator does not know the member id, drop the id, so that the next
        request joins as a new member. Raises all other errors of GroupCoordinator.join.
        """
        config = self._config
        pulse = self._begin_pulse(config.heartbeat_interval_ms)
        self._new_id = self._new_id or f"{self._instance or config.client_id}-{uuid.uuid4()}"
        joining = Joining(
            protocols=protocols,
            member_id=self.member_id,
            new_id=self._new_id,
            group_instance_id=self._instance,
            client_id=config.client_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            pulse=pulse,
        )
        try:
            self._joining = self._coordinator.join(self._group, joining)
        except UnknownMemberIdError:
            self.lose("")
            return
        self.phase, self.member_id = MemberPhase.JOINING, self._joining.member_id

    def joined(self) -> JoinGroupResult | None:
        """Return the result of the join request if all members have joined, else None. If the rebalance was
        completed without this member, the phase becomes OUT.
        """
        assert self._joining is not None
        try:
            joined = self._joining.get()
        except (UnknownMemberIdError, RebalanceInProgressError) as error:
            self.out(error)
            return None
        if joined is not None:
            self.generation, self.protocol = joined.generation, joined.protocol
        return joined

    def sync(self, assignments: Mapping[str, bytes]) -> None:
        """Send a sync request, which asks for the assignment. The leader's sync request has the assignments
        of all members. If the group has rebalanced without this member, the phase becomes OUT.
        """
        try:
            self._syncing = self._coordinator.sync(
                self._group, self.member_id, self.generation, self.protocol, assignments, self._instance
            )
        except _NOT_IN as error:
            self.out(error)
            return
        self.phase = MemberPhase.SYNCING

    def synced(self) -> bytes | None:
        """Return the assignment if the leader has sent it, else None. If the group has rebalanced without
        this member, the phase becomes OUT.
        """
        assert self._syncing is not None
        try:
            assignment = self._syncing.get()
        except (UnknownMemberIdError, RebalanceInProgressError) as error:
            self.out(error)
            return None
        return assignment

    def take(self) -> None:
        """Record that the member has its assignment: its phase becomes IN."""
        self.phase = MemberPhase.IN

    # --- heartbeats and leaving --------------------------------------------------------------------

    def must_rejoin(self) -> bool:
        """Return whether the member must join again because the group rebalances. The coordinator is asked
        only if the group has changed since the last call. Raises FencedInstanceIdError.
        """
        changes = self._coordinator.changes(self._group)
        if self.phase is not MemberPhase.IN or changes == self._seen:
            return False
        try:
            self._coordinator.heartbeat(self._group, self.member_id, self.generation, self._instance)
        except RebalanceInProgressError:
            return True
        except (UnknownMemberIdError, IllegalGenerationError) as error:
            self.out(error)
        self._seen = changes
        return False

    def out(self, error: Exception) -> None:
        """Make the next poll join the group again. After RebalanceInProgressError the member keeps its
        generation and partitions until that poll. After any other error the member has no generation, because
        its partitions may belong to another member.
        """
        if isinstance(error, RebalanceInProgressError):
            self.phase = MemberPhase.OUT
        else:
            self.lose("" if isinstance(error, UnknownMemberIdError) else self.member_id)

    def lose(self, member_id: str) -> None:
        """Leave the generation, and use `member_id` in the next join."""
        self.phase, self.generation, self.member_id, self._new_id = MemberPhase.OUT, -1, member_id, ""
        self._joining = self._syncing = None

    def leave(self) -> None:
        """Leave the group. A static member only drops its `Pulse`, so that it keeps its partitions until its
        session timeout.
        """
        asked_by = self.member_id or self._new_id
        if asked_by and self._instance is None:
            try:
                self._coordinator.leave(self._group, asked_by)
            except (UnknownMemberIdError, StoreClosedError, RetriableError, StorageError):
                # The store is closed, or the group has removed the member, or will remove it because the
                # member drops its `Pulse` below.
                self.lose("")
        self.pulse = None
        self.lose("")


# --- leading -----------------------------------------------------------------------------------

# `GroupLeader`: a group's leader computes the assignments, and checks whether changed topics need new ones.

_Seen = dict[str, "tuple[str, tuple[int, ...]] | None"]


class GroupLeader:
    """The group leader's view of one generation: the subscriptions of all members, and the partitions of
    their topics.
    """

    def __init__(self, joined: JoinGroupResult, topics: Mapping[str, TopicInfo]) -> None:
        self._subscriptions = {
            member.member_id: decode_subscription(member.subscription, member.group_instance_id)
            for member in joined.members
        }
        self._wanted = {topic for each in self._subscriptions.values() for topic in each.topics}
        self._seen = self._snapshot(topics)
        self._partitions = {t: topics[t].partition_ids for t in sorted(self._wanted) if t in topics}

    def assignments(self, assignor: Assignor) -> dict[str, bytes]:
        """Return every member's assignment."""
        by_member = assignor.assign(self._partitions, self._subscriptions)
        return {member: encode_assignment(by_member.get(member, ())) for member in self._subscriptions}

    def complete(self, members: Iterable[MemberInfo]) -> bool:
        """Return whether `members` have all existing partitions. The result is False if partitions were added
        while the leader, a static member, was not running.
        """
        have = {tp for member in members for tp in decode_assignment(member.assignment)}
        return have == {TopicPartition(t, p) for t, numbers in self._partitions.items() for p in numbers}

    def outdated(self, topics: Mapping[str, TopicInfo]) -> bool:
        """Return whether the partitions of the group's topics have changed since the join."""
        return self._snapshot(topics) != self._seen

    def _snapshot(self, topics: Mapping[str, TopicInfo]) -> _Seen:
        found = {topic: topics.get(topic) for topic in self._wanted}
        return {t: None if info is None else (info.topic_id, info.partition_ids) for t, info in found.items()}
