"""`StoreReader` reads a store of segstore, or the directory of a Kafka broker, while another process writes
it.

Files are only read. Threads: any.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore import names
from segstore.errors import ReadOnlyError
from segstore.mutex import Mutex, calls_out
from segstore.storage.context import StoreContext
from segstore.storage.log.read_only_partition import ReadOnlyPartition
from segstore.storage.meta.published_ends import Ends
from segstore.storage.meta.tailed_ends import LATE, LOOK, TailedEnds
from segstore.storage.meta.topics import TopicFiles, TopicInfo, find_topic
from segstore.storage.store.believed_ends import BelievedEnds
from segstore.storage.store.published_partition import PublishedPartition

if TYPE_CHECKING:
    from segstore.storage.log.partition import Partition
    from segstore.storage.store.store_member import StoreMember
    from segstore.storage.store.writing_side import WritingSide

_TICK_NS = 2_000_000_000  # a time in nanoseconds that is longer than a clock tick of any file system

POLL_SECONDS = 0.005
_BLIND_SECONDS = 1.0  # the longest sleep before the reader checks that a writer still publishes ends
_TRUST_SECONDS = 30.0  # the longest sleep after a check that has found a live writer
# The longest time that `close` waits for threads in `wait`; after a fork some of them don't exist.
_LAST_WAKE = 1.0


class _Topics(NamedTuple):
    """`found` has the topics by name. `version` has the time stamps of the root and of the settings directory
    before the topics were read. `names` has (topic, partition) of each partition directory; the set of these
    directories has not changed since `since_ns`. `settled`: whether `since_ns` and the settings
    directory's time stamp were longer ago than a clock tick of the file system, so that each later change
    alters a time stamp.
    """

    version: tuple[int, int]
    names: frozenset[tuple[str, int]]
    since_ns: int
    settled: bool
    found: dict[str, TopicInfo]


class StoreReader:
    """Reads a store. Topics are read again if the time stamp of the root or of the directory of topic
    settings has changed.
    """

    def __init__(self, context: StoreContext) -> None:
        self.context = context
        self._topic_files = TopicFiles(context.files, context.root)
        self._lock = Mutex()
        self._waiting: list[int] = []  # ids of the threads that sleep in `wait` or `wait_for`
        self._followers: dict[tuple[str, int, str], ReadOnlyPartition] = {}
        self._ends = BelievedEnds(context)
        self._topics = _Topics((-1, -1), frozenset(), 0, False, {})

    @property
    def role(self) -> str:
        """Return the role of this process, "reader"."""
        return "reader"

    @property
    def host_pid(self) -> int:
        """Return the pid of the process that holds the store's lock; 0 if there is none."""
        return self.context.files.lock_holder(os.path.join(self.context.root, names.LOCK)) or 0

    def members(self) -> list[StoreMember]:
        """Return an empty list, because a reader is no member of a shared store."""
        return []

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics by name. Raises OSError, CorruptCheckpointError."""
        # The time stamps are read first, so that the next call sees a change after this line. A time stamp of
        # less than `_TICK_NS` ago does not prove that nothing has changed, because another change in the same
        # clock tick of the file system would not alter the time stamp.
        now, version, topics = time.time_ns(), self._topic_files.version(), self._topics
        if version == topics.version and topics.settled and now - max(version) > _TICK_NS:
            return topics.found
        # Each write of a checkpoint alters the root's time stamp. So the names of the directories are
        # compared, to see whether partitions were made or deleted.
        directories = self._partitions_there()
        since = topics.since_ns if directories == topics.names else now
        same = directories == topics.names and version[1] == topics.version[1] and topics.settled
        if not same or now - version[1] <= _TICK_NS:
            # Topics are read again soon after a directory was made, because it may not have all its files
            # yet.
            settled = now - max(since, version[1]) > _TICK_NS
            self._topics = topics = _Topics(version, directories, since, settled, self._topic_files.load()[0])
            self._forget_all_but(topics.found)
        elif now - version[0] > _TICK_NS:
            self._topics = topics._replace(version=version)
        return topics.found

    def _forget_all_but(self, found: dict[str, TopicInfo]) -> None:
        """Forget the partitions of deleted topics, because the partitions' files would stay mapped until this
        store is closed.
        """
        # A caller's `PartitionLog` of a deleted topic raises StoreClosedError from now on.
        with self._lock:
            for topic, number, topic_id in list(self._followers):
                if topic not in found or found[topic].topic_id != topic_id:
                    del self._followers[topic, number, topic_id]

    def _partitions_there(self) -> frozenset[tuple[str, int]]:
        parsed = map(names.parse_partition_dir, self.context.files.listdir(self.context.root))
        return frozenset(one for one in parsed if one is not None)

    def partition(self, topic: str, partition: int) -> ReadOnlyPartition:
        """Return the `ReadOnlyPartition` of a partition. Raises UnknownTopicOrPartitionError, which names the
        topics or partitions that exist.
        """
        return self.follower(find_topic(self.topics, topic, partition), partition)

    def follower(self, info: TopicInfo, partition: int) -> ReadOnlyPartition:
        """Return the `ReadOnlyPartition` of a partition; `info` comes from `topics`."""
        key = (info.name, partition, info.topic_id)
        with self._lock:
            if key not in self._followers:
                self._followers[key] = self._follow(info, partition)
            return self._followers[key]

    def writing(self) -> WritingSide:
        """Raise ReadOnlyError, because this store is open for reading."""
        raise ReadOnlyError(f'{self.context.root} is open with mode="r"')

    def flush(self) -> None:
        """Do nothing, because a reader has appended nothing."""

    def appender(self, topic: str, partition: int) -> Partition | None:
        """Return None, because nothing appends to a store that is open for reading."""
        return None

    def _follow(self, info: TopicInfo, partition: int) -> ReadOnlyPartition:
        directory = self._topic_files.partition_path(info.name, partition)
        self.context.files.check_directory(directory)
        # Open files in this directory may belong to an older topic of the same name, so these files are
        # closed.
        self.context.pool.forget_directory(directory)
        published = PublishedPartition(self.context, self._ends, self._topic_files, info, partition)
        return ReadOnlyPartition(self.context.pool, directory, info.settings, published, info.of_broker)

    def ends_of(self, keys: list[int]) -> dict[int, Ends]:
        """Return the partitions' ends in `.segstore/ends` by slot key (a hash of topic id and partition), all
        read at the same moment; an empty dict if this file can't be used, as in a broker's directory.
        """
        ends = self._ends.believed()
        return {} if ends is None else ends.get_all(keys)

    @property
    def publications(self) -> int:
        """Return the number of times that log ends were published in `.segstore/ends`; 0 if this file can't
        be used.
        """
        ends = self._ends.believed()
        return 0 if ends is None else ends.publications

    @property
    def news(self) -> int:
        """Return a number that changes when a topic is created or deleted, or a group changes; -1 if
        `.segstore/ends` can't be used.
        """
        ends = self._ends.believed()
        return -1 if ends is None else ends.news

    def wait(self, seen: int, seconds: float) -> None:
        """Sleep until `publications` differs from `seen`, but at most `seconds`, and at most
        `_BLIND_SECONDS`. In a broker's directory nothing is published, so the sleep takes at most
        POLL_SECONDS.
        """
        ends, me = self._ends.believed(), threading.get_ident()
        if ends is None:
            time.sleep(min(seconds, POLL_SECONDS))
            return
        # This line comes before the read of `closed`, so that either `close` sees this thread, or this thread
        # sees `closed`.
        self._waiting.append(me)
        try:
            if not self.context.closed:
                ends.wait(seen, min(seconds, _BLIND_SECONDS))
        finally:
            self._waiting.remove(me)

    def tail(self, keys: list[int]) -> TailedEnds | None:
        """Return an object by which `wait_for` waits until the log ends of the partitions with these slot
        keys (hashes of topic id and partition) change; None if the store's last writer did not write
        `.segstore/ends`, or if a key has no slot in this file.
        """
        ends = self._ends.believed()
        if ends is None:
            return None
        try:
            return ends.tail(keys)
        except LookupError:
            return None

    def _publishes_into(self, tailed: TailedEnds) -> bool:
        """Return whether `tailed` maps the files into which the store's last writer publishes; if not, set
        `tailed.outdated`.
        """
        ends = self._ends.believed()
        mapped = None if ends is None else (ends.memory, ends.shared)
        tailed.outdated = mapped != (tailed.memory, tailed.shared)
        return not tailed.outdated

    @calls_out  # a signal handler that runs during the sleep may call the store
    def wait_for(self, tailed: TailedEnds, nudges: int, seconds: float) -> int:
        """Sleep until one of the log ends in `tailed` changes, `tailed.nudges()` no longer returns `nudges`,
        or `seconds` have passed. Return the result of `TailedEnds.wait`. Return LOOK if `tailed` is outdated,
        if no writer has the store open, or if this store is closed.
        """
        if not self._ends.are_fresh() and not self._publishes_into(tailed):
            return LOOK
        me, blind = threading.get_ident(), _BLIND_SECONDS
        # `closed` is read after this line, so that either `close` sees this thread, or this thread sees
        # `closed`.
        self._waiting.append(me)
        try:
            if self.context.closed:
                return LOOK
            found = tailed.wait(nudges, seconds if seconds < blind else blind)
            if found == LATE and seconds > blind:
                return self._wait_on(tailed, nudges, seconds - blind)
            return found
        finally:
            self._waiting.remove(me)

    @calls_out
    def _wait_on(self, tailed: TailedEnds, nudges: int, seconds: float) -> int:
        end = time.monotonic() + seconds
        while self._publishes_into(tailed) and self._ends.have_writer() and not self.context.closed:
            found = tailed.wait(nudges, min(end - time.monotonic(), _TRUST_SECONDS))
            if found != LATE or time.monotonic() >= end:
                return found
        return LOOK

    def wake(self) -> None:
        """Wake the threads that sleep in `wait`. A thread that enters `wait` at the same time may still
        sleep.
        """
        self._ends.wake()

    def abandon(self) -> None:
        """Stop the store's threads, because nothing refers to the store."""
        self.context.scheduler.close()

    @property
    def closed(self) -> bool:
        return self.context.closed

    @property
    def locks(self) -> list[Any]:
        """Return the locks of this store that an interrupted call may hold when the store is closed."""
        return [self._lock, self.context.pool.lock, *(each.lock for each in list(self._followers.values()))]

    def close(self) -> None:
        """Close the store, after all threads in `wait` have returned, or after `_LAST_WAKE` seconds."""
        self.context.closed = True
        try:
            me, last = threading.get_ident(), time.monotonic() + _LAST_WAKE
            while any(thread != me for thread in self._waiting) and time.monotonic() < last:
                self.wake()
                time.sleep(0.001)
            self.context.scheduler.close()
        finally:
            self.context.pool.close()
            self._followers.clear()  # this also closes the partitions' segment files
