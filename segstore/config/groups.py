"""The settings of groups: `GroupConfig` of one group, and `ShareGroupSettings` of a store for its share
groups. This module touches no files.

Names, defaults and bounds are Kafka's (4.4; GroupConfig, ShareGroupConfig, GroupCoordinatorConfig). Threads:
any; settings are immutable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from segstore.choices import ISOLATION_LEVELS
from segstore.config.options import MAX_INT, MAX_LONG, choice, made, switch, whole
from segstore.config.settings import KafkaSettings

LATEST, EARLIEST, BY_DURATION = "latest", "earliest", "by_duration"
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:\.(?P<parts>\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_DAY_MS, _HOUR_MS, _MINUTE_MS, _SECOND_MS = 86_400_000, 3_600_000, 60_000, 1000


class AutoReset(NamedTuple):
    """The offset at which a share group starts in a new partition. `strategy` is LATEST, EARLIEST or
    BY_DURATION. With BY_DURATION it is the offset of the time `duration_ms` before the present time (Kafka:
    ShareGroupAutoOffsetResetStrategy).
    """

    strategy: str
    duration_ms: int = 0


def parse_reset(value: str) -> AutoReset:
    """Convert a value of `share.auto.offset.reset` to an `AutoReset`. Raises ValueError."""
    if value in (LATEST, EARLIEST):
        return AutoReset(value)
    strategy, _, duration = value.partition(":")
    if strategy != BY_DURATION:
        raise ValueError(f"{value!r} is no strategy")
    return AutoReset(strategy, _milliseconds(duration))


def _milliseconds(text: str) -> int:
    """Convert an ISO 8601 duration (as in java.time.Duration.parse) to milliseconds. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groupdict().values()):
        raise ValueError(f"{text!r} is no duration")
    days, hours, minutes, seconds = (
        int(match[unit] or 0) for unit in ("days", "hours", "minutes", "seconds")
    )
    whole_ms = days * _DAY_MS + hours * _HOUR_MS + minutes * _MINUTE_MS + seconds * _SECOND_MS
    total = whole_ms + int((match["parts"] or "").ljust(9, "0")[:3])
    if total > MAX_LONG:
        raise ValueError(f"{text!r} is too long")
    return total


