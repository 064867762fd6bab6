"""`Subscription`: a consumer's topics, assigned partitions, positions and rebalance listener.
`ConsumerRebalanceListener`: the base of rebalance listeners.

Threads: one, the consumer's.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from segstore import names
from segstore.config import arguments
from segstore.coordinator.structs import UNKNOWN_EPOCH, OffsetAndMetadata, TopicPartition
from segstore.errors import IllegalStateError, InvalidArgumentError, InvalidTypeError, StoreClosedError
from segstore.mutex import calls_out

if TYPE_CHECKING:
    from segstore.storage.log.log_end import LogEnd
    from segstore.storage.meta.topics import TopicInfo
    from segstore.storage.store.partition_log import PartitionLog

_ONE_WAY = "subscribe to topics by name, or by a pattern, or assign partitions: only one of them at a time"


class SubscriptionType(Enum):
    """The source of a consumer's partitions."""

    NONE = 0
    TOPICS = 1
    PATTERN = 2
    ASSIGNED = 3


class TopicPartitionState:
    """An assigned partition of a consumer. `position` is the offset of the record that a poll returns next.
    If `position` is None, it must be looked up. `reset` is then "earliest" or "latest", or None for the
    committed offset; without a committed offset auto_offset_reset applies. `lost`: whether the log could not
    be read any more, and was not opened again. `end`: the `LogEnd`, if the log was read to its end.
    """

    __slots__ = ("assigned", "end", "leader_epoch", "log", "lost", "paused", "position", "reset")

    def __init__(self) -> None:
        self.position: int | None = None
        self.leader_epoch = UNKNOWN_EPOCH
        self.reset: str | None = None
        self.paused = self.lost = False
        self.assigned = True
        self.log: PartitionLog | None = None
        self.end: LogEnd | None = None

    @property
    def fetchable(self) -> bool:
        """Return whether records of the partition may be returned now."""
        return self.assigned and not self.paused and self.position is not None

    @property
    def gone(self) -> bool:
        """Return whether the topic was deleted. The position is then invalid, even if a new topic has the
        same name.
        """
        try:
            return self.lost if self.log is None else self.log.end_offset < 0
        except StoreClosedError:
            return True

    def seek(self, offset: int, leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """Set the position to `offset`."""
        self.position, self.leader_epoch, self.reset = offset, leader_epoch, None

    def look(self, reset: str | None) -> None:
        """Drop the position. `Positions.resolve` finds a new position by `reset`."""
        self.position, self.leader_epoch, self.reset = None, UNKNOWN_EPOCH, reset


@dataclass(frozen=True)
class SubscriptionPattern:
    """A regular expression in RE2's syntax, for `Consumer.subscribe(pattern=...)` with
    group_protocol="consumer" (Kafka: SubscriptionPattern, KIP-848). The group's coordinator subscribes the
    member to the topics whose whole names match the expression. Flags, counted repeats and named classes need
    the package google-re2.
    """

    pattern: str


class Subscription:
    """The topics and partitions of one consumer. The consumer matches topic names against `pattern`; the
    coordinator of the consumer's group matches them against `regex`. `unresolved`: whether an assigned
    partition may lack a position. `turns` has the assigned partitions in the order in which they are read,
    and `cursor` is the index of the partition that is read next.
    """

    def __init__(self) -> None:
        self.kind = SubscriptionType.NONE
        self.topics: set[str] | None = None
        self.pattern: re.Pattern[str] | None = None
        self.regex: str | None = None
        self.listener: Any = None
        self.states: dict[TopicPartition, TopicPartitionState] = {}
        self.turns: list[tuple[TopicPartition, TopicPartitionState]] = []
        self.cursor = 0
        self.unresolved = False

    # --- topics --------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str], pattern: Any, listener: Any) -> None:
        """Subscribe to topics by name, or to all topics whose name begins with a match of `pattern`. If
        `pattern` is a SubscriptionPattern, it must match the whole name. Raises IllegalStateError,
        InvalidArgumentError, InvalidRegularExpressionError, InvalidTypeError, InvalidTopicError; after an
        error nothing is changed.
        """
        _check_listener(listener)
        regex = _regex(pattern) if isinstance(pattern, SubscriptionPattern) else None
        compiled = None if regex is not None or _is_none(pattern) else _compiled(pattern)
        is_pattern = regex is not None or compiled is not None
        if is_pattern and not _is_none(topics):
            raise IllegalStateError(_ONE_WAY)
        if is_pattern:
            self._choose(SubscriptionType.PATTERN)
            self.pattern, self.regex, self.topics = compiled, regex, set()
        else:
            wanted = _names(topics)
            self._choose(SubscriptionType.TOPICS)
            self.topics = wanted
        self.listener = listener

    def _choose(self, kind: SubscriptionType) -> None:
        if self.kind not in (SubscriptionType.NONE, kind):
            raise IllegalStateError(f"{_ONE_WAY}; unsubscribe() first")
        self.kind = kind

    @property
    def automatic(self) -> bool:
        """Return whether the consumer is subscribed, so that its partitions are assigned automatically."""
        return self.topics is not None

    def wants(self, topic: str) -> bool:
        """Return whether partitions of `topic` may be assigned to this consumer."""
        return self.topics is not None and (self.regex is not None or topic in self.topics)

    def matching(self, topics: Mapping[str, TopicInfo], exclude_internal: bool) -> list[TopicInfo]:
        """Return the subscribed topics that exist. If the subscription is a pattern, store the names of the
        matching topics in `self.topics`.
        """
        if self.pattern is None:
            return [topics[name] for name in sorted(self.topics or ()) if name in topics]
        match = self.pattern.match
        matched = [
            info for name, info in topics.items() if match(name) and not (exclude_internal and info.internal)
        ]
        self.topics = {info.name for info in matched}
        return matched

    # --- assigned partitions -------------------------------------------------------------

    def assign(self, partitions: Iterable[Any]) -> None:
        """Assign exactly these partitions. Raises IllegalStateError, InvalidTypeError."""
        wanted = topic_partitions(partitions)
        self._choose(SubscriptionType.ASSIGNED)
        self.have(wanted)

    def have(self, partitions: Collection[TopicPartition]) -> None:
        """Set the assigned partitions. A partition that was assigned before keeps its position and its
        buffer, and stays paused if it was paused.
        """
        wanted = dict.fromkeys(partitions)
        states = {tp: state for tp, state in self.states.items() if tp in wanted}
        new = {tp: TopicPartitionState() for tp in wanted if tp not in states}
        states |= new
        turns, unresolved = list(states.items()), self.unresolved or bool(new)
        for tp, state in self.states.items():
            state.assigned = tp in wanted
        # One statement sets these attributes, so that after an interrupt no partition is read that is not
        # assigned.
        self.states, self.turns, self.cursor, self.unresolved = states, turns, 0, unresolved

    def unsubscribe(self) -> None:
        """Drop all topics and partitions."""
        self.have(())
        self.kind, self.topics, self.listener = SubscriptionType.NONE, None, None
        self.pattern = self.regex = None

    def state(self, partition: Any) -> TopicPartitionState:
        """Return the state of an assigned partition. Raises IllegalStateError, InvalidTypeError."""
        state = self.states.get(topic_partition(partition))
        if state is None:
            there = ", ".join(f"{tp.topic}-{tp.partition}" for tp in self.states) or "none"
            raise IllegalStateError(
                f"partition {partition.topic}-{partition.partition} is not assigned; assigned are: {there}"
            )
        return state

    def chosen(self, partitions: Sequence[Any]) -> list[TopicPartitionState]:
        """Return the states of `partitions`, or of all assigned partitions if `partitions` is empty. Raises
        IllegalStateError, InvalidTypeError.
        """
        if not partitions and not self.states:
            raise IllegalStateError("no partitions are assigned")
        return [self.state(tp) for tp in partitions or self.states]

    def look(self, states: Iterable[TopicPartitionState], reset: str | None) -> None:
        """Drop the positions of these partitions. `Positions.resolve` finds new positions by `reset`."""
        for state in states:
            state.look(reset)
        self.unresolved = True

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of the assigned partitions that have a position and still exist."""
        return {
            tp: OffsetAndMetadata(state.position, "", state.leader_epoch)
            for tp, state in self.states.items()
            if state.position is not None and not state.gone
        }


def topic_partition(value: Any) -> TopicPartition:
    """Convert a TopicPartition, which may be kafka-python's, to this package's TopicPartition. Raises
    InvalidTypeError.
    """
    if not (isinstance(value, tuple) and len(value) == 2 and hasattr(value, "partition")):
        raise InvalidTypeError(f"a partition must be a TopicPartition, not {type(value).__name__}")
    topic, partition = value
    if not isinstance(topic, str):
        raise InvalidTypeError(f"topic must be a str, not {type(topic).__name__}")
    return TopicPartition(topic, arguments.whole("partition", partition, None))


def topic_partitions(values: Any) -> list[TopicPartition]:
    """Convert TopicPartitions, which may be kafka-python's, to this package's TopicPartition. Raises
    InvalidTypeError.
    """
    if not isinstance(values, Iterable):
        raise InvalidTypeError(f"partitions must be a list of TopicPartition, not {type(values).__name__}")
    return [topic_partition(value) for value in values]


def _is_none(given: Any) -> bool:
    """Return whether an argument is None or empty. `not given` is not used, because it fails for an array."""
    return given is None or (isinstance(given, Sized) and len(given) == 0)


def _names(topics: Any) -> set[str]:
    if isinstance(topics, str) or not isinstance(topics, Collection):
        raise InvalidTypeError(f"topics must be a list of str, not {type(topics).__name__}")
    if _is_none(topics):
        raise InvalidArgumentError("neither topics nor a pattern to subscribe to")
    for name in topics:
        if not isinstance(name, str):
            raise InvalidTypeError(f"a topic must be a str, not {type(name).__name__}")
        names.check_topic(name)
    return set(topics)


def _compiled(pattern: Any) -> re.Pattern[str]:
    try:
        compiled: re.Pattern[str] = re.compile(pattern)
        compiled.match("")
    except (re.error, TypeError) as error:
        raise InvalidArgumentError(f"pattern={pattern!r}: must be a regular expression: {error}") from None
    return compiled


def _regex(pattern: SubscriptionPattern) -> str:
    """Return the regular expression of `pattern` if it is valid. Raises InvalidRegularExpressionError,
    InvalidTypeError.
    """
    from segstore.coordinator.group.consumers.topics import compiled

    if not isinstance(pattern.pattern, str):
        raise InvalidTypeError(f"a SubscriptionPattern has a str, not {type(pattern.pattern).__name__}")
    compiled(pattern.pattern)
    return pattern.pattern


def _check_listener(listener: Any) -> None:
    for method in ("on_partitions_revoked", "on_partitions_assigned"):
        if listener is not None and not callable(getattr(listener, method, None)):
            raise InvalidTypeError(
                f"listener must be a ConsumerRebalanceListener, {type(listener).__name__} has no {method}"
            )


# --- listener ----------------------------------------------------------------------------------

# `ConsumerRebalanceListener`: methods of the application that are called when the assignment changes.
# Threads: the consumer's thread calls them, within `poll`, `unsubscribe` or `close`.


class ConsumerRebalanceListener(ABC):
    """The base of rebalance listeners for `subscribe`. Listeners of kafka-python are accepted, too."""

    @abstractmethod
    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Called before the partitions `revoked` are given up. The positions of these partitions can still be
        read and committed.
        """

    @abstractmethod
    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Called after the partitions `assigned` were assigned, before their records are read. `seek` may be
        called.
        """

    @calls_out
    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Called in place of `on_partitions_revoked` for partitions that already belong to another member, or
        were deleted.
        """
        self.on_partitions_revoked(lost)
