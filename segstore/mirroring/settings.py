"""`MirrorConfig`: the settings of a mirror, with MirrorMaker 2's names, and of the mirror's client, with the
names that Kafka's clients use (Kafka: MirrorSourceConfig, MirrorCheckpointConfig). Nothing is on disk.
Threads: any; a MirrorConfig is immutable.
"""

from __future__ import annotations

from dataclasses import dataclass

from segstore.config.options import MAX_LONG, switch, whole
from segstore.replica_fetcher.settings import FollowingConfig


@dataclass(frozen=True, kw_only=True)
class MirrorConfig(FollowingConfig):
    """Settings of one mirror."""

    sync_group_offsets_enabled: bool = switch(True, "whether committed offsets of groups are mirrored")
    sync_group_offsets_interval_seconds: int = whole(
        60, 1, MAX_LONG, "s", "how often committed offsets are mirrored"
    )
