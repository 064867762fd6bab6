"""Settings of the metadata log (Kafka: MetadataLogConfig). Nothing is on disk. Threads: any. The settings are
immutable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from segstore.config import TopicConfig
from segstore.storage.meta.topic_info import CLUSTER_METADATA, TopicInfo

if TYPE_CHECKING:
    from segstore.config import StoreConfig

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The topic id of the metadata log (Kafka: Uuid.METADATA_TOPIC_ID)."""


class MetadataLogConfig(NamedTuple):
    """The settings of snapshots, segments and retention of the metadata log. The defaults are Kafka's. Times
    are in ms, sizes in bytes. If a retention setting is -1, it removes no snapshot. If
    `max_snapshot_interval_ms` is 0, the time since the last snapshot never makes a snapshot due.
    """

    max_record_bytes_between_snapshots: int = 20 << 20
    max_snapshot_interval_ms: int = 3_600_000
    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    retention_bytes: int = 100 << 20
    retention_ms: int = 604_800_000

    @classmethod
    def of(cls, store: StoreConfig) -> MetadataLogConfig:
        """Return the settings of a store's metadata log."""
        return cls(
            max_record_bytes_between_snapshots=store.metadata_log_max_record_bytes_between_snapshots,
            max_snapshot_interval_ms=store.metadata_log_max_snapshot_interval_ms,
            segment_bytes=store.metadata_log_segment_bytes,
            segment_ms=store.metadata_log_segment_ms,
            retention_bytes=store.metadata_max_retention_bytes,
            retention_ms=store.metadata_max_retention_ms,
        )

    @property
    def topic(self) -> TopicInfo:
        """Return the topic of the metadata log. Its retention settings are -1, so that the retention of
        topics removes nothing from the log. The topic has the settings segment.bytes and segment.ms only if
        they differ from the defaults.
        """
        wanted = {"segment.bytes": self.segment_bytes, "segment.ms": self.segment_ms}
        default = TopicConfig()
        known = {"segment.bytes": default.segment_bytes, "segment.ms": default.segment_ms}
        rolled = {name: value for name, value in wanted.items() if value != known[name]}
        settings = TopicConfig.parse({"retention.ms": -1, "retention.bytes": -1, **rolled})
        return TopicInfo(CLUSTER_METADATA, (0,), TOPIC_ID, settings)
