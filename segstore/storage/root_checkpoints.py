"""Owns the checkpoint files of the root: recovery points, log start offsets, high watermarks, cleaner
offsets.

Each is Kafka's text of (topic, partition, offset). Partitions that were not loaded since the store was
opened keep what their line said.
Threads: any; one lock, held while a file is written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from segstore import names
from segstore.files import Files
from segstore.storage.checkpoint import read_offsets, write_offsets

TopicPartitionKey = tuple[str, int]


class OffsetCheckpoint:
    """One checkpoint file, and what it says."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._lock = threading.Lock()
        self._held = read_offsets(files, path)

    def get(self, key: TopicPartitionKey) -> int | None:
        return self._held.get(key)

    def partitions(self) -> set[TopicPartitionKey]:
        """Those that have a line."""
        return set(self._held)

    def update(
        self, changes: Mapping[TopicPartitionKey, int], gone: frozenset[TopicPartitionKey] = frozenset()
    ) -> None:
        """Write the file with these changes, synced; nothing is written where none changes anything.
        OSError.
        """
        with self._lock:
            held = {k: v for k, v in (self._held | dict(changes)).items() if k not in gone}
            if held != self._held:
                write_offsets(self._files, self._path, held)
                self._held = held


class RootCheckpoints:
    """The four of them."""

    def __init__(self, files: Files, root: str) -> None:
        self.recovery_points = OffsetCheckpoint(files, os.path.join(root, names.RECOVERY_POINTS))
        self.log_starts = OffsetCheckpoint(files, os.path.join(root, names.LOG_STARTS))
        self.high_watermarks = OffsetCheckpoint(files, os.path.join(root, names.HIGH_WATERMARKS))
        self.cleaner_offsets = OffsetCheckpoint(files, os.path.join(root, names.CLEANER_OFFSETS))

    def forget(self, topic: str, but: tuple[int, ...] = ()) -> None:
        """Drop the lines of a topic's partitions, those of `but` excepted: what is said of some that are gone
        must not be said of new ones. OSError.
        """
        files = (self.recovery_points, self.log_starts, self.high_watermarks, self.cleaner_offsets)
        named = {key for held in files for key in held.partitions()}
        gone = frozenset(key for key in named if key[0] == topic and key[1] not in but)
        for held in files:
            held.update({}, gone)
