"""The reading side of a store: a directory that this process does not write, live or not, ours or a broker's.

On disk: reads only. Threads: any.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from segstore import names
from segstore.storage.checkpoint import read_offsets
from segstore.storage.context import Context
from segstore.storage.ends import Ends, EndsReader, open_reader, slot_key
from segstore.storage.follower import Follower
from segstore.storage.topics import TopicFiles, TopicInfo, find_topic

_TICK_NS = 2_000_000_000  # coarser than the clock of any file system

POLL_SECONDS = 0.005


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
            # The stamp is taken first: what comes meanwhile is looked at again. A fresh one is not kept,
            # since a change within the same tick of the file system's clock would not move it.
            settled = time.time_ns() - max(version) > _TICK_NS
            held = version, self._topic_files.load()[0]
            self._topics = held if settled else ((-1, -1), {})
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
        directory = self._topic_files.partition_path(info.name, partition)
        # Files of an older topic of that name may be open.
        self.context.pool.forget_directory(directory)
        return Follower(
            self.context.pool,
            directory,
            info.settings,
            self._published(slot_key(info.topic_id, info.name, partition)),
            lambda: self._log_start(info.name, partition),
        )

    def _log_start(self, topic: str, partition: int) -> int:
        path = os.path.join(self.context.root, names.LOG_STARTS)
        return read_offsets(self.context.files, path).get((topic, partition), 0)

    def _published(self, key: int) -> Callable[[], Ends | None]:
        def get() -> Ends | None:
            ends = self._look_for_ends()
            return None if ends is None else ends.get(key)

        return get

    @property
    def publications(self) -> int:
        ends = self._look_for_ends()
        return 0 if ends is None else ends.publications

    def wait(self, seen: int, seconds: float) -> None:
        """See `Store.wait`. Of a log that is not published nobody tells: it is looked at again and again."""
        ends = self._look_for_ends()
        if ends is not None:
            ends.wait(seen, seconds)
        else:
            time.sleep(min(seconds, POLL_SECONDS))

    def _look_for_ends(self) -> EndsReader | None:
        if self._ends is None:
            path = os.path.join(self.context.root, names.OURS, names.ENDS)
            self._ends = open_reader(self.context.files, path)
        return self._ends

    def close(self) -> None:
        self.context.closed = True
        self.context.scheduler.close()
        self.context.pool.close()