def _read_reset(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    parse_reset(value.strip())
    return value.strip()


def _read_dead_letter_topic(value: object) -> str:
    if not isinstance(value, str) or value.startswith("__"):
        raise ValueError
    return value


def _read_prefix(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


@dataclass(frozen=True, kw_only=True)
class GroupConfig(KafkaSettings):
    """Settings of one group. They override the settings that the store has for all groups (KIP-848,
    KIP-932).
    """

    consumer_heartbeat_interval_ms: int = whole(
        5_000, 1, MAX_INT, "ms", "how often members of the group are told to send heartbeats"
    )
    consumer_session_timeout_ms: int = whole(
        45_000, 1, MAX_INT, "ms", "how long a member of the group may not be heard of"
    )
    errors_deadletterqueue_copy_record_enable: bool = switch(
        False, "whether dead letters have the key and value of their records, or only headers"
    )
    errors_deadletterqueue_topic_name: str = made(
        "",
        "a topic's name, which does not begin with __, or nothing",
        "topic of records that a share group rejects, or does not accept in time; none: they are dropped",
        _read_dead_letter_topic,
    )
    share_assignment_interval_ms: int = whole(
        1_000, 0, MAX_INT, "ms", "least time between two assignments of the share group"
    )
    share_auto_offset_reset: str = made(
        LATEST,
        f"{LATEST}, {EARLIEST}, or {BY_DURATION}:PnDTnHnMn.nS",
        "where the share group begins in a partition that is new to it",
        _read_reset,
    )
    share_delivery_count_limit: int = whole(
        5, 2, MAX_INT, "", "how often a record is delivered to the share group at most"
    )
    share_heartbeat_interval_ms: int = whole(
        5_000, 1, MAX_INT, "ms", "how often members of the share group are told to send heartbeats"
    )
    share_isolation_level: str = choice(
        "read_uncommitted", ISOLATION_LEVELS, "whether the share group reads records of open transactions"
    )
    share_partition_max_record_locks: int = whole(
        2_000, 100, MAX_INT, "offsets", "how many offsets of a partition may be in flight in the share group"
    )
    share_record_lock_duration_ms: int = whole(
        30_000, 1_000, MAX_INT, "ms", "how long a record stays with the consumer that got it"
    )
    share_renew_acknowledge_enable: bool = switch(True, "whether consumers may renew the locks of records")
    share_session_timeout_ms: int = whole(
        45_000, 1, MAX_INT, "ms", "how long a member of the share group may not be heard of"
    )


@dataclass(frozen=True, kw_only=True)
class ShareGroupSettings(KafkaSettings):
    """The settings of a store for all its share groups (KIP-932, KIP-1191, KIP-1240)."""

    errors_deadletterqueue_auto_create_topics_enable: bool = switch(
        False, "whether a topic for dead letters is made that does not exist"
    )
    errors_deadletterqueue_topic_name_prefix: str = made(
        "dlq.", "a text, which may be empty", "what names of topics for dead letters begin with", _read_prefix
    )
    group_share_assignment_interval_ms: int = whole(
        1_000, 0, MAX_INT, "ms", "least time between two assignments of a share group"
    )
    group_share_delivery_count_limit: int = whole(
        5, 2, 10, "", "how often a record is delivered to a share group at most"
    )
    group_share_heartbeat_interval_ms: int = whole(
        5_000, 1, MAX_INT, "ms", "how often members of share groups are told to send heartbeats"
    )
    group_share_max_assignment_interval_ms: int = whole(
        15_000, 0, MAX_INT, "ms", "most that share.assignment.interval.ms of a single group may be"
    )
    group_share_max_delivery_count_limit: int = whole(
        10, 5, 25, "", "most that share.delivery.count.limit of a single group may be"
    )
    group_share_max_heartbeat_interval_ms: int = whole(
        15_000, 1, MAX_INT, "ms", "most that share.heartbeat.interval.ms of a single group may be"
    )
    group_share_max_partition_max_record_locks: int = whole(
        4_000, 2_000, 10_000, "offsets", "most that share.partition.max.record.locks of a single group may be"
    )
    group_share_max_record_lock_duration_ms: int = whole(
        60_000, 30_000, 3_600_000, "ms", "most that share.record.lock.duration.ms of a single group may be"
    )
    group_share_max_session_timeout_ms: int = whole(
        60_000, 1, MAX_INT, "ms", "most that share.session.timeout.ms of a single group may be"
    )
    group_share_max_share_sessions: int = whole(
        2_000, 1, MAX_INT, "sessions", "most share sessions that a server keeps at a time"
    )
    group_share_max_size: int = whole(200, 1, 1_000, "members", "most that a share group may have")
    group_share_min_assignment_interval_ms: int = whole(
        0, 0, MAX_INT, "ms", "least that share.assignment.interval.ms of a single group may be"
    )
    group_share_min_delivery_count_limit: int = whole(
        2, 2, 5, "", "least that share.delivery.count.limit of a single group may be"
    )
    group_share_min_heartbeat_interval_ms: int = whole(
        5_000, 1, MAX_INT, "ms", "least that share.heartbeat.interval.ms of a single group may be"
    )
    group_share_min_partition_max_record_locks: int = whole(
        100, 100, 2_000, "offsets", "least that share.partition.max.record.locks of a single group may be"
    )
    group_share_min_record_lock_duration_ms: int = whole(
        15_000, 1_000, 30_000, "ms", "least that share.record.lock.duration.ms of a single group may be"
    )
    group_share_min_session_timeout_ms: int = whole(
        45_000, 1, MAX_INT, "ms", "least that share.session.timeout.ms of a single group may be"
    )
    group_share_partition_max_record_locks: int = whole(
        2_000, 100, 10_000, "offsets", "how many offsets of a partition may be in flight in a share group"
    )
    group_share_record_lock_duration_ms: int = whole(
        30_000, 1_000, 3_600_000, "ms", "how long a record stays with the consumer that got it"
    )
    group_share_session_timeout_ms: int = whole(
        45_000, 1, MAX_INT, "ms", "how long a member of a share group may not be heard of"
    )

    def conflict(self) -> str | None:
        for name in BOUNDED:
            least, value, most = (
                getattr(self, f"group_share_{bound}{name}") for bound in ("min_", "", "max_")
            )
            if not least <= value <= most:
                dotted = name.replace("_", ".")
                return (
                    f"group.share.{dotted}={value}: must be from {least} to {most}, which are "
                    f"group.share.min.{dotted} and group.share.max.{dotted}"
                )
        if self.group_share_session_timeout_ms <= self.group_share_heartbeat_interval_ms:
            return (
                f"group.share.session.timeout.ms={self.group_share_session_timeout_ms}: must be greater than "
                f"group.share.heartbeat.interval.ms={self.group_share_heartbeat_interval_ms}"
            )
        if self.group_share_max_size > self.group_share_max_share_sessions:
            return (
                f"group.share.max.size={self.group_share_max_size}: must be at most "
                f"group.share.max.share.sessions={self.group_share_max_share_sessions}"
            )
        return None


BOUNDED = (
    "assignment_interval_ms",
    "delivery_count_limit",
    "heartbeat_interval_ms",
    "partition_max_record_locks",
    "record_lock_duration_ms",
    "session_timeout_ms",
)
"""The ends of the names of share group settings. For each NAME a store has the setting group.share.NAME, and
its bounds group.share.min.NAME and group.share.max.NAME; a group has the setting share.NAME.
"""
