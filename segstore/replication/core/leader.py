"""The leader of a partition: high watermark, in-sync replicas, acknowledgements (Kafka: the leader's part of
Partition; rules R8, R9, R14 to R23, R38, R39).

Each leader epoch has its own `Leader` (R17, R18). Offsets are int64. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from segstore.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OperationNotAttemptedError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from segstore.integers import INT64_MAX
from segstore.leader_epochs import EpochEnd
from segstore.replication.core.acks import DelayedProduce, DelayedProduces
from segstore.replication.core.config import ReplicaConfig
from segstore.replication.core.effects import Effects, Send, SetHighWatermark
from segstore.replication.core.isr import Committed, IsrState, PendingExpand, PendingShrink
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.messages import AlterPartition, AlterPartitionReply, FetchAnswer, FetchRequest
from segstore.replication.core.registration import BrokerRegistration, PartitionRegistration
from segstore.replication.core.replica import UNKNOWN_OFFSET, RemoteReplica
from segstore.replication.core.truncation import divergence

NOT_APPLIED = (IneligibleReplicaError, OperationNotAttemptedError)
"""Errors of the controller after which the leader may make a new ISR proposal: the ISR is unchanged."""

FINAL = (
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    UnknownTopicOrPartitionError,
)
"""Errors of the controller after which the ISR proposal stays pending until the leader applies a newer
partition epoch (R21).
"""


class Leader:
    """The leader of a partition in one leader epoch.

    Methods return effects, which the caller carries out. `brokers` has the broker registrations that this
    process knows, and `log` has the offsets of the leader's own log. The caller changes `brokers` and `log`,
    too.
    """

    __slots__ = (
        "_reached",
        "acks",
        "brokers",
        "config",
        "epoch_start_offset",
        "isr",
        "leader_epoch",
        "log",
        "partition_epoch",
        "remotes",
        "replica_id",
    )

    def __init__(
        self,
        replica_id: int,
        log: ReplicaLog,
        brokers: Mapping[int, BrokerRegistration],
        config: ReplicaConfig,
        acks: DelayedProduces,
    ) -> None:
        self.replica_id, self.log, self.brokers, self.config, self.acks = (
            replica_id,
            log,
            brokers,
            config,
            acks,
        )
        self.leader_epoch = self.partition_epoch = -1
        self.epoch_start_offset = log.end_offset
        self.remotes: dict[int, RemoteReplica] = {}
        self.isr: IsrState = Committed(frozenset())
        self._reached = UNKNOWN_OFFSET

    def copy(self, log: ReplicaLog, acks: DelayedProduces) -> Leader:
        """Return a copy that uses the log `log` and the waiting requests `acks`."""
        made = type(self)(self.replica_id, log, self.brokers, self.config, acks)
        made.leader_epoch, made.partition_epoch = self.leader_epoch, self.partition_epoch
        made.epoch_start_offset, made.isr, made._reached = self.epoch_start_offset, self.isr, self._reached
        made.remotes = {replica: remote.copy() for replica, remote in self.remotes.items()}
        return made

    # --- metadata --------------------------------------------------------------------------------

    def apply(self, registration: PartitionRegistration, now_ms: int) -> Effects:
        """Apply the assigned replicas and the ISR in `registration` (R22; Kafka:
        Partition.updateAssignmentAndIsr).

        If the partition epoch is not above the partition epoch that was applied last, an ISR proposal in
        flight stays in flight. Kafka cancels the proposal.
        """
        if registration.partition_epoch > self.partition_epoch:
            self.leader_epoch = registration.leader_epoch
            self.partition_epoch = registration.partition_epoch
            self._assign(registration, now_ms)
            self.isr = Committed(frozenset(registration.isr))
        return self._advance(now_ms)

    def _assign(self, registration: PartitionRegistration, now_ms: int) -> None:
        known = self.remotes
        self.remotes = {
            replica: known.get(replica) or RemoteReplica(now_ms if replica in registration.isr else None)
            for replica in registration.replicas
            if replica != self.replica_id
        }

    def configure(self, config: ReplicaConfig, now_ms: int) -> Effects:
        """Apply changed settings."""
        self.config = config
        return self._advance(now_ms)

    # --- followers -------------------------------------------------------------------------------

    def on_fetch(
        self, request: FetchRequest, now_ms: int, synced: int = INT64_MAX, own_synced: int = 0
    ) -> tuple[FetchAnswer, Effects]:
        """Return (the answer to a follower's fetch, effects) (Kafka: Partition.fetchRecords). The caller has
        checked the leader epoch of the fetch. The follower's log is durable below `synced`, and the leader's
        log is durable below `own_synced`.

        If the logs diverge, the follower's `RemoteReplica` is not updated (R9). Raises OffsetOutOfRangeError.
        Raises UnknownLeaderEpochError if the replica is not assigned, and NotLeaderOrFollowerError if the
        fetch has an old broker epoch. After either of these two errors the replica fetches again (R8).
        """
        remote = self.remotes.get(request.replica)
        if remote is None:
            known = ", ".join(map(str, sorted(self.remotes)))
            raise UnknownLeaderEpochError(
                f"replica {request.replica} is not assigned: the followers are {known}"
            )
        diverging = divergence(self.log, request)
        if diverging is not None:
            return self._answer(diverging, False), ()
        self._check_broker_epoch(request)
        remote.record_fetch(
            request.fetch_offset,
            request.log_start_offset,
            request.broker_epoch,
            self.log.end_offset,
            now_ms,
        )
        sync_first = self._has_to_sync(request.replica, synced, own_synced)
        effects = (() if sync_first else self._expand(request.replica)) + self._advance(now_ms)
        return self._answer(None, sync_first), effects

    def _answer(self, diverging: EpochEnd | None, sync_first: bool) -> FetchAnswer:
        log = self.log
        return FetchAnswer(diverging, log.high_watermark, log.start_offset, log.end_offset, sync_first)

    def _check_broker_epoch(self, request: FetchRequest) -> None:
        broker = self.brokers.get(request.replica)
        if broker is not None and -1 < request.broker_epoch < broker.epoch:
            raise NotLeaderOrFollowerError(
                f"replica {request.replica} fetches with broker epoch {request.broker_epoch}, "
                f"but has registered with {broker.epoch} since"
            )

    def can_serve(self, offset: int) -> tuple[int, ...]:
        """Return the ids of the followers from which consumers can fetch `offset`, in ascending order (R39;
        Kafka: ReplicaManager.findPreferredReadReplica, KIP-392).
        """
        members = sorted(self.isr.isr & self.remotes.keys())
        return tuple(replica for replica in members if self.remotes[replica].can_serve(offset))

    # --- in-sync replicas ------------------------------------------------------------------------

    def on_time(self, now_ms: int) -> Effects:
        """Propose to remove lagging members from the ISR (R19; Kafka: Partition.maybeShrinkIsr). The high
        watermark stops waiting for lagging replicas that are not in the ISR (R15). Called every
        replica.lag.time.max.ms / 2.
        """
        return self._shrink(now_ms) + self._advance(now_ms)

    def _shrink(self, now_ms: int) -> Effects:
        out = frozenset(replica for replica in self.isr.isr if self._lags(replica, now_ms))
        if not out or not isinstance(self.isr, Committed):
            return ()
        sent = self._proposal(self.isr.isr - out)
        self.isr = PendingShrink(self.isr.isr, sent)
        return (Send(sent),)

    def _lags(self, replica: int, now_ms: int) -> bool:
        remote = self.remotes.get(replica)
        lag_ms = self.config.replica_lag_time_max_ms
        return remote is not None and not remote.is_caught_up(self.log.end_offset, now_ms, lag_ms)

    def _expand(self, replica: int) -> Effects:
        """Propose to add a follower to the ISR, if it may join (R20; Kafka: Partition.maybeExpandIsr)."""
        if not isinstance(self.isr, Committed) or replica in self.isr.isr or not self._may_join(replica):
            return ()
        sent = self._proposal(self.isr.isr | {replica})
        self.isr = PendingExpand(self.isr.isr, sent, replica)
        return (Send(sent),)

    def _has_to_sync(self, replica: int, synced: int, own_synced: int) -> bool:
        """Return whether a follower must sync records before it may join the ISR, because these records are
        durable on all members of the ISR.
        """
        # A record that all members of the ISR have synced must survive a power cut of all replicas. A
        # reassignment may replace all members, so a new member must have synced this record, too. The record
        # is below the start of this leader epoch, or below `own_synced`.
        if replica in self.isr.isr or not self._may_join(replica):
            return False
        promised = max(self.epoch_start_offset, own_synced)
        return synced < min(promised, self.remotes[replica].end_offset)

    def _may_join(self, replica: int) -> bool:
        """Return whether a follower may join the ISR: it has fetched up to the high watermark and the start
        of this leader epoch (Kafka: Partition.canAddReplicaToIsr, isFollowerInSync), its log start offset is
        not below this log's, and it is eligible.
        """
        # Kafka does not compare the log starts. Below this log's start offset a follower may have uncommitted
        # records. This log has no epochs for these offsets, so the follower can't detect that the records
        # differ. If the follower became leader, readers could read its uncommitted records.
        remote, log = self.remotes[replica], self.log
        reached = remote.end_offset >= max(log.high_watermark, self.epoch_start_offset)
        return reached and remote.start_offset >= log.start_offset and self._eligible(replica)

    def _eligible(self, replica: int) -> bool:
        """Return whether a follower's broker is unfenced, is not shutting down, and has last fetched with its
        registered broker epoch (Kafka: Partition.isReplicaIsrEligible; KIP-841, KIP-903).
        """
        broker, fetched = self.brokers.get(replica), self.remotes[replica].broker_epoch
        return broker is not None and broker.active and fetched is not None and fetched in (-1, broker.epoch)

    def _proposal(self, isr: Iterable[int]) -> AlterPartition:
        members = tuple((replica, self._broker_epoch(replica)) for replica in sorted(isr))
        return AlterPartition(self.replica_id, self.leader_epoch, self.partition_epoch, members)

    def _broker_epoch(self, replica: int) -> int:
        """Return the broker epoch of an ISR member, -1 if the member has not fetched in this leader epoch
        (Kafka: Partition.addBrokerEpochToIsr).
        """
        # -1 is safe for a member that has not fetched: if the member had registered anew, the partition epoch
        # would have risen, and the controller would refuse this proposal.
        if replica == self.replica_id:
            own = self.brokers.get(replica)
            return -1 if own is None else own.epoch
        fetched = self.remotes[replica].broker_epoch if replica in self.remotes else None
        return -1 if fetched is None else fetched

    def on_alter_reply(self, sent: AlterPartition, reply: AlterPartitionReply, now_ms: int) -> Effects:
        """Handle the controller's answer to a proposal (R21; Kafka: Partition.submitAlterPartition,
        handleAlterPartitionUpdate, handleAlterPartitionError).

        If a proposal was sent several times, the caller passes only the answer to the last copy. If an answer
        is lost, the caller passes RequestTimedOutError, and the returned effects send the proposal again.
        """
        if isinstance(self.isr, Committed) or self.isr.sent != sent:
            return ()
        if reply.error is None:
            return self._committed(reply, now_ms)
        if reply.error in NOT_APPLIED:
            self.isr = Committed(self.isr.isr)
            return self._advance(now_ms)
        return () if reply.error in FINAL else (Send(sent),)

    def _committed(self, reply: AlterPartitionReply, now_ms: int) -> Effects:
        if reply.leader_epoch != self.leader_epoch or reply.partition_epoch < self.partition_epoch:
            return ()
        self.partition_epoch = reply.partition_epoch
        self.isr = Committed(frozenset(reply.isr))
        return self._advance(now_ms)

    # --- high watermark --------------------------------------------------------------------------

    @property
    def min_isr(self) -> int:
        """Return min.insync.replicas, or the number of replicas if that is smaller (Kafka:
        Partition.effectiveMinIsr).
        """
        return min(self.config.min_insync_replicas, len(self.remotes) + 1)

    def on_append(self, end_offset: int) -> Effects:
        """Record that this leader's log ends at `end_offset` now."""
        log = self.log
        log.end_offset = end_offset
        if log.high_watermark < self._reached:
            return self._raise()
        return ()

    @property
    def is_whole(self) -> bool:
        """Return whether all replicas are in sync and eligible, no replica lacks a record, and all records
        are committed.
        """
        log = self.log
        return (
            isinstance(self.isr, Committed)
            and len(self.isr.isr) == len(self.remotes) + 1
            and len(self.isr.isr) >= self.min_isr
            and log.high_watermark == log.end_offset
            and all(
                remote.end_offset == log.end_offset and self._eligible(replica)
                for replica, remote in self.remotes.items()
            )
        )

    def on_handed_on(self, end_offset: int, now_ms: int) -> Effects:
        """Record that native code has appended all records below `end_offset` to the logs of all replicas,
        and has raised the high watermark to `end_offset`. Native code appends only if `is_whole` is True. The
        append counts as a fetch of each follower at `end_offset` (R15, R17).
        """
        log = self.log
        log.end_offset = max(log.end_offset, end_offset)
        log.high_watermark = end_offset
        for remote in self.remotes.values():
            if remote.broker_epoch is not None:
                start, epoch = remote.start_offset, remote.broker_epoch
                remote.record_fetch(end_offset, start, epoch, log.end_offset, now_ms)
        return self.acks.reach(end_offset, self._enough()) + self._advance(now_ms)

    def _advance(self, now_ms: int) -> Effects:
        """Raise the high watermark to the lowest log end offset of the followers that the high watermark
        waits for (R15; Kafka: Partition.maybeIncrementLeaderHW).
        """
        self._reached = self._slowest(now_ms)
        return self._raise()

    def _slowest(self, now_ms: int) -> int:
        """Return the lowest log end offset of the followers that the high watermark waits for, or INT64_MAX
        if there is no such follower. If the ISR is smaller than min.insync.replicas, return -1 (R16).
        """
        if len(self.isr.isr) < self.min_isr:
            return UNKNOWN_OFFSET
        lowest, maximal = INT64_MAX, self.isr.maximal
        for replica, remote in self.remotes.items():
            if remote.end_offset < lowest and (replica in maximal or self._joining(replica, now_ms)):
                lowest = remote.end_offset
        return lowest

    def _joining(self, replica: int, now_ms: int) -> bool:
        return self._eligible(replica) and not self._lags(replica, now_ms)

    def _raise(self) -> Effects:
        log = self.log
        reached = min(self._reached, log.end_offset)
        if reached <= log.high_watermark:
            return ()
        log.high_watermark = reached
        shown = SetHighWatermark(reached)
        return (shown, *self.acks.reach(reached, self._enough())) if self.acks else (shown,)

    def _enough(self) -> bool:
        return len(self.isr.maximal) >= self.min_isr

    # --- clients ---------------------------------------------------------------------------------

    def check_enough_replicas(self) -> None:
        """Raise NotEnoughReplicasError if the ISR is smaller than min.insync.replicas. Called before an
        append with acks=all (R23; Kafka: Partition.appendRecordsToLeader).
        """
        if len(self.isr.isr) < self.min_isr:
            members = sorted(self.isr.isr)
            raise NotEnoughReplicasError(
                f"{len(members)} replicas are in sync, with the ids {members}, but min.insync.replicas is "
                f"{self.min_isr}"
            )

    def wait(self, required_offset: int, deadline_ms: int, ticket: Hashable) -> Effects:
        """Add a produce request with acks=all. `required_offset` is the offset after its last record. If the
        high watermark has reached this offset already, complete the request at once (R23).
        """
        self.acks.add(DelayedProduce(required_offset, deadline_ms, ticket))
        return self.acks.reach(self.log.high_watermark, self._enough())

    def expire(self, now_ms: int) -> Effects:
        """Fail the waiting requests whose deadline has come."""
        return self.acks.expire(now_ms)
