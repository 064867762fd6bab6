"""`ShareSettings`: the effective settings of a share group. A setting that the group does not have has the
store's value (KIP-932, KIP-1191, KIP-1240; Kafka: GroupConfigManager, GroupConfig).

On disk: nothing. Threads: any; immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from segstore.config import GroupConfig, StoreConfig, TopicConfig
from segstore.config.groups import AutoReset, parse_reset
from segstore.coordinator.share.core.values import Limits
from segstore.logger import Logger

log = Logger("segstore")

DEAD_LETTERS_SINCE = 2
"""The lowest level of the feature share.version at which groups have dead letters."""


class ShareTiming(NamedTuple):
    """The session timeout and heartbeat interval of a share group's members, and the least time between two
    assignments of the group. All are in ms.
    """

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


class DeadLetterRules(NamedTuple):
    """The dead-letter settings of a share group. `topic` is the name of its dead letter topic, "" if the
    group has no dead letters. `copies` is True if dead letters have the key and value of their records. The
    topic's name must begin with `prefix`. If `creates` is True, a missing topic is created.
    """

    topic: str
    copies: bool
    prefix: str
    creates: bool

    def fault(self, found: TopicConfig | None) -> str | None:
        """Return the reason why the group can't write dead letters to `topic`; None if it can (KIP-1191;
        Kafka: ShareGroupDLQStateManager). `found` has the topic's settings; it is None if there is no such
        topic. The caller checks this at each attempt to write a dead letter.
        """
        if not self.topic.startswith(self.prefix):
            return (
                f"{self.topic}: its name must begin with {self.prefix!r}, the store's "
                "errors.deadletterqueue.topic.name.prefix"
            )
        if found is None:
            if self.creates:
                return None
            return (
                f"{self.topic}: there is no such topic, and the store's "
                "errors.deadletterqueue.auto.create.topics.enable is false"
            )
        if not found.errors_deadletterqueue_group_enable:
            return f"{self.topic}: the topic's errors.deadletterqueue.group.enable is false"
        return None


class ShareSettings(NamedTuple):
    """The effective settings of a share group. `isolation` is one of ISOLATION_LEVELS; `reset` chooses the
    start offset in a partition that is new to the group.
    """

    limits: Limits
    timing: ShareTiming
    isolation: str
    reset: AutoReset
    dead_letters: DeadLetterRules


class Bound(NamedTuple):
    """The store's bounds for a setting of groups. `of_store` is the value for groups without this setting."""

    of_store: int
    least: int
    most: int


def bounds(store: StoreConfig) -> Mapping[str, Bound]:
    """Return a dict from the name of each share group setting that has bounds to its `Bound`."""
    return {
        "share.assignment.interval.ms": Bound(
            store.group_share_assignment_interval_ms,
            store.group_share_min_assignment_interval_ms,
            store.group_share_max_assignment_interval_ms,
        ),
        "share.delivery.count.limit": Bound(
            store.group_share_delivery_count_limit,
            store.group_share_min_delivery_count_limit,
            store.group_share_max_delivery_count_limit,
        ),
        "share.heartbeat.interval.ms": Bound(
            store.group_share_heartbeat_interval_ms,
            store.group_share_min_heartbeat_interval_ms,
            store.group_share_max_heartbeat_interval_ms,
        ),
        "share.partition.max.record.locks": Bound(
            store.group_share_partition_max_record_locks,
            store.group_share_min_partition_max_record_locks,
            store.group_share_max_partition_max_record_locks,
        ),
        "share.record.lock.duration.ms": Bound(
            store.group_share_record_lock_duration_ms,
            store.group_share_min_record_lock_duration_ms,
            store.group_share_max_record_lock_duration_ms,
        ),
        "share.session.timeout.ms": Bound(
            store.group_share_session_timeout_ms,
            store.group_share_min_session_timeout_ms,
            store.group_share_max_session_timeout_ms,
        ),
    }


def share_settings(group: str, made: GroupConfig, store: StoreConfig, level: int) -> ShareSettings:
    """Return the effective settings of a group. `made` are the group's own settings; `level` is the level of
    the feature share.version. If a value is outside of the store's bounds, because the bounds were changed
    after the value was set, the nearest bound is the effective value, and a warning is logged.
    """
    within = {name: _within(group, name, bound, made) for name, bound in bounds(store).items()}
    topic = made.errors_deadletterqueue_topic_name if level >= DEAD_LETTERS_SINCE else ""
    return ShareSettings(
        Limits(
            within["share.partition.max.record.locks"],
            within["share.delivery.count.limit"],
            within["share.record.lock.duration.ms"],
            bool(topic),
            made.share_renew_acknowledge_enable,
        ),
        _timing(within),
        made.share_isolation_level,
        parse_reset(made.share_auto_offset_reset),
        DeadLetterRules(
            topic,
            made.errors_deadletterqueue_copy_record_enable,
            store.errors_deadletterqueue_topic_name_prefix,
            store.errors_deadletterqueue_auto_create_topics_enable,
        ),
    )


def _timing(found: Mapping[str, int]) -> ShareTiming:
    return ShareTiming(
        found["share.session.timeout.ms"],
        found["share.heartbeat.interval.ms"],
        found["share.assignment.interval.ms"],
    )


def _within(group: str, name: str, bound: Bound, made: GroupConfig) -> int:
    if name not in made.explicit:
        return bound.of_store
    value = _value(name, made)
    found = min(max(value, bound.least), bound.most)
    if found != value:
        log.warning(
            "group %s: %s=%d lies outside of the store's bounds, from %d to %d: %d holds",
            *(group, name, value, bound.least, bound.most, found),
        )
    return found


def _value(name: str, made: GroupConfig) -> int:
    found: int = getattr(made, name.replace(".", "_"))
    return found


def fault(made: GroupConfig, store: StoreConfig) -> str | None:
    """Return the reason why a group can't have the settings `made`: a value is outside of the store's bounds,
    or two values contradict each other. Return None if the settings are valid (Kafka:
    GroupConfig.validateValues).
    """
    known = bounds(store)
    explicit = {name: _value(name, made) for name in known if name in made.explicit}
    for name, value in explicit.items():
        bound = known[name]
        if not bound.least <= value <= bound.most:
            text = f"group.{name.replace('share.', 'share.{}.', 1)}"
            return (
                f"{name}={value}: {name} must be in the range {bound.least} to {bound.most} inclusive, the "
                f"store's {text.format('min')} and {text.format('max')}"
            )
    timing = _timing({name: explicit.get(name, bound.of_store) for name, bound in known.items()})
    if timing.session_timeout_ms <= timing.heartbeat_interval_ms:
        return (
            f"share.session.timeout.ms={timing.session_timeout_ms}: must be greater than "
            f"share.heartbeat.interval.ms, which is {timing.heartbeat_interval_ms}"
        )
    return None
