"""`FollowingConfig`: the settings that mirrors and standbys have in common. Their names are those of Kafka's
clients and of MirrorMaker 2. Nothing is on disk. Threads: any. The settings are immutable.
"""

from __future__ import annotations

from dataclasses import dataclass

from segstore.config.options import MAX_LONG, switch, whole
from segstore.wire.settings import WireConfig


@dataclass(frozen=True, kw_only=True)
class FollowingConfig(WireConfig):
    """Settings that mirrors and standbys have in common."""

    sync_topic_configs_enabled: bool = switch(True, "whether settings of topics are taken over")
    sync_topic_configs_interval_seconds: int = whole(
        600, 1, MAX_LONG, "s", "how often settings of topics are taken over"
    )
