"""The states of partitions and brokers in the metadata: immutable tuples. Only the controller makes new
states.
"""

from __future__ import annotations

from typing import NamedTuple

NO_LEADER = -1


class PartitionRegistration(NamedTuple):
    """The state of a partition in the metadata (Kafka: PartitionRegistration).

    `replicas` has the assigned replicas (AR), the preferred leader first. `isr` has the committed in-sync
    replicas, and `elr` the eligible leader replicas (KIP-966). `last_known_elr` has the last known leader of
    a partition without a leader. `adding` and `removing` are the replicas that a reassignment in progress
    adds and removes. `recovering` is True from an unclean election to the leader's next change of the ISR
    (KIP-704).
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    recovering: bool = False

    @property
    def reassigning(self) -> bool:
        """Return whether a reassignment is in progress (R30)."""
        return bool(self.adding or self.removing)


class BrokerRegistration(NamedTuple):
    """The registration of a broker (Kafka: BrokerRegistration; R27). `epoch` is the broker epoch: the offset
    of the registration's record in the metadata log. So each new registration has a higher broker epoch.
    """

    epoch: int
    incarnation: str
    fenced: bool = True
    shutting_down: bool = False

    @property
    def active(self) -> bool:
        """Return whether the broker may lead (Kafka: ClusterControlManager.isActive)."""
        return not (self.fenced or self.shutting_down)
