"""Changes of a partition's state: elections, eligible leader replicas, reassignments (Kafka:
PartitionChangeBuilder, PartitionReassignmentReplicas; rules R24 to R26, R29, R30; KIP-966).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from segstore.replication.core.registration import NO_LEADER, PartitionRegistration

Replicas = tuple[int, ...]
NOBODY = NO_LEADER, False


class Election(Enum):
    """The kinds of election. The values are the replicas that may be elected (Kafka:
    PartitionChangeBuilder.Election).
    """

    ONLINE = "the current leader, else an in-sync or eligible replica"
    PREFERRED = "the first replica of the assignment, else as ONLINE"
    UNCLEAN = "as ONLINE, else any live replica"


class PartitionChange:
    """A change of `partition`. At first the attributes `isr`, `replicas`, `adding`, `removing` and
    `recovering` have the partition's current values. The caller sets new values, and calls `build`, which
    elects a leader, and computes the ELR, the last known leader and the epochs.

    `live` returns whether a broker may lead. `min_isr` is min.insync.replicas, or the number of replicas if
    that is smaller. `unclean_shutdown` are the replicas that may have lost records at the ends of their logs.
    """

    def __init__(
        self,
        partition: PartitionRegistration,
        live: Callable[[int], bool],
        min_isr: int,
        elr_enabled: bool = True,
        election: Election = Election.ONLINE,
    ) -> None:
        self.partition, self.live, self.min_isr = partition, live, min_isr
        self.elr_enabled, self.election = elr_enabled, election
        self.isr, self.replicas, self.recovering = partition.isr, partition.replicas, partition.recovering
        self.adding, self.removing = partition.adding, partition.removing
        self.unclean_shutdown: Replicas = ()

    def build(self) -> PartitionRegistration | None:
        """Return the partition's new state, with higher epochs (R25), or None if nothing changes."""
        self._complete_reassignment()
        eligible = self._eligible()
        leader, unclean = self._elect(eligible)
        isr, elr = self._elected(leader, unclean, eligible)
        after = self.partition._replace(
            replicas=self.replicas,
            isr=isr,
            leader=leader,
            elr=elr,
            last_known_elr=self._last_known(leader, isr),
            adding=self.adding,
            removing=self.removing,
            recovering=self.recovering or unclean,
        )
        return self._numbered(after)

    def _numbered(self, after: PartitionRegistration) -> PartitionRegistration | None:
        """Return `after` with a higher partition epoch, or None if `after` equals the partition's current
        state. If the leader is new, or a replica was removed, the leader epoch is higher, too (R25).
        """
        before = self.partition
        if after == before:
            return None
        new_epoch = after.leader != before.leader or not set(before.replicas) <= set(after.replicas)
        return after._replace(
            leader_epoch=before.leader_epoch + new_epoch, partition_epoch=before.partition_epoch + 1
        )

    # --- reassignment ----------------------------------------------------------------------------

    def _complete_reassignment(self) -> None:
        """Complete the reassignment if all target replicas are in sync (R30; Kafka:
        PartitionReassignmentReplicas.maybeCompleteReassignment).
        """
        if not (self.adding or self.removing):
            return
        replicas, isr = _without(self.replicas, self.removing), _without(self.isr, self.removing)
        if replicas and isr and set(replicas) <= set(isr):
            self.replicas, self.isr, self.adding, self.removing = replicas, isr, (), ()

    # --- eligible leader replicas ----------------------------------------------------------------

    def _eligible(self) -> Replicas:
        """Return the new ELR (R26; Kafka: maybePopulateTargetElr). If the ISR is smaller than
        min.insync.replicas, the new ELR has the replicas that were in the ISR or the ELR and are not in the
        new ISR, except for replicas that were shut down uncleanly.
        """
        if not self.elr_enabled or len(self.isr) >= min(self.min_isr, len(self.replicas)):
            return ()
        candidates = {*self.partition.elr, *self.partition.isr} & {*self.replicas}
        return tuple(sorted(candidates - {*self.isr} - {*self.unclean_shutdown}))

    def _last_known(self, leader: int, isr: Replicas) -> Replicas:
        """Return the new `last_known_elr`: the last known leader if the ELR is enabled and no leader exists,
        else () (Kafka: maybeUpdateLastKnownLeader).
        """
        before = self.partition
        if leader != NO_LEADER or not self.elr_enabled:
            return ()
        if isr or before.isr == isr or before.leader == NO_LEADER:
            return before.last_known_elr
        return (before.leader,)

    # --- election --------------------------------------------------------------------------------

    def _elect(self, elr: Replicas) -> tuple[int, bool]:
        """Return (leader, whether the election is unclean). If no leader can be elected, `leader` is
        NO_LEADER (R24, R29; Kafka: electLeader).
        """
        members = self.isr or elr
        for replica in self._candidates():
            if replica in members and self.live(replica):
                return replica, False
        last_known = self.partition.last_known_elr
        if self.elr_enabled and not members and len(last_known) == 1 and self.live(last_known[0]):
            return last_known[0], True
        if self.election is Election.UNCLEAN:
            return next(
                ((replica, True) for replica in self.replicas if self.live(replica)), (NO_LEADER, False)
            )
        return NOBODY

    def _candidates(self) -> Replicas:
        """Return the candidates in order: the current leader, and after it all assigned replicas. If the
        election is preferred, the preferred replica is the first candidate.
        """
        preferred = self.replicas[:1] if self.election is Election.PREFERRED else ()
        return (*preferred, self.partition.leader, *self.replicas)

    def _elected(self, leader: int, unclean: bool, elr: Replicas) -> tuple[Replicas, Replicas]:
        """Return (ISR, ELR) after the election (R25, R26; Kafka: tryElection, maybeUpdateRecordElr)."""
        if unclean:
            return (leader,), ()
        if leader != self.partition.leader and leader in elr:
            # If min.insync.replicas is 1 (it may have been lowered after the ELR was computed), the leader
            # alone is enough, and the ELR is empty.
            return (leader,), _without(elr, (leader,)) if self.min_isr > 1 else ()
        # Without the ELR feature a partition without a leader keeps its last ISR.
        if not self.isr and not self.elr_enabled:
            return self.partition.isr, ()
        return self.isr, elr


def _without(replicas: Replicas, gone: Replicas) -> Replicas:
    return tuple(replica for replica in replicas if replica not in gone)


def reassigned(current: Replicas, target: Replicas) -> tuple[Replicas, Replicas, Replicas]:
    """Return the fields (replicas, adding, removing) of a partition that is being reassigned from `current`
    to `target` (R30; Kafka: PartitionReassignmentReplicas).
    """
    removing = tuple(sorted({*current} - {*target}))
    adding = tuple(sorted({*target} - {*current}))
    return (*target, *removing), adding, removing
