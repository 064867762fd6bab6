"""`ReplicatedWriter`: the writer of a replicated store, which writes to all of its directories.
(`StoreWriter` is the writer of a single directory.)

On disk are the directories' files and the metadata log. Threads: any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

from segstore.errors import (
    IllegalStateError,
    NotLeaderOrFollowerError,
    ReplicaOfflineError,
    RequestTimedOutError,
    SegstoreError,
    StorageError,
    first_of,
)
from segstore.mutex import Mutex
from segstore.replication.change_counter import ChangeCounter
from segstore.replication.kept_records import KeptRecords
from segstore.replication.metadata.image import PartitionKey
from segstore.storage.meta.topics import TopicInfo, find_topic

if TYPE_CHECKING:
    from segstore.config import StoreConfig
    from segstore.files import Files
    from segstore.replication.data_directory import DataDirectory
    from segstore.replication.local_replica import LocalReplica
    from segstore.replication.metadata.metadata_log import MetadataLog
    from segstore.replication.quorum_controller import QuorumController
    from segstore.replication.replica_manager import ReplicaManager
    from segstore.replication.topic_admin import ReplicatedTopicAdmin
    from segstore.storage.context import StoreContext
    from segstore.storage.finding import Repaired
    from segstore.storage.log.partition import Partition
    from segstore.storage.log.recovery import Recovered
    from segstore.storage.meta.root_checkpoints import TopicPartitionKey
    from segstore.storage.meta.tailed_ends import TailedEnds
    from segstore.storage.store.store_member import StoreMember
    from segstore.storage.store.sweeper import Swept
    from segstore.storage.store.upgrader import Upgraded
    from segstore.storage.store.writer import StoreWriter
    from segstore.storage.store.writing_side import Adopting

T = TypeVar("T")

ENDING = 10.0
"""The longest time in seconds that `close` waits for the end of the directories' threads: a disk may hang."""


class _Partitions:
    """Methods that `Store` calls for all partitions together."""

    def __init__(self, manager: ReplicaManager) -> None:
        self._manager = manager

    def flush(self) -> None:
        """Make the records of all replicas durable, and write the checkpoints. If a directory fails, the
        other directories are flushed, and then the first error is raised.
        """
        errors: list[Exception] = []
        before = self._in_sync()
        for directory in self._manager.online:
            try:
                directory.writer.partitions.flush()
            except (SegstoreError, OSError) as error:
                errors.append(error)
        # A replica may have joined the ISR after the flush of its own directory, and before the flush of its
        # leader's directory. In this case the leader may have durable records that the replica got after its
        # own flush. So the replica is flushed again.
        for replica in self._joined(before):
            try:
                replica.partition.flush()
            except (SegstoreError, OSError) as error:
                errors.append(error)
        if errors:
            raise first_of(errors)

    def _in_sync(self) -> dict[PartitionKey, frozenset[int]]:
        return {key: self._manager.in_sync(key) for key in list(self._manager.partitions)}

    def _joined(self, before: Mapping[PartitionKey, frozenset[int]]) -> list[LocalReplica]:
        """Return the replicas that are in an ISR now and are not in `before`, the ISRs at an earlier time."""
        came = [
            (broker, key) for key, now in self._in_sync().items() for broker in now - before.get(key, now)
        ]
        return [replica for broker, key in came if (replica := self._manager.find(broker, key)) is not None]

    def checkpoint(self) -> None:
        """Write the checkpoints of all directories. Raises OSError."""
        for directory in self._manager.online:
            directory.writer.partitions.checkpoint()


