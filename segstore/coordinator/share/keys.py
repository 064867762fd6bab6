"""`ShareKey`: identifies a share partition by group, topic id and partition (Kafka: SharePartitionKey).

Nothing is on disk. Threads: immutable values.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore import names
from segstore.errors import InvalidRequestError
from segstore.integers import INT32_MAX


class ShareKey(NamedTuple):
    """The key of a share partition. `topic_id` is the topic's id as base64 text, as Kafka writes it."""

    group: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        """Return the key as text (Kafka: SharePartitionKey.asCoordinatorKey). Java's hash of this text
        chooses the partition of `__share_group_state`.
        """
        return f"{self.group}:{self.topic_id}:{self.partition}"


def parse_share_key(text: str) -> ShareKey:
    """Return the key whose `str` is `text`. A group id may contain colons, so `text` is split at its last two
    colons. Raises InvalidRequestError if `text` is no key.
    """
    parts = text.rsplit(":", 2)
    if len(parts) == 3 and parts[0] and names.is_topic_id(parts[1]) and _is_partition(parts[2]):
        return ShareKey(parts[0], parts[1], int(parts[2]))
    raise InvalidRequestError(f"{text!r:.300}: a share partition has the form GROUP:TOPIC_ID:PARTITION")


def _is_partition(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= INT32_MAX
