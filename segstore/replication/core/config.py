"""The settings of the core, under Kafka's names, with Kafka's defaults."""

from __future__ import annotations

from typing import NamedTuple


class ReplicaConfig(NamedTuple):
    """Settings of a partition's replicas. Times in ms."""

    min_insync_replicas: int = 1
    replica_lag_time_max_ms: int = 30_000


class TopicSettings(NamedTuple):
    """Settings of a topic for the controller's elections."""

    min_insync_replicas: int = 1
    unclean_leader_election: bool = False


class ControllerConfig(NamedTuple):
    """Settings of the controller. Times in ms. `min_insync_replicas` and `unclean_leader_election` are the
    defaults of partitions. `eligible_leader_replicas` is the feature `eligible.leader.replicas.version`
    (KIP-966).
    """

    min_insync_replicas: int = 1
    unclean_leader_election: bool = False
    broker_session_timeout_ms: int = 9_000
    eligible_leader_replicas: bool = True
