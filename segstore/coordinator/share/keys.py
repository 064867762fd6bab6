"""`ShareKey`, the name of a share partition: a group, and a partition of a topic (Kafka: SharePartitionKey).

Nothing is on disk. Threads: immutable values.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore import names
from segstore.errors import InvalidRequestError
from segstore.integers import INT32_MAX


class ShareKey(NamedTuple):
    """A share partition; `topic_id` is Kafka's base64 text of the topic's id."""

    group: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        """Return the text of the key, whose Java hash chooses the partition of `__share_group_state` (Kafka:
        SharePartitionKey.asCoordinatorKey).
        """
        return f"{self.group}:{self.topic_id}:{self.partition}"


def parse_share_key(text: str) -> ShareKey:
    """Return the key whose `str` is `text`. A group id may contain colons, so the text is parsed from its
    end. Raises InvalidRequestError if the form is wrong.
    """
    parts = text.rsplit(":", 2)
    if len(parts) == 3 and parts[0] and names.is_topic_id(parts[1]) and _is_partition(parts[2]):
        return ShareKey(parts[0], parts[1], int(parts[2]))
    raise InvalidRequestError(f"{text!r:.300}: a share partition has the form GROUP:TOPIC_ID:PARTITION")


def _is_partition(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= INT32_MAX
