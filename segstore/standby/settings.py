"""`StandbyConfig`: the settings of a standby's client, with the names that Kafka's clients use. Nothing is on
disk. Threads: any; a StandbyConfig is immutable.
"""

from __future__ import annotations

from dataclasses import dataclass

from segstore.config.options import MAX_INT, MAX_LONG, whole
from segstore.replica_fetcher.settings import FollowingConfig
from segstore.storage.store.lease import interval_option


@dataclass(frozen=True, kw_only=True)
class StandbyConfig(FollowingConfig):
    """Settings of one standby. By default a standby asks for metadata more often than a mirror does, and
    fetches more bytes in one request.
    """

    metadata_max_age_ms: int = whole(
        1_000, 1, MAX_LONG, "ms", "after how long the standby asks anew which topics there are"
    )
    max_partition_fetch_bytes: int = whole(
        33_554_432, 1, MAX_INT, "bytes", "how much of one partition one answer holds"
    )
    sync_topic_configs_interval_seconds: int = whole(
        10, 1, MAX_LONG, "s", "how often settings of topics are taken over"
    )
    lease_interval_ms: int = interval_option()
