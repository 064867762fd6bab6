"""`Coordination`: what a consumer asks of whoever hands out partitions and keeps committed offsets.

The seam between a consumer and its group: `grouped.Grouped` implements it, and without a group
`ungrouped.Ungrouped`.
Nothing on disk. Threads: called by the consumer's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Offsets, "BaseException | None"], Any]


class Coordination(Protocol):
    """Of one consumer. It changes the consumer's `Subscription` (by `have`) and calls its listener, both in
    `poll`, `unsubscribe` and `close` only.
    """

    def poll(self) -> None:
        """Bring the assignment up to date: called before each look for records."""

    def wait_ms(self) -> float:
        """How long the consumer may sleep, if nothing is published, before it must call `poll` again."""

    def stale(self) -> None:
        """A partition was found gone: the next `poll` looks at the topics, whenever it did so last."""

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of those partitions that have one: where reading begins."""

    def undecided(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Those for which an open transaction is about to commit an offset: where reading begins is not known
        yet, whatever the isolation level. Who began at an older offset would do again what the transaction
        has done (KIP-447; so does Java's consumer, which always asks for stable offsets).
        """

    def commit(self, offsets: Offsets) -> None:
        """Commit; returns when it is done."""

    def commit_async(self, offsets: Offsets, callback: OnCommit | None) -> Any:
        """Commit without waiting: a future; `callback` gets (offsets, None or the error)."""

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The consumer's membership as it is now."""

    def metrics(self) -> dict[str, dict[str, float]]:
        """What was measured of the membership: group of metrics to name to value."""

    def unsubscribe(self) -> None:
        """Give up all partitions and the membership; what was read is committed where that is automatic."""

    @property
    def left(self) -> bool:
        """Whether nobody waits for this consumer: false where an interrupt kept `close` from leaving."""

    def close(self, autocommit: bool, timeout_ms: float | None) -> None:
        """As `unsubscribe`, for good."""
