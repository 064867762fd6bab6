"""The metadata records of the controller, and the controller's answer to a heartbeat: immutable tuples
(Kafka: metadata records).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from segstore.replication.core.cluster import BrokerState
from segstore.replication.core.registration import BrokerRegistration, PartitionRegistration

Key = Hashable
"""The key of a partition: any hashable object, for instance (topic name, partition number)."""


class BrokerRecord(NamedTuple):
    """The new registration of a broker (Kafka: RegisterBrokerRecord, BrokerRegistrationChangeRecord)."""

    broker: int
    registration: BrokerRegistration


class PartitionDecision(NamedTuple):
    """The new state of a partition (Kafka: PartitionRecord, PartitionChangeRecord)."""

    partition: Key
    registration: PartitionRegistration


Record = BrokerRecord | PartitionDecision


class HeartbeatReply(NamedTuple):
    """The answer to a heartbeat (Kafka: BrokerHeartbeatResponse)."""

    caught_up: bool
    state: BrokerState
