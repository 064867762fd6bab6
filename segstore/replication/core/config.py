"""The settings of the replication protocol. Their names and defaults are Kafka's."""

from __future__ import annotations

from typing import NamedTuple


class ReplicaConfig(NamedTuple):
    """Settings of a partition's replicas. Times are in ms."""

    min_insync_replicas: int = 1
    replica_lag_time_max_ms: int = 30_000


class TopicSettings(NamedTuple):
    """The settings of a topic that the controller's elections need."""

    min_insync_replicas: int = 1
    unclean_leader_election: bool = False


class ControllerConfig(NamedTuple):
    """Settings of the controller. Times are in ms. `min_insync_replicas` and `unclean_leader_election` apply
    to partitions whose topic has no such setting. `eligible_leader_replicas` is True if the cluster has the
    feature `eligible.leader.replicas.version` (KIP-966).
    """

    min_insync_replicas: int = 1
    unclean_leader_election: bool = False
    broker_session_timeout_ms: int = 9_000
    eligible_leader_replicas: bool = True
