"""The decisions of the controller: registrations, fencing, ISR changes, elections, reassignments (Kafka:
ReplicationControlManager, ClusterControlManager; rules R21, R24 to R31).

A call returns `Persist` effects for the records to write, and after them a `Send` with the answer: each
change is durable before the answer is sent (R31). The caller makes one call at a time. If a record can't be
written, the caller drops this object, and makes a new `Controller` from the durable records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from segstore.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    NoReassignmentInProgressError,
    NotControllerError,
    PreferredLeaderNotAvailableError,
    SegstoreError,
    UnknownTopicOrPartitionError,
)
from segstore.replication.core.cluster import BrokerHeartbeat, BrokerState, ClusterControl
from segstore.replication.core.config import ControllerConfig, TopicSettings
from segstore.replication.core.effects import Effects, Persist, Send
from segstore.replication.core.election import Election, PartitionChange, Replicas, reassigned
from segstore.replication.core.messages import AlterPartition, AlterPartitionReply
from segstore.replication.core.records import (
    BrokerRecord,
    HeartbeatReply,
    Key,
    PartitionDecision,
    Record,
)
from segstore.replication.core.registration import NO_LEADER, BrokerRegistration, PartitionRegistration

__all__ = ["BrokerRecord", "Controller", "HeartbeatReply", "Key", "PartitionDecision", "Record"]


class Controller:
    """The metadata, and the rules for changes of the metadata. `next_offset` is the metadata offset of the
    next record.

    `settings` has the settings of partitions. `config` has the settings of a partition that is not in
    `settings`. The caller fills `settings` from the metadata before the first call of a method.
    """

    __slots__ = ("cluster", "config", "next_offset", "partitions", "settings")

    def __init__(self, config: ControllerConfig, next_offset: int = 0) -> None:
        self.config, self.next_offset = config, next_offset
        self.cluster = ClusterControl(config.broker_session_timeout_ms)
        self.partitions: dict[Key, PartitionRegistration] = {}
        self.settings: dict[Key, TopicSettings] = {}

    def copy(self) -> Controller:
        """Return a copy."""
        made = type(self)(self.config, self.next_offset)
        made.cluster, made.partitions = self.cluster.copy(), dict(self.partitions)
        made.settings = dict(self.settings)
        return made

    def apply(self, record: Record) -> None:
        """Apply a record to this state. The record becomes durable after that."""
        if isinstance(record, BrokerRecord):
            self.cluster.brokers[record.broker] = record.registration
        else:
            self.partitions[record.partition] = record.registration
        self.next_offset += 1

    def _persist(self, record: Record) -> Persist:
        self.apply(record)
        return Persist(record)

    # --- brokers ---------------------------------------------------------------------------------

    def register(self, broker: int, incarnation: str, clean_epoch: int, now_ms: int) -> Effects:
        """Register a broker. The answer (the message of the `Send` effect) is the new broker epoch (R27;
        Kafka: registerBroker).

        `clean_epoch` is the broker epoch at the broker's last clean stop, -1 if there was none. If
        `clean_epoch` is not the broker epoch of the last registration, the last stop was unclean, and the
        broker is removed from the ISR and the ELR of its partitions (R26). Raises
        DuplicateBrokerRegistrationError.
        """
        self.cluster.check_free(broker, incarnation, now_ms)
        existing = self.cluster.brokers.get(broker)
        if existing is not None and existing.incarnation == incarnation:
            return (Send(existing.epoch),)
        clean = existing is not None and clean_epoch == existing.epoch
        left = self._leave(broker, unclean=not clean)
        # The broker epoch is the offset of this record.
        made = BrokerRegistration(self.next_offset, incarnation)
        self.cluster.sessions.pop(broker, None)
        return (*left, self._persist(BrokerRecord(broker, made)), Send(made.epoch))

    def restart(self, broker: int, incarnation: str, clean_epoch: int, now_ms: int) -> Effects:
        """Register a broker when the store is opened. Unlike `register`, this method does not check for an
        earlier incarnation: none can be running.

        If `clean_epoch` is the epoch of the last registration, the broker was stopped cleanly: its logs are
        complete, and no other broker was elected after the stop. So the broker stays in the ISR of its
        partitions, and stays leader. The broker still gets a higher epoch: the `clean_epoch` of an older copy
        of the disk then never equals the epoch of the last registration.
        """
        existing = self.cluster.brokers.get(broker)
        if existing is None or clean_epoch != existing.epoch:
            self.cluster.sessions.pop(broker, None)
            return self.register(broker, incarnation, clean_epoch, now_ms)
        again = existing._replace(epoch=self.next_offset, incarnation=incarnation, shutting_down=False)
        return (self._persist(BrokerRecord(broker, again)), Send(again.epoch))

    def remember(self, key: Key, replica: int) -> Effects:
        """Make a replica the last known leader of a partition whose ISR and ELR are empty. As soon as the
        replica is live, an unclean election makes it leader (R24; KIP-966).
        """
        change = self._partition(key)._replace(last_known_elr=(replica,))
        after = change._replace(partition_epoch=change.partition_epoch + 1)
        return (self._persist(PartitionDecision(key, after)),)

    def heartbeat(self, heartbeat: BrokerHeartbeat, now_ms: int) -> Effects:
        """Handle a heartbeat. The answer (the message of the `Send` effect) is a `HeartbeatReply` (R28;
        Kafka: processBrokerHeartbeat).

        Raises StaleBrokerEpochError if the broker must register again.
        """
        broker, cluster = heartbeat.broker, self.cluster
        cluster.check_epoch(broker, heartbeat.broker_epoch)
        state = cluster.next_state(heartbeat, lambda: self._leads(broker))
        cluster.contact(heartbeat, now_ms)
        effects = self._turn(broker, state)
        if state is BrokerState.CONTROLLED_SHUTDOWN and effects:
            cluster.shut_down_at(broker, self.next_offset - 1)
        caught_up = heartbeat.metadata_offset >= heartbeat.broker_epoch
        return (*effects, Send(HeartbeatReply(caught_up, state)))

    def _leads(self, broker: int) -> bool:
        return any(partition.leader == broker for partition in self.partitions.values())

    def _turn(self, broker: int, state: BrokerState) -> Effects:
        if state is self.cluster.state(broker):
            return ()
        if state is BrokerState.UNFENCED:
            return self._unfence(broker)
        if state is BrokerState.CONTROLLED_SHUTDOWN:
            found = self.cluster.brokers[broker]
            return self._register(broker, found._replace(shutting_down=True)) + self._leave(broker)
        return self._fence(broker)

    def on_time(self, now_ms: int) -> Effects:
        """Fence one broker whose session has expired, if there is one. Called every quarter of the session
        timeout; each call fences at most one broker (R27; Kafka: maybeFenceOneStaleBroker).
        """
        stale = self.cluster.first_stale(now_ms)
        return () if stale is None else self._fence(stale)

    def fail(self, broker: int) -> Effects:
        """Fence a broker whose directory has failed: the broker is removed from all ISRs, and other leaders
        are elected (R32; Kafka: a broker stops when its last log directory is offline).

        The broker stays in the ELR (R26), because its disk may work again, and have complete logs. The
        broker's session is removed, so the broker may register again at once. If the broker is not
        registered, nothing happens.
        """
        self.cluster.sessions.pop(broker, None)
        return self._fence(broker) if broker in self.cluster.brokers else ()

    def _fence(self, broker: int) -> Effects:
        effects, found = self._leave(broker), self.cluster.brokers[broker]
        if found.fenced:
            return effects
        return effects + self._register(broker, found._replace(fenced=True, shutting_down=False))

    def _unfence(self, broker: int) -> Effects:
        """Unfence a broker. If the broker may lead a partition that has no leader, elect the broker."""
        effects = self._register(broker, self.cluster.brokers[broker]._replace(fenced=False))
        leaderless = [key for key, partition in self.partitions.items() if partition.leader == NO_LEADER]
        return effects + self._build((key, self._changing(key)) for key in leaderless)

    def _register(self, broker: int, registration: BrokerRegistration) -> Effects:
        return (self._persist(BrokerRecord(broker, registration)),)

    def _leave(self, broker: int, unclean: bool = False) -> Effects:
        """Remove a broker from the ISR of all partitions, and elect other leaders. If `unclean`, remove the
        broker from the ELR, too (Kafka: generateLeaderAndIsrUpdates).
        """
        changes = []
        for key, partition in self.partitions.items():
            if broker in partition.isr or (unclean and broker in partition.elr):
                change = self._changing(key, without=broker)
                change.isr = tuple(member for member in partition.isr if member != broker)
                change.unclean_shutdown = (broker,) if unclean else ()
                changes.append((key, change))
        return self._build(changes)

    # --- in-sync replicas ------------------------------------------------------------------------

    def alter_partition(self, key: Key, proposal: AlterPartition, broker_epoch: int) -> Effects:
        """Handle a leader's ISR proposal. The answer (the message of the `Send` effect) is an
        `AlterPartitionReply` (R21; Kafka: alterPartition).

        Raises StaleBrokerEpochError if the leader is not registered under `broker_epoch`.
        """
        self.cluster.check_epoch(proposal.leader, broker_epoch)
        error = self.refusal(key, proposal)
        if error is not None:
            return (Send(AlterPartitionReply(error)),)
        change = self._changing(key)
        change.isr = tuple(replica for replica, _ in proposal.isr)
        change.recovering = proposal.recovering
        effects = self._build([(key, change)])
        after = self.partitions[key]
        if after.leader != proposal.leader:
            return (*effects, Send(AlterPartitionReply(NewLeaderElectedError)))
        reply = AlterPartitionReply(None, after.leader_epoch, after.partition_epoch, after.isr)
        return (*effects, Send(reply))

    def refusal(self, key: Key, proposal: AlterPartition) -> type[SegstoreError] | None:
        """Return the error with which a leader's ISR proposal is refused, None if the proposal is valid (R21;
        Kafka: validateAlterPartitionData).
        """
        partition = self.partitions.get(key)
        if partition is None:
            return UnknownTopicOrPartitionError
        if (
            proposal.leader_epoch > partition.leader_epoch
            or proposal.partition_epoch > partition.partition_epoch
        ):
            return NotControllerError
        if proposal.leader_epoch < partition.leader_epoch:
            return FencedLeaderEpochError
        if proposal.leader != partition.leader:
            return InvalidRequestError
        if proposal.partition_epoch < partition.partition_epoch:
            return InvalidUpdateVersionError
        return self._bad_isr(partition, proposal)

    def _bad_isr(
        self, partition: PartitionRegistration, proposal: AlterPartition
    ) -> type[SegstoreError] | None:
        isr = [replica for replica, _ in proposal.isr]
        if partition.leader not in isr or not set(isr) <= set(partition.replicas) or len(set(isr)) < len(isr):
            return InvalidRequestError
        if proposal.recovering and (len(isr) > 1 or not partition.recovering):
            return InvalidRequestError
        eligible = all(self._eligible(replica, epoch) for replica, epoch in proposal.isr)
        return None if eligible else IneligibleReplicaError

    def _eligible(self, replica: int, broker_epoch: int) -> bool:
        """Return whether a replica may be in the ISR (Kafka: ineligibleReplicasForIsr; KIP-903)."""
        return self.cluster.active(replica) and broker_epoch in (-1, self.cluster.brokers[replica].epoch)

    def expel(self, key: Key, replica: int, sound: Replicas) -> Effects:
        """Remove a replica from ISR and ELR, because its damaged log is about to be truncated. `sound` are
        the replicas without damage. If the removed replica was the leader, a replica of `sound` that is in
        sync is elected. The partition epoch always rises, so that an earlier ISR proposal that has the
        removed replica is refused.

        Raises UnknownTopicOrPartitionError, and EligibleLeadersNotAvailableError if no replica of `sound` is
        in sync and live.
        """
        partition, change = self._partition(key), self._changing(key)
        change.election, change.unclean_shutdown = Election.ONLINE, (replica,)
        change.live = lambda broker: broker in sound and self.cluster.active(broker)
        change.isr = tuple(member for member in partition.isr if member != replica)
        if not any(change.live(member) for member in change.isr):
            raise EligibleLeadersNotAvailableError(f"of the replicas {sound} none is in sync and live")
        after = change.build() or partition._replace(partition_epoch=partition.partition_epoch + 1)
        return (self._persist(PartitionDecision(key, after)),)

    # --- partitions ------------------------------------------------------------------------------

    def create_partitions(
        self, assignments: Mapping[Key, Replicas], settings: TopicSettings | None = None
    ) -> Effects:
        """Create partitions of a topic: either all of them or none. The ISR of a partition has all live
        replicas of the partition (Kafka: createTopic, createPartitions). Without `settings` the defaults in
        `config` apply.

        Raises InvalidReplicaAssignmentError if a partition has no live replica, has an unregistered replica,
        or has the same replica twice.
        """
        made = [PartitionDecision(key, self._new(replicas)) for key, replicas in assignments.items()]
        if settings is not None:
            self.settings.update(dict.fromkeys(assignments, settings))
        return tuple(map(self._persist, made))

    def _new(self, replicas: Replicas) -> PartitionRegistration:
        self._check_assignment(replicas)
        isr = tuple(replica for replica in replicas if self.cluster.active(replica))
        if not isr:
            raise InvalidReplicaAssignmentError(f"of the replicas {replicas} none is live")
        return PartitionRegistration(replicas, isr, isr[0])

    def remove(self, keys: Iterable[Key]) -> None:
        """Remove the partitions of a deleted topic. The caller writes the RemoveTopicRecord (Kafka:
        deleteTopic). If a partition does not exist, raises UnknownTopicOrPartitionError and removes no
        partition.
        """
        gone = list(keys)
        for key in gone:
            self._partition(key)
        for key in gone:
            del self.partitions[key]
            self.settings.pop(key, None)

    def _check_assignment(self, replicas: Replicas) -> None:
        known = self.cluster.brokers
        if not replicas or len({*replicas}) < len(replicas) or not {*replicas} <= known.keys():
            raise InvalidReplicaAssignmentError(
                f"replicas {replicas} must be different brokers of those that are registered: {sorted(known)}"
            )

    def elect(self, key: Key, election: Election) -> Effects:
        """Elect a leader. If `election` is PREFERRED, elect the preferred leader. If `election` is UNCLEAN
        and there is no leader, elect any live replica (R24, R29; Kafka: electLeader).

        Raises ElectionNotNeededError, PreferredLeaderNotAvailableError, EligibleLeadersNotAvailableError,
        UnknownTopicOrPartitionError.
        """
        partition, preferred = self._partition(key), election is Election.PREFERRED
        needless = partition.leader == partition.replicas[0] if preferred else partition.leader != NO_LEADER
        if needless:
            raise ElectionNotNeededError(f"replica {partition.leader} leads the partition already")
        change = self._changing(key)
        change.election = election
        effects = self._build([(key, change)])
        if effects:
            return effects
        if preferred:
            raise PreferredLeaderNotAvailableError(f"replica {partition.replicas[0]} is not in sync and live")
        raise EligibleLeadersNotAvailableError(f"of the replicas {partition.replicas} none is live")

    def elect_preferred(self) -> Effects:
        """In each partition whose leader is not the preferred one, elect the preferred leader if it is in
        sync and live. Called every leader.imbalance.check.interval.seconds (R29; Kafka:
        maybeBalancePartitionLeaders).
        """
        changes = []
        for key, partition in self.partitions.items():
            if partition.leader not in (NO_LEADER, partition.replicas[0]):
                change = self._changing(key)
                change.election = Election.PREFERRED
                changes.append((key, change))
        return self._build(changes)

    def _elect_unclean(self, keys: Iterable[Key]) -> Effects:
        """For each partition of `keys` that has no leader and allows unclean elections, elect a live replica
        (R24; Kafka: maybeElectUncleanLeaders).
        """
        leaderless = [
            key
            for key in keys
            if self.partitions[key].leader == NO_LEADER and self.settings_of(key).unclean_leader_election
        ]
        return self._build((key, self._changing(key)) for key in leaderless)

    def reassign(self, key: Key, target: Replicas) -> Effects:
        """Begin to move a partition to the replicas `target`. The move is complete when all replicas of
        `target` are in sync (R30; Kafka: changePartitionReassignment).

        Raises InvalidReplicaAssignmentError, UnknownTopicOrPartitionError.
        """
        partition = self._partition(key)
        self._check_assignment(target)
        change = self._changing(key)
        change.replicas, change.adding, change.removing = reassigned(partition.replicas, target)
        return self._build([(key, change)])

    def cancel_reassignment(self, key: Key) -> Effects:
        """Restore the replicas that a partition had before its reassignment (R30; Kafka:
        cancelPartitionReassignment).

        Raises UnknownTopicOrPartitionError and NoReassignmentInProgressError. Raises
        InvalidReplicaAssignmentError if none of the earlier replicas is in sync and unclean elections are not
        allowed.
        """
        partition = self._partition(key)
        if not partition.reassigning:
            raise NoReassignmentInProgressError("the partition is not being reassigned")
        change = self._changing(key)
        change.replicas = tuple(r for r in partition.replicas if r not in partition.adding)
        change.isr = tuple(r for r in partition.isr if r not in partition.adding)
        change.adding = change.removing = ()
        if not change.isr and not self.settings_of(key).unclean_leader_election:
            raise InvalidReplicaAssignmentError(
                f"of the replicas {change.replicas} none is in sync; unclean.leader.election.enable is false"
            )
        change.isr = change.isr or change.replicas[:1]
        return self._build([(key, change)])

    def _partition(self, key: Key) -> PartitionRegistration:
        try:
            return self.partitions[key]
        except KeyError:
            raise UnknownTopicOrPartitionError(f"there is no partition {key}") from None

    # --- settings --------------------------------------------------------------------------------

    def settings_of(self, key: Key) -> TopicSettings:
        """Return the settings of a partition."""
        default = TopicSettings(self.config.min_insync_replicas, self.config.unclean_leader_election)
        return self.settings.get(key, default)

    def configure(self, keys: Iterable[Key], settings: TopicSettings) -> Effects:
        """Change the settings of a topic's partitions. If min.insync.replicas changes, the ELR is emptied,
        because the ELR was computed for the old value (Kafka: ClearElrRecord). If `settings` allow unclean
        elections, a leader is elected in each partition that has none (R24). Raises
        UnknownTopicOrPartitionError.
        """
        changing = {key: self._partition(key) for key in keys}
        min_isr = settings.min_insync_replicas
        other = [key for key in changing if self.settings_of(key).min_insync_replicas != min_isr]
        self.settings.update(dict.fromkeys(changing, settings))
        cleared = tuple(effect for key in other for effect in self._clear_elr(key))
        return cleared + self._elect_unclean(changing)

    def _clear_elr(self, key: Key) -> Effects:
        # If the partition has no leader, its ELR is not emptied: no record is committed without a leader, so
        # the replicas of the ELR still have all committed records. Kafka empties the ELR, and then only an
        # unclean election can give the partition a leader.
        partition = self.partitions[key]
        if partition.leader == NO_LEADER or not partition.elr:
            return ()
        after = partition._replace(elr=(), partition_epoch=partition.partition_epoch + 1)
        return (self._persist(PartitionDecision(key, after)),)

    # --- changes ---------------------------------------------------------------------------------

    def _changing(self, key: Key, without: int = NO_LEADER) -> PartitionChange:
        """Return a `PartitionChange` for which the broker `without` counts as not live."""
        partition, settings = self.partitions[key], self.settings_of(key)
        return PartitionChange(
            partition,
            live=lambda broker: broker != without and self.cluster.active(broker),
            min_isr=min(settings.min_insync_replicas, len(partition.replicas)),
            elr_enabled=self.config.eligible_leader_replicas,
            election=Election.UNCLEAN if settings.unclean_leader_election else Election.ONLINE,
        )

    def _build(self, changes: Iterable[tuple[Key, PartitionChange]]) -> Effects:
        built = ((key, change.build()) for key, change in changes)
        return tuple(
            self._persist(PartitionDecision(key, after)) for key, after in built if after is not None
        )
