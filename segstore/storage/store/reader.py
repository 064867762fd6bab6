"""The reading side of a store: a directory that this process does not write, segstore's or a broker's.

On disk files are only read. Threads: any.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore import names
from segstore.errors import ReadOnlyError
from segstore.files import locks
from segstore.mutex import Mutex, calls_out
from segstore.storage.context import StoreContext
from segstore.storage.log.read_only_partition import ReadOnlyPartition
from segstore.storage.meta.clean_shutdown import read_marker
from segstore.storage.meta.published_ends import Ends, EndsGlance, EndsReader, open_reader, slot_key
from segstore.storage.meta.root_checkpoints import LOG_START_FILES, read_log_start
from segstore.storage.meta.tailed_ends import LATE, LOOK, FollowedEnds
from segstore.storage.meta.topics import NOT_A_FILE, TopicFiles, TopicInfo, find_topic

if TYPE_CHECKING:
    from segstore.storage.log.partition import Partition
    from segstore.storage.store.store_member import StoreMember
    from segstore.storage.store.writing_side import WritingSide

_TICK_NS = 2_000_000_000  # coarser than the clock of any file system

POLL_SECONDS = 0.005
_BELIEF_NS = 100_000_000  # how long ends are believed without another look at the marker
_BLIND_SECONDS = 1.0  # the longest sleep before a look at whether the ends are still a writer's
_TRUST_SECONDS = 30.0  # the same, while a live writer has the store
_LAST_WAKE = 1.0  # seconds in which a woken thread leaves `wait`; threads of a parent process never do
_PATIENCE = 50  # milliseconds to wait for a writer that is opening or closing the store


class _Belief(NamedTuple):
    """Whether ends with this number are the last writer's, as found at `at` (ns, monotonic)."""

    at: int
    nonce: int
    holds: bool


_NO_BELIEF = _Belief(-_BELIEF_NS, -1, False)


class _KnownEnds(NamedTuple):
    """What was published of a partition, as it was told, and what says whether it is so still."""

    reader: EndsReader
    glance: EndsGlance
    told: Ends


class _Topics(NamedTuple):
    """The topics found at these time stamps of the two directories, and since when the names are these."""

    version: tuple[int, int]
    names: frozenset[tuple[str, int]]
    since_ns: int
    settled: bool
    found: dict[str, TopicInfo]


