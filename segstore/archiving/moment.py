"""`Moments` reads the state of a store at one moment: its topics, the ends of all logs, and its small files.

All published ends come from one publication in `.segstore/ends`. The store's files are only read. Threads:
the archiver's; any thread may call `ends_now`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

from segstore import names
from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.settings import ArchiveSettings
from segstore.errors import CorruptCheckpointError, StoreClosedError, UnknownTopicOrPartitionError
from segstore.storage.copy import small_files
from segstore.storage.log.read_only_partition import ReadOnlyPartition
from segstore.storage.meta.offset_checkpoints import LeaderEpochs, try_offsets
from segstore.storage.meta.published_ends import Ends, slot_key
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.segment.log_view import LogView
from segstore.storage.store.reader import StoreReader
from segstore.storage.store.store import Store

NEWEST_ONLY = frozenset({names.ADOPTED, names.ADOPTED_COPY, names.PRODUCER_IDS})
"""Small files that only grow, so that a restore to any time uses their newest content."""
_NOT_ARCHIVED = frozenset({names.LAGS, names.LET_GO})
"""Small files whose facts are true only at present. They are not archived."""
_TICK_NS = 2_000_000_000  # longer than the precision of the timestamps of any file system

Slots = dict[TopicIdPartition, int]


class Moment(NamedTuple):
    """The state of a store at `time` (ms). Records that were appended before that time are below `ends`.
    `all_topics` has (name, id) of all topics, even if they are not archived.
    """

    time: int
    topics: Mapping[str, TopicInfo]
    all_topics: frozenset[tuple[str, str]]
    ends: dict[TopicIdPartition, Ends]


class Moments:
    """Reads the states of a store at successive moments. The store is open with mode "r"."""

    def __init__(self, store: Store, settings: ArchiveSettings) -> None:
        assert isinstance(store.engine, StoreReader)
        self.store, self.side, self._settings = store, store.engine, settings
        self.files = store.context.files
        self._found: Mapping[str, TopicInfo] | None = None
        self._topics: dict[str, TopicInfo] = {}
        self._all: frozenset[tuple[str, str]] = frozenset()
        self._slots: Slots = {}
        self._followers: dict[TopicIdPartition, ReadOnlyPartition] = {}
        self._small: dict[str, bytes] = {}
        self._small_seen = (-1, 0)
        self._cleaned: dict[tuple[str, int], int] = {}
        self._cleaned_seen: tuple[int, ...] | None = None

    def take(self) -> Moment:
        """Return the present state of the store. Raises OSError, CorruptCheckpointError."""
        self._look_at_topics()
        now = self.store.context.clock()
        return Moment(now, self._topics, self._all, self.ends_now(self._slots))

    def _look_at_topics(self) -> None:
        found = self.side.topics
        if found is self._found:
            return
        chosen = {name: info for name, info in found.items() if self._settings.has(name)}
        slots = {
            TopicIdPartition(t.name, t.topic_id, number): slot_key(t.topic_id, t.name, number)
            for t in chosen.values()
            if t.error is None
            for number in t.partition_ids
        }
        everything = frozenset((info.name, info.topic_id) for info in found.values())
        self._followers = {key: each for key, each in self._followers.items() if key in slots}
        self._found, self._topics, self._all, self._slots = found, chosen, everything, slots

    def info(self, key: TopicIdPartition) -> TopicInfo:
        """Return the topic of a partition, as it was when `take` was last called."""
        return self._topics[key.topic]

    def ends_now(self, slots: Slots) -> dict[TopicIdPartition, Ends]:
        """Return the ends of the logs in `slots`. All published ends are of the same moment. If a log has no
        published ends, its ends are read from its files. Logs that were deleted, or are being created, are
        left out.
        """
        published = self.side.ends_of(list(slots.values()))
        if len(published) == len(slots):
            return {key: published[slot] for key, slot in slots.items()}
        found = {}
        for key, slot in slots.items():
            ends = published.get(slot) or self._unpublished(key)
            if ends is not None:
                found[key] = ends
        return found

    @property
    def slots(self) -> Slots:
        """Return {partition: its key in `.segstore/ends`} of all archived partitions."""
        return self._slots

    def _unpublished(self, key: TopicIdPartition) -> Ends | None:
        """If a log has no published ends, read its ends from its files. Return None if the log is still being
        created, or was deleted.
        """
        try:
            view = self.follower(key).view
        except (StoreClosedError, UnknownTopicOrPartitionError):
            return None
        layout = hash(tuple((each.base_offset, each.identity) for each in view.segments))
        end = view.end_offset
        return Ends(0, view.start_offset, end, end, view.stable_offset, 0, layout, -1)

    def follower(self, key: TopicIdPartition) -> ReadOnlyPartition:
        """Return the read-only partition of a key. Raises UnknownTopicOrPartitionError."""
        known = self._followers.get(key)
        if known is not None:
            return known
        if key not in self._slots:
            raise UnknownTopicOrPartitionError(f"{key} was deleted")
        made = self._followers[key] = self.side.follower(self._topics[key.topic], key.partition)
        return made

    def view(self, key: TopicIdPartition) -> LogView:
        """Return the present view of a log. Raises UnknownTopicOrPartitionError, StoreClosedError,
        OSError.
        """
        return self.follower(key).view

    def epochs(self, key: TopicIdPartition) -> tuple[tuple[int, int], ...]:
        """Return the leader epochs in a log's leader-epoch-checkpoint, or () if this file is damaged or
        missing. Raises OSError.
        """
        path = os.path.join(self.follower(key).directory, names.LEADER_EPOCHS)
        try:
            loaded: LeaderEpochs = LeaderEpochs.load(self.files, path)
        except (CorruptCheckpointError, FileNotFoundError):
            return ()
        return loaded.entries

    def cleaned(self) -> dict[tuple[str, int], int]:
        """Return {(topic, partition): offset}, the content of cleaner-offset-checkpoint. Raises OSError."""
        path = os.path.join(self.store.path, names.CLEANER_OFFSETS)
        try:
            seen = self.files.identity(path)
        except FileNotFoundError:
            return {}
        if seen != self._cleaned_seen:
            self._cleaned = try_offsets(self.files, path)[0] or {}
            self._cleaned_seen = seen
        return self._cleaned

    def small(self) -> dict[str, bytes]:
        """Return {name: content} of the small files in `.segstore`. If no file has changed, the result is the
        same dict object as that of the last call. Raises OSError.
        """
        ours = os.path.join(self.store.path, names.OURS)
        now, modified = time.time_ns(), self.files.modified(ours)
        seen, at = self._small_seen
        if seen == modified and at - modified > _TICK_NS:
            return self._small
        found = {}
        for path in small_files(self.files, self.store.path):
            name = os.path.basename(path)
            if name not in _NOT_ARCHIVED:
                try:
                    found[name] = self.files.read_file(path)
                except FileNotFoundError:
                    continue
        if found != self._small:
            self._small = found
        self._small_seen = modified, now
        return self._small
