"""`ShareConsumerConfig`: the settings of a share consumer. They have Kafka's names in the spelling of
kafka-python (Kafka: ShareConsumerConfig). Nothing on disk. Threads: any; a ShareConsumerConfig is immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from segstore.client.consumer.config import deserializer
from segstore.client.settings import StoreClientSettings
from segstore.config import client
from segstore.config.client import duration, off, switch, text
from segstore.config.options import MAX_INT, choice, made, whole

EXPLICIT, RECORD_LIMIT = "explicit", "record_limit"
_NO_COMMITS = "a share consumer acknowledges records, and commits no offsets"
_OF_GROUP = "the share group has it, for all its consumers: {} of ConfigResource('GROUP', ...)"


def _group(value: Any) -> str:
    if not isinstance(value, str) or (value and not value.strip()):
        raise ValueError
    return value


def _rack(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


@dataclass(frozen=True, kw_only=True)
class ShareConsumerConfig(StoreClientSettings):
    """Settings of one share consumer."""

    REFUSED: ClassVar[Mapping[str, str]] = {
        **client.REFUSED,
        "auto_offset_reset": _OF_GROUP.format("share.auto.offset.reset"),
        "isolation_level": _OF_GROUP.format("share.isolation.level"),
        "session_timeout_ms": _OF_GROUP.format("share.session.timeout.ms"),
        "heartbeat_interval_ms": _OF_GROUP.format("share.heartbeat.interval.ms"),
        "enable_auto_commit": f'{_NO_COMMITS}: see share_acknowledgement_mode="implicit"',
        "auto_commit_interval_ms": _NO_COMMITS,
        "default_offset_commit_callback": f"{_NO_COMMITS}: see set_acknowledgement_commit_callback",
        "group_instance_id": "a share group has no static members",
        "group_protocol": "a share group has one protocol",
        "group_remote_assignor": "a share group has one assignor",
        "partition_assignment_strategy": "a share group has one assignor",
        "interceptors": "a share consumer has none",
        "interceptor_classes": "a share consumer has none",
    }
    IGNORED: ClassVar[Mapping[str, str]] = {
        **client.IGNORED,
        "enable_incremental_fetch_sessions": "there are no fetch requests that could be kept short",
        "retry_backoff_ms": "there are no requests to be sent again, a read fails or does not",
        "metadata_max_age_ms": "a share group's coordinator sees new topics and partitions at once",
    }

    client_id: str = text("segstore", "the name of this client in metrics and messages")
    group_id: str = made(
        "",
        "a str that is not blank",
        "the share group, whose members share the records of its topics",
        _group,
    )
    share_acknowledgement_mode: str = choice(
        "implicit",
        ("implicit", EXPLICIT),
        "implicit: the records of a poll are accepted by the next poll, commit or close; explicit: the "
        "application acknowledges each record",
    )
    share_acquire_mode: str = choice(
        "batch_optimized",
        ("batch_optimized", RECORD_LIMIT),
        "batch_optimized: a poll gives whole record batches, and so may exceed max_poll_records; "
        "record_limit: it never does (KIP-1206)",
    )
    key_deserializer: object = deserializer("makes keys out of bytes")
    value_deserializer: object = deserializer("makes values out of bytes")
    fetch_max_wait_ms: float = duration(500, "how long fetch_min_bytes are waited for once there are some")
    fetch_min_bytes: int = whole(1, 0, MAX_INT, "bytes", "a poll waits until it can acquire so many")
    fetch_max_bytes: int = whole(
        52_428_800,
        1,
        MAX_INT,
        "bytes",
        "most that one poll acquires, as stored; one batch at least",
    )
    max_poll_records: int = whole(500, 1, MAX_INT, "records", "most that one poll acquires")
    max_poll_interval_ms: int = whole(
        300_000, 1, MAX_INT, "ms", "a member that does not poll for so long has left the group"
    )
    check_crcs: bool = switch(True, "whether the CRC of each batch is checked")
    client_rack: str = made("", "a str", "the rack of this member, as administrators see it", _rack)
    allow_auto_create_topics: bool = off("allow_auto_create_topics", "topics are made by Store.create_topic")
    metrics_enabled: bool = switch(True, "whether anything is measured")
    metrics_num_samples: int = whole(2, 1, 1_000, "windows", "how many windows measures are taken over")
    metrics_sample_window_ms: int = whole(30_000, 1, MAX_INT, "ms", "how long a window is")
    metric_group_prefix: str = text("consumer", "what names of groups of metrics begin with")

    @property
    def is_explicit(self) -> bool:
        """Return whether the application must acknowledge each record (explicit mode)."""
        return self.share_acknowledgement_mode == EXPLICIT

    @property
    def is_strict(self) -> bool:
        """Return whether a poll may not return more than max_poll_records."""
        return self.share_acquire_mode == RECORD_LIMIT
