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
    """Topics are looked up on disk each time, so that those made later are seen."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._topic_files = TopicFiles(context.files, context.root)
        self._lock = threading.Lock()
        self._followers: dict[tuple[str, int, str], Follower] = {}
        self._ends: EndsReader | None = None

    @property
    def topics(self) -> dict[str, TopicInfo]:
        return self._topic_files.load()[0]

    def partition(self, topic: str, partition: int) -> Follower:
        """UnknownTopicOrPartitionError, which says what is there."""
        info = find_topic(self.topics, topic, partition)
        key = (topic, partition, info.topic_id)
        with self._lock:
            if key not in self._followers:
                self._followers[key] = self._follow(info, partition)
            return self._followers[key]

    def _follow(self, info: TopicInfo, partition: int) -> Follower:
        files, root = self.context.files, self.context.root
        starts = read_offsets(files, os.path.join(root, names.LOG_STARTS))
        return Follower(
            self.context.pool,
            self._topic_files.partition_path(info.name, partition),
            info.settings,
            self._published(slot_key(info.topic_id, info.name, partition)),
            starts.get((info.name, partition), 0),
        )

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