class _Sweeper:
    """Retention and compaction of all replicas. Each replica is cleaned independently of the other replicas
    (R33, R34).
    """

    def __init__(self, directories: Callable[[], list[DataDirectory]]) -> None:
        self._directories = directories

    def sweep(self) -> tuple[Swept, ...]:
        """Apply retention and compaction in all directories. Return the results of all replicas."""
        return tuple(swept for directory in self._directories() for swept in directory.writer.sweeper.sweep())

    def upgrade(self, keys: Sequence[TopicPartitionKey]) -> tuple[Upgraded, ...]:
        """Upgrade old message formats in all replicas of these partitions. Return the results."""
        done: list[Upgraded] = []
        for directory in self._directories():
            topics = directory.writer.topics
            mine = [key for key in keys if key[0] in topics and key[1] in topics[key[0]].partition_ids]
            done += directory.writer.sweeper.upgrade(mine)
        return tuple(done)


class _NoInbox:
    """A placeholder for the inbox, through which other processes append staged records. The placeholder
    refuses all appends, and is in use until `coordinator.inboxes` serves the inboxes.
    """

    def adopt(self, id_: str, files: object, /) -> NoReturn:
        """Raise IllegalStateError."""
        raise IllegalStateError(f"{id_!r}: no inbox is served while the store is being opened")


class ControlPlane(NamedTuple):
    """The objects of a store that decide changes of the metadata, write the changes, and apply them."""

    manager: ReplicaManager
    topic_admin: ReplicatedTopicAdmin
    controller: QuorumController
    metadata_log: MetadataLog


class StoreDirectories(NamedTuple):
    """The directories of a store. `paths` has the paths of the data directories. If the store has a witness,
    its path is the last one. `data_directories` is the number of data directories. `witness` is None if the
    store has no witness, or its witness is offline.
    """

    cluster_id: str
    paths: Sequence[str]
    data_directories: int
    witness: StoreWriter | None


