"""A data directory of a replicated store, which is one broker (Kafka: ReplicaManager, ReplicaFetcherThread,
BrokerLifecycleManager; rules R27, R32).

On disk is a Kafka log directory: the engine's, with `meta.properties`. Threads: three of its own. In the
first the directory's replicas change roles and fetch; in the second its logs are read for replicas in other
directories; the third is C's, and writes the batches that appends to leaders in other directories hand over.
So a disk that hangs holds up no other directory. Any thread may call `post`, `ask`, `read` and `go_offline`.
"""

from __future__ import annotations

import errno
import heapq
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol, TypeVar, cast

from segstore import names
from segstore.errors import (
    CorruptRecordError,
    ReplicaOfflineError,
    SegstoreError,
    StorageError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
    copy_of,
    is_refusal,
)
from segstore.files.reserve import NO_ROOM
from segstore.logger import Logger
from segstore.replication.core.registration import BrokerRegistration, PartitionRegistration
from segstore.replication.cpu_placement import Separation
from segstore.replication.local_replica import Links, LocalReplica, ReplicaHost
from segstore.replication.metadata.image import PartitionKey
from segstore.replication.metadata.properties import write_properties
from segstore.replication.metadata.voters import VoterDirectory
from segstore.replication.replica_fetch import LeaderRead
from segstore.storage.inbox.told_topics import tell_topics
from segstore.storage.segment.disk_thread import DiskThread
from segstore.storage.store.store import open_context
from segstore.storage.store.writer import StoreWriter
from segstore.threads import Background, Latch, take

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
"""Seconds between two looks of a caller that waits for the thread, whether the thread runs."""
ROUNDS = 8
"""Fetches of one partition in a row, before another partition has its turn."""
SILENCE = 60.0
"""Seconds in which the same warning is logged once: a follower without room tries with each append of its
leader."""
LAST_ROUND = 0.5
"""Seconds after which a follower fetches once more, to hear of the high watermark (Kafka:
replica.fetch.wait.max.ms)."""


class DirectoryChange(NamedTuple):
    """The metadata of one topic in one directory: its settings with the partitions that belong there, and the
    state of partitions that changed. `info` without partitions: the topic has none in this directory.
    """

    info: TopicInfo
    config: ReplicaConfig
    partitions: tuple[tuple[int, PartitionRegistration], ...]


class DirectoryContext(Links, Protocol):
    """The calls of a directory to its store."""

    def heartbeat(self, broker: int) -> None:
        """Report to the controller that the directory's thread runs, and that its disk answers."""

    def when_led(self, key: PartitionKey, work: Callable[[], None]) -> None:
        """Have `work` called once the replica leads that the metadata names; at once if it leads already."""