class StoreReader:
    """Reads a store. Topics are looked up anew when a directory that has them has changed."""

    def __init__(self, context: StoreContext) -> None:
        self.context = context
        self._topic_files = TopicFiles(context.files, context.root)
        self._lock = Mutex()
        self._waiting: list[int] = []  # threads
        self._followers: dict[tuple[str, int, str], ReadOnlyPartition] = {}
        self._ends: EndsReader | None = None
        self._ends_path = os.path.join(context.root, names.OURS, names.ENDS)
        self._belief = _NO_BELIEF
        self._topics = _Topics((-1, -1), frozenset(), 0, False, {})

    @property
    def role(self) -> str:
        """See `Store.role`."""
        return "reader"

    @property
    def host_pid(self) -> int:
        """See `Store.host_pid`."""
        return self.context.files.lock_holder(os.path.join(self.context.root, names.LOCK)) or 0

    def members(self) -> list[StoreMember]:
        """See `Store.members`: one process writes."""
        return []

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics by name. Raises OSError, CorruptCheckpointError."""
        # The stamps are taken first: what changes meanwhile is looked at again. A fresh stamp proves
        # nothing, since a change within the same tick of the file system's clock would not move it.
        now, version, topics = time.time_ns(), self._topic_files.version(), self._topics
        if version == topics.version and topics.settled and now - max(version) > _TICK_NS:
            return topics.found
        # A checkpoint changes the root's stamp too: the names show whether partitions came or were deleted.
        directories = self._partitions_there()
        since = topics.since_ns if directories == topics.names else now
        same = directories == topics.names and version[1] == topics.version[1] and topics.settled
        if not same or now - version[1] <= _TICK_NS:
            # A directory that has just been made may not have all its files yet.
            settled = now - max(since, version[1]) > _TICK_NS
            self._topics = topics = _Topics(version, directories, since, settled, self._topic_files.load()[0])
            self._forget_all_but(topics.found)
        elif now - version[0] > _TICK_NS:
            self._topics = topics._replace(version=version)
        return topics.found

    def _forget_all_but(self, found: dict[str, TopicInfo]) -> None:
        """Forget partitions of deleted topics, which would keep their files mapped for as long as this store
        is open. Whoever still has a log of one keeps it, and gets an error from it.
        """
        with self._lock:
            for topic, number, topic_id in list(self._followers):
                if topic not in found or found[topic].topic_id != topic_id:
                    del self._followers[topic, number, topic_id]

    def _partitions_there(self) -> frozenset[tuple[str, int]]:
        parsed = map(names.parse_partition_dir, self.context.files.listdir(self.context.root))
        return frozenset(one for one in parsed if one is not None)

    def partition(self, topic: str, partition: int) -> ReadOnlyPartition:
        """Return the reading side of a partition. Raises UnknownTopicOrPartitionError, which names what
        exists.
        """
        return self.follower(find_topic(self.topics, topic, partition), partition)

    def follower(self, info: TopicInfo, partition: int) -> ReadOnlyPartition:
        """Return the reading side of a partition of a topic that `topics` has given just now."""
        key = (info.name, partition, info.topic_id)
        with self._lock:
            if key not in self._followers:
                self._followers[key] = self._follow(info, partition)
            return self._followers[key]

    def writing(self) -> WritingSide:
        """Return the writing side of this process. Raises ReadOnlyError."""
        raise ReadOnlyError(f'{self.context.root} is open with mode="r"')

    def flush(self) -> None:
        """Make durable what this process has appended: a reader has appended nothing."""

    def appender(self, topic: str, partition: int) -> Partition | None:
        """Return what appends to a partition: nothing does, in a store that is read only."""
        return None

    def _follow(self, info: TopicInfo, partition: int) -> ReadOnlyPartition:
        directory = self._topic_files.partition_path(info.name, partition)
        self.context.files.check_directory(directory)
        # Files of an older topic of that name may be open.
        self.context.pool.forget_directory(directory)
        return ReadOnlyPartition(
            self.context.pool,
            directory,
            info.settings,
            self._published(info, partition),
            self._unpublished_start(info.name, partition),
            lambda: self._believed() or self._is_ours(),
            lambda: self._is_there(info, partition),
            self._sameness(info, partition, directory),
            info.of_broker,
            self._sealed(info, partition),
        )

    def _sealed(self, info: TopicInfo, partition: int) -> Callable[[], dict[int, int]]:
        """Return a function that gives where sealed segments of a shared log end; see `ReadOnlyPartition`."""
        key = slot_key(info.topic_id, info.name, partition)

        def get() -> dict[int, int]:
            ends = self._ends
            return {} if ends is None or ends.shared is None else ends.sealed(key)

        return get

    def _sameness(self, info: TopicInfo, partition: int, directory: str) -> Callable[[], bool]:
        """Return a function that says whether a directory is still this topic's: by the id in it, and where
        that is another, by the topic's settings. Topics without ids, of old brokers, can't be told from each
        other.
        """
        own_marks: list[tuple[str, int]] = []  # id and inode of the directory when it was this topic's

        def same() -> bool:
            found_id = self._topic_files.told_id(info.name, partition)
            if found_id == info.topic_id:
                return True
            mark = found_id, self.context.files.inode(directory)
            if own_marks != [mark]:
                if not self._is_there(info, partition):
                    return False
                own_marks[:] = [mark]
            return True

        return same

    def _unpublished_start(self, topic: str, partition: int) -> Callable[[], int]:
        """Return a function that gives the log start offset where no end is published. The files that have it
        are read again when one of them was replaced.
        """
        places = [os.path.join(self.context.root, place) for place in LOG_START_FILES]
        read: dict[tuple[object, ...], int] = {}

        def get() -> int:
            seen = tuple(map(self._identity, places))
            if seen not in read:
                read.clear()
                read[seen] = self._log_start(topic, partition, None)
            return read[seen]

        return get

    def _identity(self, path: str) -> tuple[int, ...] | None:
        try:
            return self.context.files.identity(path)
        except FileNotFoundError:
            return None

    def _log_start(self, topic: str, partition: int, published: Ends | None) -> int:
        ends = self._look_for_ends()
        return read_log_start(self.context.files, self.context.root, (topic, partition), ends, published)

    def ends_of(self, keys: list[int]) -> dict[int, Ends]:
        """Return what is published of some partitions, all at one moment; nothing for a broker's
        directory.
        """
        ends = self._ends if self._believed() else None
        return {} if ends is None else ends.get_all(keys)

    def _published(self, info: TopicInfo, partition: int) -> Callable[[], Ends | None]:
        key = slot_key(info.topic_id, info.name, partition)
        counts: dict[int, int] = {}  # by published log start offset: the one that is taken
        known: _KnownEnds | None = None

        def get() -> Ends | None:
            nonlocal known
            ends, belief, last = self._ends, self._belief, known
            if ends is None or not belief.holds or monotonic_ns() - belief.at >= _BELIEF_NS:
                if not self._believed():
                    return None
                ends = self._ends
            if last is not None and last.reader is ends and last.glance.unchanged():
                return last.told
            told = found = ends.get(key) if ends is not None else None
            if ends is None or found is None:
                return None
            if found.start != 0:
                if found.start not in counts:
                    # A writer moves the offset in the checkpoints first: these are never older.
                    counts.clear()
                    counts[found.start] = self._log_start(info.name, partition, found)
                told = found._replace(start=counts[found.start])
            glance = ends.glance(found)
            known = _KnownEnds(ends, glance, told) if glance is not None and told is not None else None
            return told

        return get

    def _believed(self) -> bool:
        """Return whether the published ends are those of the last writer, and no broker was here since.

        They are where there is no clean shutdown marker, or the one that was written with the ends.
        """
        ends = self._look_for_ends()
        if ends is None:
            return False
        belief = self._belief
        if belief.holds and ends.nonce == belief.nonce and monotonic_ns() - belief.at < _BELIEF_NS:
            return True
        ends = self._renewed(ends)
        if ends is None:
            return False
        for _ in range(_PATIENCE):
            now, nonce = monotonic_ns(), ends.nonce
            marker = read_marker(self.context.files, self.context.root)
            # Without checksums, what a closed store has published is not believed: its logs say the same.
            holds = marker != 0 and nonce == (marker or 0) and (ends.checked or marker is None)
            self._belief = belief = _Belief(now, nonce, holds)
            if belief.holds or not self._is_ours():
                break
            # The writer that opens or closes the store has written one of marker and ends; the log proves
            # nothing meanwhile, for it may soon have the first half of an adoption.
            time.sleep(0.001)
        return belief.holds

    def _is_ours(self) -> bool:
        """Return whether a writer that publishes has the store: Kafka's lock belongs to a process, segstore's
        to an open file.
        """
        path = os.path.join(self.context.root, names.LOCK)
        try:
            with self.context.files.open(path) as handle:
                return locks.holder(handle.fd) == -1
        except OSError as error:
            if error.errno not in NOT_A_FILE | {errno.ENOENT, errno.EACCES}:
                raise
            return False

    def _is_there(self, info: TopicInfo, partition: int) -> bool:
        """Return whether this very topic still exists. Raises OSError, CorruptCheckpointError."""
        found = self._topic_files.load()[0].get(info.name)
        return found is not None and (info.topic_id, True) == (
            found.topic_id,
            partition in found.partition_ids,
        )

    @property
    def publications(self) -> int:
        """See `Store.publications`; 0 where nothing is published."""
        ends = self._look_for_ends()
        return ends.publications if ends is not None and self._believed() else 0

    @property
    def news(self) -> int:
        """See `Store.news`."""
        ends = self._look_for_ends()
        return ends.news if ends is not None and self._believed() else -1

    def wait(self, seen: int, seconds: float) -> None:
        """See `Store.wait`. Nothing is published of a broker's log: it is looked at again and again."""
        ends, me = self._look_for_ends(), threading.get_ident()
        if ends is None or not self._believed():
            time.sleep(min(seconds, POLL_SECONDS))
            return
        self._waiting.append(me)  # before `closed` is read: `close` sees this thread, or this sees the close
        try:
            if not self.context.closed:
                ends.wait(seen, min(seconds, _BLIND_SECONDS))
        finally:
            self._waiting.remove(me)

    def follow(self, keys: list[int]) -> FollowedEnds | None:
        """See `Store._follow`."""
        ends = self._look_for_ends()
        if ends is None or not self._believed():
            return None
        try:
            return ends.follow(keys)
        except LookupError:
            return None

    def _follows(self, followed: FollowedEnds) -> bool:
        """Return whether `followed` is where a writer of this store publishes now."""
        believed, ends = self._believed(), self._ends
        mapped = None if ends is None or not believed else (ends.memory, ends.shared)
        followed.outdated = mapped != (followed.memory, followed.shared)
        return not followed.outdated

    @calls_out  # as `Store.wait_for`
    def wait_for(self, followed: FollowedEnds, nudges: int, seconds: float) -> int:
        """See `Store.wait_for`. As long as a writer that publishes has the store, nobody else changes it:
        then the sleep is a long one.
        """
        belief, now = self._belief, monotonic_ns()
        if (not belief.holds or now - belief.at >= _BELIEF_NS) and not self._follows(followed):
            return LOOK
        me, blind = threading.get_ident(), _BLIND_SECONDS
        self._waiting.append(me)  # as in `wait`
        try:
            if self.context.closed:
                return LOOK
            found = followed.wait(nudges, seconds if seconds < blind else blind)
            if found == LATE and seconds > blind:
                return self._wait_on(followed, nudges, seconds - blind)
            return found
        finally:
            self._waiting.remove(me)

    @calls_out
    def _wait_on(self, followed: FollowedEnds, nudges: int, seconds: float) -> int:
        end = time.monotonic() + seconds
        while self._follows(followed) and self._is_ours() and not self.context.closed:
            found = followed.wait(nudges, min(end - time.monotonic(), _TRUST_SECONDS))
            if found != LATE or time.monotonic() >= end:
                return found
        return LOOK

    def wake(self) -> None:
        """See `Store._wake`. A thread that is about to wait may still do so."""
        if self._ends is not None:
            self._ends.wake()

    def _renewed(self, ends: EndsReader) -> EndsReader | None:
        """Return the ends, mapped anew where another file has their name: nobody writes the mapped file then,
        which belongs to a store that was here before. A file that lost its name may still be a writer's.
        """
        try:
            if self.context.files.inode(self._ends_path) == ends.inode:
                return ends
        except FileNotFoundError:
            return ends
        self._ends, self._belief = None, _NO_BELIEF
        ends.wake()  # threads that wait on it look again
        return self._look_for_ends()

    def _look_for_ends(self) -> EndsReader | None:
        if self._ends is None:
            self._ends = open_reader(self.context.files, self._ends_path)
        return self._ends

    def abandon(self) -> None:
        """End the store's threads, since nothing refers to the store and nobody can close it."""
        self.context.scheduler.close()

    @property
    def closed(self) -> bool:
        return self.context.closed

    @property
    def locks(self) -> list[Any]:
        """Return the locks of this store that an interrupted call may hold when the store is closed."""
        return [self._lock, self.context.pool.lock, *(each.lock for each in list(self._followers.values()))]

    def close(self) -> None:
        """Close the store. Threads in `wait` are woken until they return."""
        self.context.closed = True
        try:
            me, last = threading.get_ident(), time.monotonic() + _LAST_WAKE
            while any(thread != me for thread in self._waiting) and time.monotonic() < last:
                self.wake()
                time.sleep(0.001)
            self.context.scheduler.close()
        finally:
            self.context.pool.close()
            self._followers.clear()  # and with them the files that their segments keep open
