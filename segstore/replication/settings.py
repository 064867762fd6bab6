"""`ReplicationConfig`: the settings of a replicated store, from its `StoreConfig`.

Nothing is on disk. Threads: any. The settings are immutable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from segstore.replication.core.config import ControllerConfig, ReplicaConfig, TopicSettings
from segstore.storage.meta.topic_info import INTERNAL

if TYPE_CHECKING:
    from segstore.config import StoreConfig
    from segstore.storage.meta.topic_info import TopicInfo

INTERNAL_FACTOR = 3
"""The replication factor of internal topics (Kafka: offsets.topic.replication.factor,
transaction.state.log.replication.factor)."""


class ReplicationConfig(NamedTuple):
    """Settings of a replicated store, and defaults of its topics. Times are in ms if their names end in
    `_ms`, and in seconds if not.
    """

    default_factor: int
    min_insync_replicas: int
    unclean_leader_election: bool
    lag_time_max_ms: int
    fetch_max_bytes: int
    fetch_backoff_ms: int
    checkpoint_interval_ms: int
    auto_rebalance: bool
    rebalance_interval: int
    heartbeat_interval_ms: int
    session_timeout_ms: int
    inline: bool = False
    """Whether the thread that appends writes to all in-sync replicas."""

    @classmethod
    def of(cls, store: StoreConfig, inline: bool = False) -> ReplicationConfig:
        """Return the replication settings of a store."""
        return cls(
            default_factor=store.default_replication_factor,
            min_insync_replicas=store.min_insync_replicas,
            unclean_leader_election=store.unclean_leader_election_enable,
            lag_time_max_ms=store.replica_lag_time_max_ms,
            fetch_max_bytes=store.replica_fetch_max_bytes,
            fetch_backoff_ms=store.replica_fetch_backoff_ms,
            checkpoint_interval_ms=store.replica_high_watermark_checkpoint_interval_ms,
            auto_rebalance=store.auto_leader_rebalance_enable,
            rebalance_interval=store.leader_imbalance_check_interval_seconds,
            heartbeat_interval_ms=store.broker_heartbeat_interval_ms,
            session_timeout_ms=store.broker_session_timeout_ms,
            inline=inline,
        )

    def factor_of(self, topic: str, directories: int) -> int:
        """Return the replication factor that a new topic gets by default. For an internal topic it is
        INTERNAL_FACTOR, or the number of directories if that is lower.
        """
        return min(INTERNAL_FACTOR, directories) if topic in INTERNAL else self.default_factor

    @property
    def controller(self) -> ControllerConfig:
        """Return the controller's settings."""
        return ControllerConfig(
            self.min_insync_replicas, self.unclean_leader_election, self.session_timeout_ms
        )

    def topic_settings(self, info: TopicInfo) -> TopicSettings:
        """Return a topic's settings for the controller. If the topic lacks a setting, the store's value
        applies.
        """
        own, given = info.settings, info.settings.explicit
        return TopicSettings(
            own.min_insync_replicas if "min.insync.replicas" in given else self.min_insync_replicas,
            own.unclean_leader_election_enable
            if "unclean.leader.election.enable" in given
            else self.unclean_leader_election,
        )

    def replica_config(self, info: TopicInfo) -> ReplicaConfig:
        """Return a topic's settings for its replicas."""
        return ReplicaConfig(self.topic_settings(info).min_insync_replicas, self.lag_time_max_ms)