class DataDirectory:
    """One directory, open for writing; `broker` is its id. `error` has taken it offline, None while it is
    online.
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
        self._told = False  # whether all topics were published to stagers
        self._identity = self._look()
        self._thread, self._reading = Fetching(self, settings), ReadThread(broker)
        self._disk_thread = DiskThread()
        thread = None if settings.inline else self._disk_thread
        self._host = ReplicaHost(broker, brokers, home, settings.fetch_max_bytes, thread)
        self._warned: dict[str, float] = {}  # the latest warnings, with their times
        self._fenced = False  # whether a log takes no appends any more, since the disk has refused a call
        writer.context.on_background_error = self._met

    def __repr__(self) -> str:
        return f"<DataDirectory {self.broker} at {self.path}>"

    # --- any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._reading.start()

    def read(self, read: LeaderRead) -> None:
        """Have the reading thread call `read`, which raises nothing; see `Reads.read`."""
        self._reading.post(read)

    @property
    def hangs(self) -> bool:
        """Return whether the thread has done nothing for longer than between two heartbeats: its disk, or the
        machine, holds it up.
        """
        return time.monotonic() - self._thread.turned > 2 * self._settings.heartbeat_interval_ms / 1000

    def post(self, work: Callable[[], object]) -> None:
        """Have the directory's thread call `work`."""
        self._thread.post(work)

    def call(self, work: Callable[[], T]) -> T:
        """Have the directory's thread call `work`, and return its outcome. Raises the errors of `work`;
        ReplicaOfflineError if the thread can't call it any more, since the disk has failed or hangs.
        """
        told: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()

        def run() -> None:
            try:
                told.put((work(), None))
            except Exception as error:
                told.put((None, error))
                if isinstance(error, OSError):  # of the disk: the thread judges it
                    raise

        self._thread.post(run)
        while True:
            with suppress(Empty):
                found, error = take(told, LOOK)
                if error is not None:
                    raise copy_of(error)
                return cast(T, found)
            if self.error is not None or self._thread.ended:
                raise ReplicaOfflineError(f"{self!r} is offline: {self.error or 'the store is closed'}")

    def announce(self, address: str) -> None:
        """Have the directory's thread write the address of the store into its lock file. The address is a
        hint: if the disk refuses it, the directory stays online.
        """

        def tell() -> None:
            with suppress(OSError):
                self.writer.announce(address)

        self._thread.post(tell)

    def ask(self, replica: LocalReplica) -> None:
        """Have the directory's thread fetch for a replica."""
        if not replica.asked:
            try:
                replica.asked = True
                self._thread.post(replica)
            except BaseException:
                replica.asked = False  # else it would not be asked again; to be asked twice is no harm
                raise

    def ask_all(self) -> None:
        """Have the directory's thread fetch for all replicas."""
        for replica in list(self.replicas.values()):
            self.ask(replica)

    def go_offline(self, error: Exception) -> None:
        """Stop all replicas of the directory; nothing is written any more (R32)."""
        self.error = error
        for replica in list(self.replicas.values()):
            replica.go_offline()

    def _log_fenced(self, error: BaseException) -> None:
        """Have the directory taken offline after a log was fenced (R32; Kafka: LogDirFailureChannel). A sync
        in the background may have met the error, which an idle replica would not meet. The caller holds the
        log's locks, so the directory's thread does it.
        """
        if is_refusal(error):
            self._fenced = True
            self._thread.post(partial(_raise, error))

    def _met(self, error: Exception) -> None:
        """Have the directory's thread judge a disk error of background work. A missing file is damage, which
        `heal` mends.
        """
        if is_refusal(error) and error.errno != errno.ENOENT:
            self._thread.post(partial(_raise, error))

    def stop(self, seconds: float) -> bool:
        """End the threads, and wait for at most `seconds`; return whether they have ended."""
        reading = self._reading.stop(seconds)
        ended = self._thread.stop(seconds)
        return self._disk_thread.end(seconds if ended else 0) and ended and reading

    # --- the directory's thread ------------------------------------------------------------------

    def apply(self, changes: Iterable[DirectoryChange]) -> None:
        """Carry out changes of the metadata. Raises StorageError."""
        for change in changes:
            if self.error is not None:
                return
            with self.writer.context.reserve:  # decisions of a majority are carried out on a full disk too
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
                replica.configure(change.config)  # last: one that leads no more must not go by it
                self._thread.breathe()
        for key in leaving:
            self.replicas[key].go_offline()
            self._home.when_led(key, partial(self.post, partial(self._leave, key)))

    def tell_topics(self, topics: Mapping[str, TopicInfo], changed: Collection[str] | None) -> None:
        """Publish the topics `changed`, None for all, to stagers: see `told_topics`. If the disk has no room,
        the next call publishes all topics. Raises OSError.
        """
        if self.error is not None:
            return
        told, self._told = self._told, False
        seen = {name: info for name, info in topics.items() if not info.internal}
        with self.writer.context.reserve:
            tell_topics(self.writer.inbox.folder, seen, changed if told else None)
        self._told = True

    def _make(self, info: TopicInfo, leaving: Iterable[PartitionKey] = ()) -> None:
        """Let the topic have the partitions that are assigned here, and those that are still leaving."""
        ids = tuple(sorted({*info.partition_ids, *[key.partition for key in leaving]}))
        known = self.writer.topics.get(info.name)
        if not ids:
            self._delete(info.name, known)
        elif known is None or (known.partition_ids, known.settings) != (ids, info.settings):
            self.writer.topic_admin.make(replace(info, partition_ids=ids))

    def _leave(self, key: PartitionKey) -> None:
        """Remove a partition that was assigned elsewhere, unless it has come back, after another replica has
        begun to lead: until then its readers read here.
        """
        info, replica = self._assigned.get(key.topic), self.replicas.get(key)
        if info is not None and replica is not None and key.partition not in info.partition_ids:
            del self.replicas[key]
            self._make(info, [k for k in self.replicas if k.topic == key.topic])

    def _replica(self, key: PartitionKey, config: ReplicaConfig) -> LocalReplica:
        found = self.replicas.get(key)
        if found is None or found.core.role is None:  # it was to leave, and comes back
            partition = self.writer.partition(*key)
            partition.segments.on_fence = self._log_fenced
            found = self.replicas[key] = LocalReplica(
                key, partition, self.writer.partitions.replica(*key), config, self._host
            )
        return found

    def delete(self, topic: str, topic_id: str) -> None:
        """Delete a topic that is not in the metadata any more. Raises StorageError."""
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
        """Fetch for a replica until there are no more records, at most ROUNDS times. Return as
        `LocalReplica.step`.
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
        """Go on with a fetch whose records were read. Errors as `LocalReplica.step`."""
        if self.error is None and self.replicas.get(replica.key) is replica:
            self._thread.fetch(replica, lambda: None if work() is None else self.step(replica))

    def check(self) -> None:
        """Look whether the directory is still there (R32). Raises StorageError."""
        if self._look() != self._identity:
            raise StorageError(errno.ENOENT, "the data directory is not there any more", self.path)

    def _look(self) -> tuple[int, ...] | None:
        """Return the identity of the file `meta.properties`; None without one. Raises OSError."""
        files, path = self.writer.context.files, names.below(self.path, names.META_PROPERTIES)
        return files.identity(path) if files.exists(path) else None

    def on_error(self, error: Exception) -> bool:
        """Judge an error of the thread's work. Return True if it may pass, so that the work is tried again
        later; else the directory goes offline: also for want of room, if that has fenced a log.
        """
        if isinstance(error, StoreClosedError):
            return False
        if isinstance(error, CorruptRecordError):  # of the leader's log
            self._warn(str(error))
            return True
        if isinstance(error, OSError) and error.errno in NO_ROOM and not self._fenced:
            self._warn(str(error))
            return True
        self._home.failed(self.broker, error)
        return False

    def _warn(self, text: str) -> None:
        """Log a warning that each append of the leader may cause, once in SILENCE."""
        now = time.monotonic()
        self._warned = {said: at for said, at in self._warned.items() if now - at < SILENCE}
        if text not in self._warned:
            self._warned[text] = now
            log.warning("%r: %s", self, text)

    def checkpoint(self) -> None:
        """Write the high watermarks, and the other checkpoints, if these have changed (R36)."""
        if self.error is None:
            self.writer.partitions.checkpoint()

    def beat(self) -> None:
        """Look whether the directory is there, and send a heartbeat."""
        if self.error is None:
            self.check()
            self._home.heartbeat(self.broker)


def open_directory(
    place: VoterDirectory, settings: StoreConfig, files: Files, clock: Clock, file_mode: int | None
) -> StoreWriter:
    """Open a directory for writing. Raises StoreLockedError, StorageError, OSError."""
    context = open_context(place.path, settings, clock, files, file_mode)
    writer = StoreWriter(context, settings, replicated=True)
    # Until there is a store, so that nobody takes the lock of one that is being opened.
    writer.owner = lambda: context
    return writer


def _raise(error: Exception) -> NoReturn:
    raise copy_of(error)  # the directory's thread raises the error too


def claim(place: VoterDirectory, files: Files) -> None:
    """Write the `meta.properties` of a new directory, which is open: it is this store's from then on. Raises
    OSError.
    """
    if place.new:
        write_properties(files, place.path, place.properties)


class ReadThread:
    """The thread that reads a directory's logs for followers in other directories."""

    def __init__(self, broker: int) -> None:
        self._broker = broker
        self._asked: SimpleQueue[LeaderRead | None] = SimpleQueue()
        self._ended = Latch()
        self._apart = Separation()
        """Keeps this thread off the processor of the thread that writes the batches."""

    def start(self) -> None:
        """Start the thread."""
        Background(self._run, f"segstore-reader-{self._broker}").start()

    def post(self, read: LeaderRead) -> None:
        """Queue a read."""
        self._apart.told()
        self._asked.put(read)

    def stop(self, seconds: float) -> bool:
        """End the thread, and wait."""
        self._asked.put(None)
        return self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while (read := self._asked.get()) is not None:
                more = self._call(read)
                while more is not None and self._asked.empty():
                    more = self._call(more)
        finally:
            self._ended.open()

    def _call(self, read: LeaderRead) -> LeaderRead | None:
        if (more := read()) is not None:  # a follower catches up
            self._apart.keep()
        return more


