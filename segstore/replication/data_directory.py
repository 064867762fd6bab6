"""A data directory of a replicated store. Each directory is registered as one broker (Kafka: ReplicaManager;
rules R27, R32).

On disk is a Kafka log directory with `meta.properties`. Threads: each directory has three, so that other
directories go on if the disk of one hangs. The first thread changes the roles of replicas, and fetches for
followers (`Fetching`). The second thread reads logs for followers in other directories (`ReadThread`). The
third thread is native, and writes batches of leaders in other directories to the logs of this directory's
followers (`DiskThread`). Any thread may call `post`, `ask`, `read` and `go_offline`.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol, TypeVar, cast

from segstore import names
from segstore.errors import (
    CorruptRecordError,
    ReplicaOfflineError,
    StorageError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
    copy_of,
    is_refusal,
)
from segstore.files.reserve import NO_ROOM
from segstore.logger import Logger
from segstore.replication.core.registration import BrokerRegistration, PartitionRegistration
from segstore.replication.fetching import Fetching
from segstore.replication.local_replica import Links, LocalReplica, ReplicaHost
from segstore.replication.metadata.image import PartitionKey
from segstore.replication.metadata.properties import write_properties
from segstore.replication.metadata.voters import VoterDirectory
from segstore.replication.read_thread import ReadThread
from segstore.replication.replica_fetch import LeaderRead
from segstore.storage.inbox.topic_files import write_topic_files
from segstore.storage.segment.disk_thread import DiskThread
from segstore.storage.store.store import open_context
from segstore.storage.store.writer import StoreWriter
from segstore.threads import take

if TYPE_CHECKING:
    from segstore.config import StoreConfig
    from segstore.files import Files
    from segstore.replication.core.config import ReplicaConfig
    from segstore.replication.settings import ReplicationConfig
    from segstore.storage.context import Clock
    from segstore.storage.meta.topic_info import TopicInfo

log = Logger("segstore")

T = TypeVar("T")
LOOK = 0.5
"""Interval in seconds at which a thread in `DataDirectory.call` checks whether the directory's thread still
runs.
"""
ROUNDS = 8
"""The largest number of fetches for one replica in a row. After them the thread fetches for the next
replica.
"""
SILENCE = 60.0
"""A warning is logged at most once in this number of seconds: on a full disk a follower fails with each
append of its leader.
"""


class DirectoryChange(NamedTuple):
    """A change of one topic's metadata, for one directory. `info` has the topic's settings, and the ids of
    the partitions that are assigned to this directory (perhaps none). `partitions` has (partition id, new
    state) of each changed partition.
    """

    info: TopicInfo
    config: ReplicaConfig
    partitions: tuple[tuple[int, PartitionRegistration], ...]


class DirectoryContext(Links, Protocol):
    """Methods of the store that a directory calls."""

    def heartbeat(self, broker: int) -> None:
        """Report to the controller that the directory's thread runs, and that the directory's disk works."""

    def when_led(self, key: PartitionKey, work: Callable[[], None]) -> None:
        """Call `work` when the elected leader of the partition takes appends. If the leader takes appends
        already, call `work` at once.
        """


class DataDirectory:
    """One data directory, open for writing. `broker` is its broker id. `error` is the error that took the
    directory offline, None while the directory is online.
    """

    def __init__(
        self,
        broker: int,
        writer: StoreWriter,
        brokers: Mapping[int, BrokerRegistration],
        home: DirectoryContext,
        settings: ReplicationConfig,
    ) -> None:
        self.broker, self.writer, self.path = broker, writer, writer.context.root
        self._home, self._settings = home, settings
        self.replicas: dict[PartitionKey, LocalReplica] = {}
        self.error: Exception | None = None
        self._assigned: dict[str, TopicInfo] = {}
        self._topics_published = False  # True if the last `write_topic_files` did not fail
        self._identity = self._look()
        self._thread, self._reading = Fetching(self, settings), ReadThread(broker)
        self._disk_thread = DiskThread()
        thread = None if settings.inline else self._disk_thread
        self._host = ReplicaHost(broker, brokers, home, settings.fetch_max_bytes, thread)
        self._warned: dict[str, float] = {}  # text of a warning -> time of the last warning with this text
        self._fenced = False  # True if a log refuses all appends because a call of the disk failed
        writer.context.on_background_error = self._on_background_error

    def __repr__(self) -> str:
        return f"<DataDirectory {self.broker} at {self.path}>"

    # --- any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._reading.start()

    def read(self, read: LeaderRead) -> None:
        """Queue `read` for the reading thread, which calls it. `read` must not raise an error. `read` returns
        None, or another read, which the thread calls next if its queue is empty.
        """
        self._reading.post(read)

    @property
    def hangs(self) -> bool:
        """Return whether the directory's thread has made no progress for two heartbeat intervals. If so, the
        disk or the machine hangs or is too slow.
        """
        return time.monotonic() - self._thread.turned > 2 * self._settings.heartbeat_interval_ms / 1000

    def post(self, work: Callable[[], object]) -> None:
        """Queue `work` for the directory's thread, which calls it."""
        self._thread.post(work)

    def call(self, work: Callable[[], T]) -> T:
        """Call `work` in the directory's thread, and return its result. Raises the errors of `work`, and
        ReplicaOfflineError if the directory is offline or its thread has ended.
        """
        outcome: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()

        def run() -> None:
            try:
                outcome.put((work(), None))
            except Exception as error:
                outcome.put((None, error))
                # The caller of `call` raises the error. A disk error is raised here too, in the directory's
                # thread, because that thread passes it to `on_error`, which may take the directory offline.
                if isinstance(error, OSError):
                    raise

        self._thread.post(run)
        while True:
            with suppress(Empty):
                result, error = take(outcome, LOOK)
                if error is not None:
                    raise copy_of(error)
                return cast(T, result)
            if self.error is not None or self._thread.ended:
                raise ReplicaOfflineError(f"{self!r} is offline: {self.error or 'the store is closed'}")

    def announce(self, address: str) -> None:
        """Ask the directory's thread to write the address of the store into the directory's lock file. The
        address is only a hint: the directory stays online if the write fails.
        """

        def write() -> None:
            with suppress(OSError):
                self.writer.announce(address)

        self._thread.post(write)

    def ask(self, replica: LocalReplica) -> None:
        """Queue a fetch for a replica. The directory's thread makes the fetch."""
        if not replica.asked:
            try:
                replica.asked = True
                self._thread.post(replica)
            except BaseException:
                replica.asked = False  # If `asked` stayed True, later calls would queue no fetch.
                raise

    def ask_all(self) -> None:
        """Queue a fetch for each replica of the directory."""
        for replica in list(self.replicas.values()):
            self.ask(replica)

    def go_offline(self, error: Exception) -> None:
        """Stop all replicas of the directory, because of `error`. After this call they write nothing
        (R32).
        """
        self.error = error
        for replica in list(self.replicas.values()):
            replica.go_offline()

    def _log_fenced(self, error: BaseException) -> None:
        """Take the directory offline, because a disk error has fenced a log (R32; Kafka:
        LogDirFailureChannel).
        """
        # The caller holds locks of the log. So the directory's thread raises the error again, and handles the
        # error.
        if is_refusal(error):
            self._fenced = True
            self._thread.post(partial(_raise, error))

    def _on_background_error(self, error: Exception) -> None:
        """Pass a disk error of background work to the directory's thread, which handles it."""
        # ENOENT is no reason to go offline: `heal` repairs a missing file.
        if is_refusal(error) and error.errno != errno.ENOENT:
            self._thread.post(partial(_raise, error))

    def stop(self, seconds: float) -> bool:
        """Stop the three threads, and wait for each for at most `seconds`. Return whether all of them have
        ended.
        """
        reading = self._reading.stop(seconds)
        ended = self._thread.stop(seconds)
        return self._disk_thread.end(seconds if ended else 0) and ended and reading

    # --- the directory's thread ------------------------------------------------------------------

    def apply(self, changes: Iterable[DirectoryChange]) -> None:
        """Apply changes of the metadata to topics and replicas. Raises StorageError."""
        for change in changes:
            if self.error is not None:
                return
            # A majority of voters has decided the change, so the change must not fail on a full disk, and may
            # use the reserved space.
            with self.writer.context.reserve:
                self._apply(change)

    def _apply(self, change: DirectoryChange) -> None:
        info, here = change.info, set(change.info.partition_ids)
        known = self.writer.topics.get(info.name)
        if known is not None and known.topic_id != info.topic_id:
            self.delete(info.name, known.topic_id)
            known = None
        leaving = [k for k in self.replicas if k.topic == info.name and k.partition not in here]
        self._assigned[info.name] = info
        self._make(info, leaving)
        for number, registration in change.partitions:
            if number in here:
                replica = self._replica(PartitionKey(info.name, number), change.config)
                replica.become(registration)
                # `configure` is called after `become`: a replica that ceases to be leader must not apply the
                # new settings while it is leader.
                replica.configure(change.config)
                self._thread.breathe()
        for key in leaving:
            self.replicas[key].go_offline()
            self._home.when_led(key, partial(self.post, partial(self._leave, key)))

    def write_topic_files(self, topics: Mapping[str, TopicInfo], changed: Collection[str] | None) -> None:
        """Write the settings of topics into the inbox. Processes that stage records read these settings.
        `changed` are the names of the topics to write, None means all topics. If this call fails, the next
        call writes all topics. Raises OSError.
        """
        if self.error is not None:
            return
        published, self._topics_published = self._topics_published, False
        visible = {name: info for name, info in topics.items() if not info.internal}
        with self.writer.context.reserve:
            write_topic_files(self.writer.inbox.folder, visible, changed if published else None)
        self._topics_published = True

    def _make(self, info: TopicInfo, leaving: Iterable[PartitionKey] = ()) -> None:
        """Create or change the topic, so that its partitions are those of `info` and those in `leaving`,
        which will be removed later. If the topic would have no partition, delete the topic.
        """
        ids = tuple(sorted({*info.partition_ids, *[key.partition for key in leaving]}))
        known = self.writer.topics.get(info.name)
        if not ids:
            self._delete(info.name, known)
        elif known is None or (known.partition_ids, known.settings) != (ids, info.settings):
            self.writer.topic_admin.make(replace(info, partition_ids=ids))

    def _leave(self, key: PartitionKey) -> None:
        """Remove a partition that was moved to other directories, unless it was assigned to this directory
        again. Called only after another replica has become leader: until then readers read this replica.
        """
        info, replica = self._assigned.get(key.topic), self.replicas.get(key)
        if info is not None and replica is not None and key.partition not in info.partition_ids:
            del self.replicas[key]
            self._make(info, [k for k in self.replicas if k.topic == key.topic])

    def _replica(self, key: PartitionKey, config: ReplicaConfig) -> LocalReplica:
        found = self.replicas.get(key)
        # The partition is new, or was moved to other directories and back.
        if found is None or found.core.role is None:
            partition = self.writer.partition(*key)
            partition.segments.on_fence = self._log_fenced
            found = self.replicas[key] = LocalReplica(
                key, partition, self.writer.partitions.replica(*key), config, self._host
            )
        return found

    def delete(self, topic: str, topic_id: str) -> None:
        """Delete a topic that was removed from the metadata. Raises StorageError."""
        self._assigned.pop(topic, None)
        for key in [k for k in self.replicas if k.topic == topic]:
            self.replicas.pop(key).go_offline()
        known = self.writer.topics.get(topic)
        if known is not None and known.topic_id == topic_id:
            self._delete(topic, known)

    def _delete(self, topic: str, known: TopicInfo | None) -> None:
        if known is not None:
            with suppress(UnknownTopicOrPartitionError):
                self.writer.topic_admin.delete(topic)

    def step(self, replica: LocalReplica) -> bool | None:
        """Fetch for a replica until it has all records, but at most ROUNDS times. Return True if the leader
        may have more records, and None if the leader can't answer yet. In all other cases return False.
        """
        replica.asked = False
        if self.error is not None or self.replicas.get(replica.key) is not replica:
            return False
        for _ in range(ROUNDS):
            more = replica.step()
            if not more:
                return more
        return True

    def resume(self, replica: LocalReplica, work: Callable[[], bool | None]) -> None:
        """Call `work`, for example an append of records that a reading thread has read. Fetch for the replica
        again, unless `work` returns None.
        """
        if self.error is None and self.replicas.get(replica.key) is replica:
            self._thread.fetch(replica, lambda: None if work() is None else self.step(replica))

    def check(self) -> None:
        """Raise StorageError if the directory is not at its path any more (R32)."""
        if self._look() != self._identity:
            raise StorageError(errno.ENOENT, "the data directory is not there any more", self.path)

    def _look(self) -> tuple[int, ...] | None:
        """Return the result of `Files.identity` for the file `meta.properties`, None if there is no such
        file. Raises OSError.
        """
        files, path = self.writer.context.files, names.below(self.path, names.META_PROPERTIES)
        return files.identity(path) if files.exists(path) else None

    def on_error(self, error: Exception) -> bool:
        """Handle an error of the thread's work. Return True if the thread should retry the work later: the
        leader's log is damaged, or the disk is full and no log of the directory is fenced (a fenced log
        refuses all appends). After all other errors, except for StoreClosedError, the directory goes offline.
        """
        if isinstance(error, StoreClosedError):
            return False
        if isinstance(error, CorruptRecordError):  # The damage is in the leader's log.
            self._warn(str(error))
            return True
        if isinstance(error, OSError) and error.errno in NO_ROOM and not self._fenced:
            self._warn(str(error))
            return True
        self._home.failed(self.broker, error)
        return False

    def _warn(self, text: str) -> None:
        """Log a warning, unless the same text was logged less than SILENCE seconds ago."""
        now = time.monotonic()
        self._warned = {said: at for said, at in self._warned.items() if now - at < SILENCE}
        if text not in self._warned:
            self._warned[text] = now
            log.warning("%r: %s", self, text)

    def checkpoint(self) -> None:
        """Write the checkpoint files that have changed, among them the high watermarks (R36)."""
        if self.error is None:
            self.writer.partitions.checkpoint()

    def beat(self) -> None:
        """Check that the directory is still at its path, and report to the controller that it is. Raises
        StorageError, OSError.
        """
        if self.error is None:
            self.check()
            self._home.heartbeat(self.broker)


def open_directory(
    place: VoterDirectory, settings: StoreConfig, files: Files, clock: Clock, file_mode: int | None
) -> StoreWriter:
    """Open a directory for writing, and return its writer. Raises StoreLockedError, StorageError, OSError."""
    context = open_context(place.path, settings, clock, files, file_mode)
    writer = StoreWriter(context, settings, replicated=True)
    # If a writer's owner was garbage-collected, another open in this thread takes the writer's lock. So the
    # context is the owner until there is a store.
    writer.owner = lambda: context
    return writer


def _raise(error: Exception) -> NoReturn:
    raise copy_of(error)  # The error is raised in two threads, so each needs its own copy.


def claim(place: VoterDirectory, files: Files) -> None:
    """If the directory is new, write its `meta.properties`, which makes the directory a part of this store.
    Raises OSError.
    """
    if place.new:
        write_properties(files, place.path, place.properties)
