"""`ArchiveSettings`: the checked arguments of an archiver. Nothing is on disk. Threads: any; immutable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from segstore import names
from segstore.config import arguments
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.integers import INT64_MAX
from segstore.storage.meta.topic_info import CLUSTER_METADATA, INTERNAL

INTERVAL_MS, UPLOADS = 1000, 4
WEEK_MS = 7 * 24 * 3600 * 1000
GRACE_MS = 10 * 60 * 1000
MOST_UPLOADS = 64


@dataclass(frozen=True)
class ArchiveSettings:
    """The arguments of an archiver. `topics` are names, or None for all topics. Times are in ms. A
    `retention_ms` or `retention_bytes` of -1 means no limit.
    """

    topics: frozenset[str] | None
    interval_ms: int
    retention_ms: int
    retention_bytes: int
    replaced_retention_ms: int
    grace_ms: int
    uploads: int

    @property
    def interval(self) -> float:
        """Return `interval_ms` in seconds."""
        return self.interval_ms / 1000

    def has(self, topic: str) -> bool:
        """Return whether a topic is archived. Internal topics always are, except a cluster's metadata log."""
        if topic == CLUSTER_METADATA:
            return False
        return self.topics is None or topic in self.topics or topic in INTERNAL


def checked(
    topics: Iterable[str] | None = None,
    interval_ms: Any = INTERVAL_MS,
    retention_ms: Any = -1,
    retention_bytes: Any = -1,
    replaced_retention_ms: Any = WEEK_MS,
    grace_ms: Any = GRACE_MS,
    uploads: Any = UPLOADS,
) -> ArchiveSettings:
    """Return the settings. Raises InvalidArgumentError, InvalidTypeError, InvalidTopicError."""
    return ArchiveSettings(
        _topics(topics),
        arguments.whole("interval_ms", interval_ms, 1, arguments.MOST_MS),
        _limit("retention_ms", retention_ms),
        _limit("retention_bytes", retention_bytes),
        _limit("replaced_retention_ms", replaced_retention_ms),
        arguments.whole("grace_ms", grace_ms, 0, arguments.MOST_MS),
        arguments.whole("uploads", uploads, 1, MOST_UPLOADS),
    )


def _limit(name: str, value: Any) -> int:
    return arguments.whole(name, value, -1, INT64_MAX)


def _topics(topics: Iterable[str] | None) -> frozenset[str] | None:
    if topics is None:
        return None
    if isinstance(topics, str | bytes):
        raise InvalidTypeError(f"topics={topics!r}: must be a list of names, or None for all topics")
    try:
        found = frozenset(topics)
    except TypeError:
        kind = type(topics).__name__
        raise InvalidTypeError(f"topics must be a list of names or None, not {kind}") from None
    for name in found:
        names.check_topic(name)
    if not found:
        raise InvalidArgumentError("topics=[]: give at least one name, or None for all topics")
    return found