class Fetching:
    """The thread in which a directory's replicas change roles and fetch."""

    def __init__(self, directory: DataDirectory, settings: ReplicationConfig) -> None:
        self._directory, self._settings = directory, settings
        self._asked: SimpleQueue[LocalReplica | Callable[[], object] | None] = SimpleQueue()
        self._later: list[tuple[float, int, LocalReplica]] = []
        self._count, self._over, self._ended = count(), False, Latch()
        self._once_more: dict[LocalReplica, None] = {}
        self._more_at = 0.0
        self._beats_at = self.turned = time.monotonic()
        self._checkpoint_at = self.turned + settings.checkpoint_interval_ms / 1000

    def start(self) -> None:
        """Start the thread."""
        Background(self._run, f"segstore-fetcher-{self._directory.broker}").start()

    @property
    def ended(self) -> bool:
        """Return whether the thread has ended."""
        return self._ended.is_open

    def post(self, work: LocalReplica | Callable[[], object]) -> None:
        """Queue work."""
        self._asked.put(work)

    def stop(self, seconds: float) -> bool:
        """End the thread, and wait."""
        self._over = True
        self._asked.put(None)
        return self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while not self._over:
                self._guarded(self._turn)
            self._last_round()
        finally:
            self._ended.open()

    def _guarded(self, work: Callable[[], object]) -> bool:
        """Return whether the work may be tried again later; see `DataDirectory.on_error`."""
        try:
            work()
        except (SegstoreError, OSError) as error:
            return self._directory.on_error(error)
        except Exception as error:
            log.exception("%r failed", self._directory)
            return self._directory.on_error(error)
        return True

    def _turn(self) -> None:
        """Do one piece of work, or wait for one. Due work goes first: the queue may never be empty."""
        self.turned = time.monotonic()
        pause = self._pause()
        if pause <= 0:
            self._due()
            return
        try:
            work = take(self._asked, pause)
        except Empty:
            return
        if isinstance(work, LocalReplica):
            self.fetch(work, partial(self._directory.step, work))
        elif work is not None:
            work()

    def _pause(self) -> float:
        at = min([self._beats_at, self._checkpoint_at, *[later[0] for later in self._later[:1]]])
        if self._once_more:
            at = min(at, self._more_at)
        return max(at - time.monotonic(), 0.0)

    def _due(self) -> None:
        """Do the due work: heartbeats, and fetches that could not be answered."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            self._directory.ask(heapq.heappop(self._later)[2])
        if self._once_more and self._more_at <= now:
            self._last_round()
        if self._beats_at <= now:
            self._beat(now)
        if self._checkpoint_at <= now:
            self._checkpoint_at = now + self._settings.checkpoint_interval_ms / 1000
            self._directory.checkpoint()

    def breathe(self) -> None:
        """Show, between two parts of work that takes long, that the thread runs: with thousands of partitions
        an election may take longer than a session.
        """
        self.turned = now = time.monotonic()
        if self._beats_at <= now and not self._over:
            self._beat(now)

    def _beat(self, now: float) -> None:
        self._beats_at = now + self._settings.heartbeat_interval_ms / 1000
        self._directory.beat()

    def _last_round(self) -> None:
        """Let followers that have all records hear of the high watermark."""
        again, self._once_more = self._once_more, {}
        for replica in again:
            self._guarded(partial(self._directory.step, replica))
            self._guarded(self.breathe)

    def fetch(self, replica: LocalReplica, step: Callable[[], bool | None]) -> None:
        """Fetch for a replica by `step`, in the directory's thread, and later again, as `step` returns. If
        the leader's log is damaged, the fetch is repeated, as in Kafka, and so the follower leaves the ISR.
        """
        more: bool | None = None
        try:
            more = step()
        except (SegstoreError, OSError) as error:
            if not self._directory.on_error(error):
                return
        if more is None:
            at = time.monotonic() + self._settings.fetch_backoff_ms / 1000
            heapq.heappush(self._later, (at, next(self._count), replica))
        elif more:
            self._directory.ask(replica)
        else:
            if not self._once_more:  # later ones don't put it off
                self._more_at = time.monotonic() + LAST_ROUND
            self._once_more[replica] = None
