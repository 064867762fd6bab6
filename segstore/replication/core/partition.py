"""One replica of a partition: the offsets of its log, and its role. The role is leader or follower. While the
replica is offline, it has no role (Kafka: Partition; rules R3, R7, R8, R22, R32).

Threads: all calls are made under the partition's lock. Each change of role makes a new role object.
"""

from __future__ import annotations

from collections.abc import Mapping

from segstore.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    ReplicaOfflineError,
    UnknownLeaderEpochError,
)
from segstore.integers import INT64_MAX
from segstore.replication.core.acks import DelayedProduces
from segstore.replication.core.config import ReplicaConfig
from segstore.replication.core.effects import AssignEpoch, Effects, Truncate
from segstore.replication.core.follower import Follower
from segstore.replication.core.leader import Leader
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.messages import FetchAnswer, FetchRequest
from segstore.replication.core.registration import NO_LEADER, BrokerRegistration, PartitionRegistration


class PartitionReplica:
    """The log and the role of a replica. `role` is None while the replica is offline. Before the first
    `become`, the replica is a follower without a leader. `brokers` has the broker registrations that this
    process knows, and the caller updates `brokers`. Methods return effects, which the caller carries out.
    """

    __slots__ = ("acks", "brokers", "config", "log", "replica_id", "role")

    def __init__(
        self,
        replica_id: int,
        log: ReplicaLog,
        brokers: Mapping[int, BrokerRegistration],
        config: ReplicaConfig,
    ) -> None:
        self.replica_id, self.log, self.brokers, self.config = replica_id, log, brokers, config
        self.acks = DelayedProduces()
        self.role: Leader | Follower | None = self.following(NO_LEADER, -1, -1)

    def copy(self) -> PartitionReplica:
        """Return a copy that shares only `brokers` with this object."""
        made = type(self)(self.replica_id, self.log.copy(), self.brokers, self.config)
        made.acks = self.acks.copy()
        if isinstance(self.role, Leader):
            made.role = self.role.copy(made.log, made.acks)
        else:
            made.role = None if self.role is None else self.role.copy(made.log)
        return made

    # --- roles -----------------------------------------------------------------------------------

    def become(self, registration: PartitionRegistration, now_ms: int) -> Effects:
        """Become leader or follower, as `registration` says. A registration with a lower partition epoch than
        the role's is ignored (R22; Kafka: Partition.makeLeader, makeFollower).

        An offline replica stays offline. A replica that is no longer assigned goes offline. The leader epoch
        is always the one in the metadata (R7).
        """
        role = self.role
        if role is None or registration.partition_epoch < role.partition_epoch:
            return ()
        if self.replica_id not in registration.replicas:
            return self.go_offline()
        if registration.leader == self.replica_id:
            return self._lead(role, registration, now_ms)
        return self._follow(role, registration)

    def _lead(self, role: Leader | Follower, registration: PartitionRegistration, now_ms: int) -> Effects:
        """Become leader, or stay leader in the same leader epoch. A new leader epoch begins at the log end
        offset (R3). At its start the log end offsets of the followers are unknown (R17).

        In Kafka a leader that is elected again keeps the offsets of the followers. Here they are dropped: the
        followers may have followed another leader between the two elections, and truncated their logs.
        """
        if isinstance(role, Leader) and role.leader_epoch == registration.leader_epoch:
            return role.apply(registration, now_ms)
        assigned = AssignEpoch(registration.leader_epoch, self.log.end_offset)
        self.log.epochs.assign(*assigned)
        leader = self.leading()
        self.role = leader
        return (assigned, *leader.apply(registration, now_ms))

    def _follow(self, role: Leader | Follower, registration: PartitionRegistration) -> Effects:
        """Become a follower. If the log has no leader epochs, truncate it to the high watermark (R36)."""
        leader, leader_epoch = registration.leader, registration.leader_epoch
        lost = self.acks.lose_leadership()
        same = isinstance(role, Follower) and (role.leader, role.leader_epoch) == (leader, leader_epoch)
        self.role = self.following(leader, leader_epoch, registration.partition_epoch)
        log = self.log
        if same or log.epochs.entries or log.end_offset == log.high_watermark:
            return lost
        return (*lost, Truncate(log.high_watermark))

    def leading(self) -> Leader:
        """Return a new `Leader` that has no leader epoch yet."""
        return Leader(self.replica_id, self.log, self.brokers, self.config, self.acks)

    def following(self, leader: int, leader_epoch: int, partition_epoch: int) -> Follower:
        """Return a new `Follower`."""
        return Follower(self.replica_id, self.log, leader, leader_epoch, partition_epoch)

    def go_offline(self) -> Effects:
        """Stop the replica, because its directory has failed or the replica was removed (R32; Kafka:
        Partition.markOffline).
        """
        self.role = None
        return self.acks.lose_leadership()

    def configure(self, config: ReplicaConfig, now_ms: int) -> Effects:
        """Apply changed settings."""
        self.config = config
        return self.role.configure(config, now_ms) if isinstance(self.role, Leader) else ()

    # --- requests --------------------------------------------------------------------------------

    @property
    def leader(self) -> Leader:
        """Return this replica's `Leader`. Raises ReplicaOfflineError, and NotLeaderOrFollowerError if the
        replica is a follower.
        """
        role = self.role
        if isinstance(role, Leader):
            return role
        if role is None:
            raise ReplicaOfflineError(f"replica {self.replica_id} is offline")
        known = f"replica {role.leader} does" if role.leader != NO_LEADER else "no replica does"
        raise NotLeaderOrFollowerError(f"replica {self.replica_id} does not lead the partition: {known}")

    def leader_for(self, current_leader_epoch: int) -> Leader:
        """Return this replica's `Leader`, for a request with `current_leader_epoch`. If that is -1, the epoch
        is not checked (R8; Kafka: Partition.localLogWithEpochOrThrow).

        Raises the errors of `leader`, FencedLeaderEpochError if the request's epoch is lower than the
        leader's, and UnknownLeaderEpochError if it is higher.
        """
        role = self.role
        if role is not None and current_leader_epoch >= 0:
            self._check_epoch(current_leader_epoch, role.leader_epoch)
        return self.leader

    def _check_epoch(self, requested: int, own: int) -> None:
        if requested < own:
            raise FencedLeaderEpochError(f"the leader epoch is {own}, and not {requested} any more")
        if requested > own:
            raise UnknownLeaderEpochError(f"the leader epoch is {own}, {requested} is not known here yet")

    def on_fetch(
        self, request: FetchRequest, now_ms: int, synced: int = INT64_MAX, own_synced: int = 0
    ) -> tuple[FetchAnswer, Effects]:
        """Return (the answer to a follower's fetch, effects). Raises the errors of `leader_for` and
        `Leader.on_fetch`.
        """
        return self.leader_for(request.current_leader_epoch).on_fetch(request, now_ms, synced, own_synced)

    def offsets(self, current_leader_epoch: int) -> tuple[int, int]:
        """Return (log start offset, log end offset) of the leader, for a follower whose fetch offset is out
        of range (R12). Raises the errors of `leader_for`.
        """
        log = self.leader_for(current_leader_epoch).log
        return log.start_offset, log.end_offset
