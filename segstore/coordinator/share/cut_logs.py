"""`CutLogs`: removes the offsets of lost records from the durable states of share partitions whose logs have
lost their last records in a crash (rule Q48 of docs/queue-rules.md). A store that was not closed cleanly has
one CutLogs.

If such offsets stayed in a state, records that are later appended at these offsets would be skipped. So all
offsets from the log's end on are removed from the state; the end is that of the log when the store was
opened. The changed state is written as a snapshot with the next state epoch, because an update can't lower a
start. Before that the group's epoch is raised to the new state epoch, because a broker initialises share
partitions with the epoch of their group.
On disk: appends to `__share_group_state` and `__consumer_offsets`. Threads: any; share partitions are cut one
at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from segstore.coordinator.share.core.stored import cut_above
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_log import StateLog
from segstore.coordinator.shared import shared
from segstore.errors import GroupNotFoundError, SegstoreError
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.store.store import Store

log = Logger("segstore")


class CutLogs:
    """Removes offsets above the ends of recovered logs from the states of share partitions. The object must
    be made before the first append, because the constructor reads the logs' ends. `raise_group` is a function
    that raises the epoch of a share group; the owner of this object sets it.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._states = store, shared(store, StateLog)
        self.raise_group: Callable[[str, int], None] = lambda group, epoch: None
        self._lock = Mutex()
        self._ends: dict[tuple[str, int], int] = {}
        for topic, number in store.writer().opened():
            # An error means that the partition is damaged. No fetch can read a damaged partition, so no state
            # needs a change.
            with suppress(SegstoreError):
                source = store.partition(topic, number)
                # A replicated log has all records that consumers have seen: no offsets must be removed.
                if not source.has_replicas:
                    topic_id = store.engine.topics[topic].topic_id
                    self._ends[topic_id, number] = source.log_end_offset
        self._done: set[ShareKey] = set()

    def close(self) -> None:
        """Do nothing: the object holds no resource."""

    def cut_all(self) -> None:
        """Call `cut` for all share partitions, and log its errors."""
        try:
            for key in self._states.all_keys():
                self._tried(key)
        except SegstoreError:
            log.exception("%r: share partitions are cut at the ends of their logs later", self._store)

    def _tried(self, key: ShareKey) -> None:
        try:
            self.cut(key)
        except SegstoreError:
            log.exception("share partition %s is cut at the end of its log later", key)

    def cut(self, key: ShareKey) -> None:
        """Remove the offsets above the log's end from a share partition's state, unless this method has done
        so before. Raises StorageError, and the errors of `StateLog.raise_epoch` and `raise_group`.
        """
        end = self._ends.get(key[1:])
        if end is None or key in self._done:
            return
        with self._lock:
            if key not in self._done:
                self._cut(key, end)
                self._done.add(key)

    def _cut(self, key: ShareKey, end: int) -> None:
        state = self._states.read(key)
        if state is None or (kept := cut_above(state, end)) is state:
            return
        log.warning(
            "share partition %s: its log ends at offset %d after a crash, and so does its state now", key, end
        )
        self._raise_group(key.group, state.state_epoch + 1)
        self._states.raise_epoch(key, state.state_epoch + 1, kept)

    def _raise_group(self, group: str, epoch: int) -> None:
        """Raise a group's epoch. If the group does not exist, log a warning."""
        try:
            self.raise_group(group, epoch)
        except GroupNotFoundError:
            log.warning("group %s has the state of a share partition, and is no share group", group)