class ReplicatedWriter:
    """The `WritingSide` of a replicated store."""

    def __init__(
        self, context: StoreContext, config: StoreConfig, plane: ControlPlane, directories: StoreDirectories
    ) -> None:
        self.context, self.config = context, config
        self.manager, self.topic_admin, self.controller, self.metadata_log = plane
        self.cluster_id, paths, self.data_directories, self.witness = directories
        self.paths, manager, controller = list(paths), self.manager, self.controller
        self.partitions = _Partitions(manager)
        self.sweeper = _Sweeper(lambda: manager.online)
        self.inbox: Adopting = _NoInbox()
        self.directory_began: Callable[[DataDirectory], object] = lambda directory: None
        """A function that is called with the new directory after a failed directory was replaced."""
        self.kept = KeptRecords(controller, manager)
        self.owner: Callable[[], object] | None = None
        self.address = ""
        """The address of the last `announce` call, "" if there was no call."""
        self._nudges, self._closing, self.closed = ChangeCounter(), Mutex(), False
        self.replacing = Mutex()
        """A lock that is held while a directory is replaced. `close` waits for this lock."""

    @property
    def directories(self) -> tuple[str, ...]:
        """Return the paths of all data directories, by ascending id. Directories that are offline are
        included.
        """
        return tuple(self.paths[: self.data_directories])

    def announce(self, address: str) -> None:
        """Write the store's address into the lock file of each online directory."""
        self.address = address
        for directory in self.manager.online:
            directory.announce(address)

    @property
    def staging_path(self) -> str:
        """Return the path of the first directory that is online and does not hang. Raises
        ReplicaOfflineError if there is none.
        """
        for directory in self.manager.online:
            if not directory.hangs:
                return directory.path
        raise ReplicaOfflineError(f"no directory of {', '.join(self.paths)} works")

    # --- topics and partitions -------------------------------------------------------------------

    @property
    def role(self) -> str:
        """Return "writer", because a replicated store has one writing process."""
        return "writer"

    @property
    def host_pid(self) -> int:
        """Return the pid of this process."""
        return self.context.pid

    def members(self) -> list[StoreMember]:
        """Return no members, because a replicated store is not shared between writing processes."""
        return []

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics by name."""
        return self.topic_admin.topics

    @property
    def recovered(self) -> list[Recovered]:
        """Return the results of the recoveries of all replicas, ordered by directory."""
        return [done for d in self.manager.directories.values() for done in d.writer.recovered]

    @property
    def mended(self) -> list[Repaired]:
        """Return the small files that were found damaged and repaired, ordered by directory."""
        return [done for writer in self._writers() for done in writer.context.mended]

    def partition(self, topic: str, partition: int) -> Partition:
        """Return the leader's log of a partition. Raises UnknownTopicOrPartitionError, and
        NotLeaderOrFollowerError if the partition has no leader.
        """
        find_topic(self.topics, topic, partition)
        return self._leader(topic, partition).partition

    def _leader(self, topic: str, partition: int) -> LocalReplica:
        key = PartitionKey(topic, partition)
        leader = self.manager.leaders.get(key)
        if leader is None:
            raise NotLeaderOrFollowerError(f"{key}: no replica leads: {self.manager.partitions.get(key)}")
        return leader

    def opened(self) -> list[tuple[str, int]]:
        """Return the partitions that have a leader."""
        return [(key.topic, key.partition) for key in list(self.manager.leaders)]

    def unstable(self) -> list[tuple[str, int]]:
        """Return the partitions in which a transaction is open."""
        leaders = list(self.manager.leaders.items())
        return [
            (key.topic, key.partition)
            for key, leader in leaders
            if leader.partition.visible.written.stable_offset < leader.replica.log_end_offset
        ]

    def cleaned_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset below which the leader's log was compacted, None if it never was compacted."""
        writer = self.manager.directories[self._leader(topic, partition).broker].writer
        return writer.cleaned_offset(topic, partition)

    def of_leaders(
        self, read: Callable[[Files, str], Mapping[tuple[str, int], T]]
    ) -> dict[tuple[str, int], T]:
        """Call `read` with the files and the path of each directory. `read` returns a value for each
        partition. For each partition with a leader, return the value in the leader's directory. Directories
        whose disks hang are skipped, so that metrics stay available.
        """
        found: dict[tuple[str, int], T] = {}
        leaders = list(self.manager.leaders.items())
        for directory in self.manager.online:
            keys = [key for key, leader in leaders if leader.broker == directory.broker]
            values = (
                read(directory.writer.context.files, directory.path) if keys and not directory.hangs else {}
            )
            found |= {(key.topic, key.partition): values[key] for key in keys if key in values}
        return found

    def forget_cleaned(self, topic: str, partition: int) -> None:
        """Forget the offset below which the log was compacted, in all replicas of a partition. The next
        compaction then begins at the start of the log.
        """
        key = PartitionKey(topic, partition)
        for directory in self.manager.online:
            if key in directory.replicas:
                directory.writer.forget_cleaned(topic, partition)

    # --- all replicas ----------------------------------------------------------------------------

    def sync(self, partitions: Iterable[tuple[str, int]], timeout_ms: float = 30_000.0) -> None:
        """Make the records of the in-sync replicas of these partitions durable, on all disks in parallel. If
        a replica is removed from the ISR during the sync, it is not waited for. If a replica joins the ISR,
        it is synced, too. Raises RequestTimedOutError.
        """
        manager, keys = self.manager, [PartitionKey(*each) for each in partitions]
        over, synced = time.monotonic() + timeout_ms / 1000, set[object]()

        def replicas(directory: DataDirectory) -> list[LocalReplica]:
            synced_here = [key for key in keys if directory.broker in manager.in_sync(key)]
            found = [manager.find(directory.broker, key) for key in synced_here]
            return [replica for replica in found if replica is not None and replica not in synced]

        def flush(directory: DataDirectory) -> None:
            for replica in replicas(directory):
                replica.partition.flush()
                synced.add(replica)

        while any(replicas(directory) for directory in manager.online):
            if not manager.on_each(flush, lambda it: bool(replicas(it)), over - time.monotonic()):
                raise RequestTimedOutError(
                    f"not all in-sync replicas of {keys} were synced in {timeout_ms:g} ms"
                )

    # --- waiting -------------------------------------------------------------------------------

    @property
    def publications(self) -> int:
        return self.manager.news.number

    @property
    def news(self) -> int:
        """Return a number that changes whenever a topic is created or deleted or `nudge` is called."""
        return self._nudges.number + self.topic_admin.changes

    def wait(self, seen: int, seconds: float) -> None:
        """Sleep until `publications` differs from `seen`, for at most `seconds`."""
        self.manager.news.wait(seen, seconds)

    def tail(self, keys: list[int]) -> TailedEnds | None:
        """Return None: readers in this process call `wait`, and need no `TailedEnds`."""
        return None

    def wait_for(self, tailed: TailedEnds, nudges: int, seconds: float) -> int:
        """Never called, because `tail` returns None."""
        raise AssertionError("nothing is tailed")

    def nudge(self) -> None:
        """Change `news`, and wake the threads in `wait`."""
        self._nudges.increment()
        self.manager.news.increment()

    def wake(self) -> None:
        """Wake the threads in `wait`."""
        self.nudge()

    # --- closing ---------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Stop the threads without a clean close. The next open recovers the directories."""
        self.controller.stop(0)
        for directory in self.manager.directories.values():
            directory.stop(0)
            directory.writer.abandon()
        self.context.scheduler.close()

    def let_go(self) -> None:
        """Release the locks of the directories. Called after all threads have ended, perhaps more than
        once.
        """
        self.context.closed = True
        for writer in self._writers():
            writer.let_go()
        self.context.scheduler.close()
        self.closed = True

    def _writers(self) -> list[StoreWriter]:
        found = [directory.writer for directory in self.manager.directories.values()]
        return found if self.witness is None else [*found, self.witness]

    def close(self) -> None:
        """Close all directories cleanly, and release their locks. If directories can't be closed cleanly, the
        first error is raised after all locks were released, and the next open recovers these directories.
        """
        with self._closing:
            if self.closed:
                return
            try:
                with self.replacing:
                    self._close_cleanly()
            except BaseException:
                # All threads must stop before the locks are released, even after Ctrl-C.
                self._end_threads()
                self.metadata_log.close()
                raise
            finally:
                self.let_go()

    def _close_cleanly(self) -> None:
        stopped, errors = self._end_threads(), list[Exception]()
        for directory in self.manager.directories.values():
            for replica in list(directory.replicas.values()):
                replica.go_offline()  # `go_offline` answers the appends that wait for acknowledgements.
        self.metadata_log.close()
        self.wake()
        for broker, directory in self.manager.directories.items():
            registration = self.manager.brokers.get(broker)
            if directory.error is None and stopped[broker] and registration is not None:
                self._close_one(directory.writer, registration.epoch, errors)
        if self.witness is not None:
            self._close_one(self.witness, 0, errors)
        if errors:
            raise first_of(errors)

    def _end_threads(self) -> dict[int, bool]:
        """Stop all threads. Return a dict: for each directory id, whether the directory's threads have
        stopped in time. May be called more than once.
        """
        self.context.closed = True
        self.context.scheduler.close()
        self.controller.stop(ENDING)
        deadline = time.monotonic() + ENDING
        return {
            broker: directory.stop(max(deadline - time.monotonic(), 0.0))
            for broker, directory in self.manager.directories.items()
        }

    @staticmethod
    def _close_one(writer: StoreWriter, broker_epoch: int, errors: list[Exception]) -> None:
        try:
            writer.close(broker_epoch=broker_epoch) if broker_epoch > 0 else writer.close()
        except (SegstoreError, OSError) as error:
            errors.append(
                error if isinstance(error, SegstoreError) else StorageError(error.errno, str(error))
            )
