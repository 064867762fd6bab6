"""The reading side of a store: a directory that this process does not write, live or not, ours or a broker's.

On disk: reads only. Threads: any.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from segstore import names
from segstore.storage.checkpoint import read_offsets
from segstore.storage.context import Context
from segstore.storage.ends import Ends, EndsReader, open_reader, slot_key
from segstore.storage.follower import Follower
from segstore.storage.topics import TopicFiles, TopicInfo, find_topic


class StoreReader:
    """Topics are looked up anew when a directory that has them has changed."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._topic_files = TopicFiles(context.files, context.root)
        self._lock = threading.Lock()
        self._followers: dict[tuple[str, int, str], Follower] = {}
        self._ends: EndsReader | None = None
        self._topics: tuple[tuple[int, int], dict[str, TopicInfo]] = (-1, -1), {}

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """All topics by name. OSError, CorruptCheckpointError."""
        version, held = self._topic_files.version(), self._topics
        if version != held[0]:
            # The stamp is taken first: what comes meanwhile is looked at again.
            held = self._topics = version, self._topic_files.load()[0]
        return held[1]

    def partition(self, topic: str, partition: int) -> Follower:
        """UnknownTopicOrPartitionError, which says what is there."""
        info = find_topic(self.topics, topic, partition)
        key = (topic, partition, info.topic_id)
        with self._lock:
            if key not in self._followers:
                self._followers[key] = self._follow(info, partition)
            return self._followers[key]

    def _follow(self, info: TopicInfo, partition: int) -> Follower:
        return Follower(
            self.context.pool,
            self._topic_files.partition_path(info.name, partition),
            info.settings,
            self._published(slot_key(info.topic_id, info.name, partition)),
            lambda: self._log_start(info.name, partition),
        )

    def _log_start(self, topic: str, partition: int) -> int:
        path = os.path.join(self.context.root, names.LOG_STARTS)
        return read_offsets(self.context.files, path).get((topic, partition), 0)

    def _published(self, key: int) -> Callable[[], Ends | None]:
        def get() -> Ends | None:
            if self._ends is None:
                self._ends = open_reader(
                    self.context.files, os.path.join(self.context.root, names.OURS, names.ENDS)
                )
            return None if self._ends is None else self._ends.get(key)

        return get

    def close(self) -> None:
        self.context.closed = True
        self.context.scheduler.close()
        self.context.pool.close()
