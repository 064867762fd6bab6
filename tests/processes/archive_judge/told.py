"""What an archiver was told: up to which offsets a store is in its archive. Lines of JSON in a file, which
its process writes, and the judge reads once the process is dead.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import segstore
from segstore.errors import StoreClosedError, UnknownTopicOrPartitionError

Key = tuple[str, str, int]
"""A topic, its id, and a partition."""
TOPICS = {
    "plain": {"segment.bytes": 6_000},
    "pairs": {"segment.bytes": 9_000},
    "compacted": {"segment.bytes": 4_000, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01},
    "short": {"segment.bytes": 4_000, "retention.bytes": 12_000},
}
PARTITIONS = 2
MADE_ANEW = "again"
"""The topic that is deleted and made anew."""
GROUP = "readers"


def ends_of(store: segstore.Store) -> dict[Key, int]:
    """Return the end offsets of a store's partitions."""
    found = {}
    for info in store.topics().values():
        for number in () if info.internal else info.partition_ids:
            with suppress(StoreClosedError, UnknownTopicOrPartitionError):  # it was just deleted
                found[info.name, info.topic_id, number] = store.partition(info.name, number).end_offset
    return found


class ToldFile:
    """The file of one archive."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, ends: dict[Key, int]) -> None:
        """Note that the archive has all below these offsets."""
        with open(self.path, "a") as file:
            file.write(json.dumps([[*key, end] for key, end in ends.items()]) + "\n")

    def ends(self) -> dict[Key, int]:
        """Return the largest offset of each partition. A line that a kill has cut was not told."""
        found: dict[Key, int] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    for topic, topic_id, number, end in json.loads(line):
                        key = (topic, topic_id, number)
                        found[key] = max(found.get(key, 0), end)
        return found
