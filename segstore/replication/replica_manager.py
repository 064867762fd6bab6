"""`ReplicaManager`: the directories of a replicated store, the leaders of its partitions, and the messages
between replicas (Kafka: ReplicaManager, MetadataCache; rules R19, R32).

Nothing is on disk. Threads: any. The controller's changes are queued for the directories' own threads, which
apply them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from segstore.errors import SegstoreError, StaleBrokerEpochError, StoreClosedError
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.replication.change_counter import ChangeCounter
from segstore.replication.core.cluster import BrokerHeartbeat
from segstore.replication.core.controller import Controller
from segstore.replication.core.leader import Leader
from segstore.replication.core.messages import AlterPartition, AlterPartitionReply
from segstore.replication.core.registration import NO_LEADER, BrokerRegistration, PartitionRegistration
from segstore.replication.counters import Counters
from segstore.replication.data_directory import DataDirectory, DirectoryChange
from segstore.replication.local_replica import LocalReplica
from segstore.replication.metadata.image import PartitionKey
from segstore.replication.quorum_controller import Decision, Published, QuorumController
from segstore.replication.replica_fetch import LeaderRead
from segstore.storage.meta.topic_info import CLUSTER_METADATA

if TYPE_CHECKING:
    from segstore.storage.log.partition import Partition
    from segstore.storage.meta.topic_info import TopicInfo

log = Logger("segstore")

LOOK = 0.05
"""Interval in seconds at which a thread that waits for directories checks whether the wait is over. A change
of the counter `news` causes a check at once.
"""


class ReplicaManager:
    """The replicas of this process. `redirect` is called with the key of a partition and the log of the
    partition's new leader. `changes_for` gets the id of a directory and the keys of changed partitions, and
    returns the `DirectoryChange`s for this directory.
    """

    def __init__(
        self,
        redirect: Callable[[PartitionKey, Partition], None],
        changes_for: Callable[[int, Iterable[PartitionKey]], list[DirectoryChange]],
    ) -> None:
        self._redirect, self.changes_for = redirect, changes_for
        self.directories: dict[int, DataDirectory] = {}
        self.brokers: dict[int, BrokerRegistration] = {}
        self.partitions: dict[PartitionKey, PartitionRegistration] = {}
        self.leaders: dict[PartitionKey, LocalReplica] = {}
        self.redirecting = Mutex()
        """The lock for changes of `leaders`, and for the choice of the log that a partition's appends go
        to.
        """
        self.news, self.counters = ChangeCounter(), Counters()
        self._when_led: dict[PartitionKey, deque[Callable[[], None]]] = {}
        self.controller: QuorumController | None = None
        # ids of the directories whose heartbeats are queued at the controller
        self._beating: set[int] = set()
        self.voter_failed: Callable[[int, Exception], object] = lambda broker, error: None
        """Removes a failed directory from the voters. Called with the id of the directory, and its error."""

    @property
    def online(self) -> list[DataDirectory]:
        """Return the directories that are not offline."""
        return [directory for directory in self.directories.values() if directory.error is None]

    def await_leaders(self, keys: Iterable[PartitionKey], timeout_ms: float) -> bool:
        """Wait until each partition has a leader that takes appends. Return whether each partition has
        one.
        """
        missing = list(keys)

        def led() -> bool:
            missing[:] = [key for key in missing if self.leader(key) is None]
            return not missing

        return self.news.until(led, timeout_ms / 1000)

    def leader(self, key: PartitionKey) -> LocalReplica | None:
        """Return the leader of a partition, None if it has none."""
        found, state = self.leaders.get(key), self.partitions.get(key)
        # A former leader may still be in `leaders` if its disk hangs.
        if found is None or state is None or state.leader != found.broker:
            return None
        return found if isinstance(found.core.role, Leader) else None

    def in_sync(self, key: PartitionKey) -> frozenset[int]:
        """Return the ids of the replicas that are in the ISR of the metadata, or in the ISR that the leader
        knows or proposes.
        """
        state, leader = self.partitions.get(key), self.leader(key)
        proposed = frozenset[int]() if leader is None else leader.in_sync
        return proposed if state is None else proposed.union(state.isr)

    def follower(self, key: PartitionKey, rack: str, offset: int) -> LocalReplica | None:
        """Return the follower in the directory with the id `rack`, None if consumers can't read `offset` from
        this follower.
        """
        leader = self.leader(key)
        role = None if leader is None else leader.core.role
        if leader is not None and isinstance(role, Leader):
            leader.hear()
            for broker in role.can_serve(offset):
                if str(broker) == rack:
                    return self.find(broker, key)
        return None

    def await_shown(self, timeout_ms: float) -> None:
        """Wait until readers of each leader can read all records that were committed before its leader epoch
        began (R38). Leaders whose ISR is smaller than min.insync.replicas are skipped.
        """

        def shown() -> bool:
            return all(_shows_committed(leader) for leader in list(self.leaders.values()))

        self.news.until(shown, timeout_ms / 1000, 0.05)

    def on_each(
        self,
        work: Callable[[DataDirectory], None],
        needed: Callable[[DataDirectory], bool],
        seconds: float,
    ) -> bool:
        """Call `work` with each directory for which `needed` returns True, in the directory's own thread.
        Wait for the end of all calls for at most `seconds`, and return whether all have ended. If a directory
        fails, or if `needed` returns False for it, its call is not waited for any more.
        """
        done: set[int] = set()

        def run(directory: DataDirectory) -> None:
            work(directory)  # The directory's thread handles an error of the disk.
            done.add(directory.broker)
            self.news.increment()

        asked = [directory for directory in self.online if needed(directory)]
        for directory in asked:
            directory.post(partial(run, directory))
        return self.news.until(
            lambda: all(d.broker in done or d.error is not None or not needed(d) for d in asked),
            seconds,
            LOOK,
        )

    def await_topic_files(self, seconds: float) -> None:
        """Wait until all directories have written the topic files in their inboxes. If the disk of a
        directory hangs, the wait for this directory ends with its session.
        """
        # Each directory's thread has the write of the files in its queue already. So when the thread calls
        # this empty function, it has written the files.
        self.on_each(lambda directory: None, self._is_active, seconds)

    def _is_active(self, directory: DataDirectory) -> bool:
        registration = self.brokers.get(directory.broker)
        return registration is not None and not registration.fenced

    def await_committed(self, key: PartitionKey, seconds: float) -> bool:
        """Wait until readers can read all records that were committed before the leader epoch began (R38).
        Return whether they can. If fewer replicas than min.insync.replicas are online, return at once.
        """

        def shown() -> bool:
            leader = self.leader(key)
            return leader is not None and leader.shows_committed()

        def over() -> bool:
            leader, state = self.leader(key), self.partitions.get(key)
            role = None if leader is None else leader.core.role
            live = 0 if state is None else sum(self.find(b, key) is not None for b in state.replicas)
            return shown() or (isinstance(role, Leader) and live < role.min_isr)

        self.news.until(over, seconds, LOOK)
        return shown()

    # --- calls of replicas and directories (Links, DirectoryContext) ------------------------------

    def find(self, broker: int, key: PartitionKey) -> LocalReplica | None:
        """Return a partition's replica in a directory. Return None if the directory has no replica of it, or
        is offline.
        """
        directory = self.directories.get(broker)
        return None if directory is None or directory.error is not None else directory.replicas.get(key)

    def appended(self, leader: LocalReplica) -> None:
        """Ask the followers to fetch. If no follower is in sync, ask the leader's directory to call
        `settle_alone`, too.
        """
        role = leader.core.role
        self._ask_followers(leader)
        alone = not isinstance(role, Leader) or len(role.isr.maximal) == 1
        if alone and (directory := self.directories.get(leader.broker)) is not None:
            directory.post(leader.settle_alone)

    def _ask_followers(self, leader: LocalReplica) -> None:
        if isinstance(role := leader.core.role, Leader):
            for broker in role.remotes:
                self._ask(broker, leader.key)

    def _ask(self, broker: int, key: PartitionKey) -> None:
        replica = self.find(broker, key)
        if replica is not None:
            self.directories[broker].ask(replica)

    def shown(self, replica: LocalReplica) -> None:
        """Notify readers that the high watermark of a leader has moved."""
        self.news.increment()

    def follows(self, replica: LocalReplica) -> None:
        """Ask a follower to fetch, if its leader can answer the fetch."""
        # If the replica that was elected has not become leader yet, it would refuse the fetch, so no fetch is
        # queued. When it becomes leader, it calls `leads`, which asks its followers to fetch.
        own, leader = replica.core.role, self.find(replica.leader_id, replica.key)
        role = None if leader is None else leader.core.role
        if (
            role is None
            or own is None
            or (isinstance(role, Leader) and role.leader_epoch >= own.leader_epoch)
        ):
            self._ask(replica.broker, replica.key)

    def leads(self, replica: LocalReplica) -> None:
        """Direct appends and reads to a new leader, and ask its followers to fetch."""
        with self.redirecting:
            state = self.partitions.get(replica.key)
            # If this thread is late, another leader may have been elected already.
            if state is None or state.leader != replica.broker:
                return
            self.leaders[replica.key] = replica
            self._redirect(replica.key, replica.partition)
        self.counters.leads(replica.key)
        self._is_led(replica.key)
        # The fetches are queued after the other role changes in the directory's queue. So if a directory with
        # thousands of leaders is lost, all partitions have new leaders before the followers fetch. But if a
        # partition gets an append, its followers fetch at once.
        self.directories[replica.broker].post(partial(self._begin, replica))
        self.news.increment()

    def _begin(self, leader: LocalReplica) -> None:
        """Ask the followers of a new leader to fetch, and queue the write of the leader's
        `leader-epoch-checkpoint`.
        """
        self._ask_followers(leader)
        self.directories[leader.broker].post(leader.replica.save_epochs)

    def read(self, broker: int, read: LeaderRead) -> None:
        """Queue `read` for the reading thread of a directory, which calls it."""
        self.directories[broker].read(read)

    def resume(self, replica: LocalReplica, work: Callable[[], bool | None]) -> None:
        """Ask the thread of the replica's directory to call `work`, and to fetch again."""
        directory = self.directories[replica.broker]
        directory.post(partial(directory.resume, replica, work))

    def opens(self, leader: LocalReplica) -> None:
        """Ask the thread of the leader's directory to open the leader's native tail, through which one call
        of C code appends to all replicas.
        """
        self.directories[leader.broker].post(leader.open_by_threads)

    def failed(self, broker: int, error: Exception) -> None:
        """Take a directory offline after an error of its disk (R32)."""
        directory = self.directories[broker]
        if directory.error is not None:
            return
        log.error("%r goes offline: %s", directory, error)
        directory.go_offline(error)
        self.voter_failed(broker, error)
        if self.controller is not None:
            self.controller.post(partial(self._fail, broker))
        self.news.increment()

    @staticmethod
    def _fail(broker: int, core: Controller, _now: int) -> Decision:
        """Elect new leaders for the partitions whose leaders were in a failed directory, and log the number
        of these partitions.
        """
        led = [key for key, partition in core.partitions.items() if partition.leader == broker]
        decision = Decision(effects=core.fail(broker))
        if not decision.effects:  # Another thread has reported the failure of this directory before.
            return decision
        without = sum(core.partitions[key].leader == NO_LEADER for key in led)
        level = logging.ERROR if without else logging.WARNING
        message = "directory %d led %d partitions: %d have another leader now, %d have none"
        log.log(level, message, broker, len(led), len(led) - without, without)
        return decision

    def when_led(self, key: PartitionKey, work: Callable[[], None]) -> None:
        """Call `work` when the partition has a leader. If the partition has a leader already, call `work` at
        once.
        """
        self._when_led.setdefault(key, deque()).append(work)
        # `leads` sets the leader, and then calls the queued functions. So if there is no leader at this
        # check, `leads` will find `work` in the queue.
        if self.leader(key) is not None:
            self._is_led(key)

    def _is_led(self, key: PartitionKey) -> None:
        """Call the functions that wait for a leader of this partition."""
        # An empty queue is not removed from the dict, because another thread may be adding work to it.
        waiting = self._when_led.get(key, deque())
        with suppress(IndexError):  # Another thread may take the last function from the queue.
            while waiting:
                waiting.popleft()()

    def heartbeat(self, broker: int) -> None:
        """Queue a directory's heartbeat at the controller, unless a heartbeat of this directory is queued
        already.
        """
        # At most one heartbeat of a directory is queued, as in Kafka's BrokerLifecycleManager. If more were
        # queued, the queue would grow while the controller waits for a majority of voters.
        registration, controller = self.brokers.get(broker), self.controller
        if registration is None or controller is None or broker in self._beating:
            return
        read = controller.image.next_offset - 1
        beat = BrokerHeartbeat(broker, registration.epoch, read)

        def beaten(core: Controller, now: int) -> Decision:
            # The id is removed before this decision is durable. So the next heartbeat can be queued while the
            # decision is written, and the session does not expire.
            self._beating.discard(broker)
            return Decision(effects=core.heartbeat(beat, now))

        self._beating.add(broker)
        controller.post(beaten)

    def send(self, sender: LocalReplica, message: AlterPartition) -> None:
        """Send a leader's ISR proposal to the controller."""
        registration, controller = self.brokers.get(sender.broker), self.controller
        if registration is None or controller is None:
            return
        epoch, key = registration.epoch, sender.key

        def altered(core: Controller, now: int) -> Decision:
            return Decision(effects=core.alter_partition(key, message, epoch))

        controller.post(altered, partial(self._answered, sender, message))

    def _answered(
        self, sender: LocalReplica, sent: AlterPartition, answers: list[object], error: Exception | None
    ) -> None:
        """Pass the controller's answer to the leader that sent the ISR proposal."""
        # If the controller has stopped, its error is not passed to the leader: the leader would send the
        # proposal again and again.
        stopped = self.controller is None or self.controller.error is not None
        if stopped or isinstance(error, StoreClosedError):
            return
        if isinstance(error, SegstoreError):
            reply = AlterPartitionReply(type(error))
        else:
            reply = next(answer for answer in answers if isinstance(answer, AlterPartitionReply))
        self.counters.answered(reply)
        # After a StaleBrokerEpochError the broker registers again, and gets new metadata. So the leader does
        # not get this error.
        if not isinstance(error, StaleBrokerEpochError):
            sender.on_alter_reply(sent, reply)

    # --- the controller's thread -----------------------------------------------------------------

    def publish(
        self,
        published: Published,
        topics: Mapping[str, TopicInfo],
        configured: Collection[str],
        reshaped: Collection[str],
    ) -> None:
        """Queue durable changes for the directories that have replicas of the changed partitions. `topics`
        has all topics. `configured` has the names of topics with changed settings. `reshaped` has the names
        of topics whose files in the inboxes must change.
        """
        if reshaped:
            # The writes of the topic files are queued before the new leaders are set: a process may stage
            # records as soon as there is a leader, and before that it reads these files.
            for directory in self.online:
                directory.post(partial(directory.write_topic_files, topics, reshaped))
        changed = {
            key: state
            for key, state in published.partitions.items()
            # A topic that is not in `topics` was deleted after the change.
            if isinstance(key, PartitionKey) and key.topic in topics
        }
        others = {key: state for key, state in self.partitions.items() if key.topic in configured}
        changed = {**others, **changed}
        before = {key: self.partitions.get(key) for key in changed}
        self.partitions.update(changed)
        for key, state in changed.items():
            if (old := before[key]) is not None:
                self.counters.changed(key, old, state)
                if state.leader_epoch > old.leader_epoch:
                    self._fence(key, state)
            if state.leader < 0:
                self.leaders.pop(key, None)
        for directory in self.online:
            broker = published.brokers.get(directory.broker)
            if broker is not None and broker.active:  # The directory's followers may join ISRs now.
                directory.post(directory.ask_all)
            keys = [key for key in changed if _concerns(directory.broker, changed[key], before[key])]
            if keys:
                directory.post(partial(directory.apply, self.changes_for(directory.broker, keys)))

    def _fence(self, key: PartitionKey, state: PartitionRegistration) -> None:
        """Refuse appends to the former leaders. So if a former leader's disk hangs, the waiting applications
        append to the new leader.
        """
        for broker in self.directories:
            if broker != state.leader and (replica := self.find(broker, key)) is not None:
                replica.fence(state.leader_epoch)

    def forget(self, topic: str, topic_id: str) -> None:
        """Remove a deleted topic from memory, and from the directories."""
        for key in [key for key in self.partitions if key.topic == topic]:
            del self.partitions[key]
            self.leaders.pop(key, None)
            self._when_led.pop(key, None)
        for directory in self.online:
            directory.post(partial(directory.delete, topic, topic_id))

    def remove_unknown(self, topics: Mapping[str, TopicInfo]) -> None:
        """Ask the directories to delete the topics that were deleted from the store while a directory was
        offline.
        """
        for directory in self.online:
            self.remove_unknown_in(directory, topics)

    def remove_unknown_in(self, directory: DataDirectory, topics: Mapping[str, TopicInfo]) -> None:
        """Ask one directory to delete its topics that are not in `topics`."""
        for info in list(directory.writer.topics.values()):
            known = topics.get(info.name)
            if info.name != CLUSTER_METADATA and (known is None or known.topic_id != info.topic_id):
                directory.post(partial(directory.delete, info.name, info.topic_id))

    def on_time(self) -> None:
        """Call `on_time` of each leader, which checks whether its followers lag. Called every
        replica.lag.time.max.ms / 2.
        """
        for replica in list(self.leaders.values()):
            directory = self.directories[replica.broker]
            # A leader whose disk hangs is skipped: its followers lag only because that disk can't be read.
            if directory.error is None and not directory.hangs:
                replica.on_time()


def _shows_committed(leader: LocalReplica) -> bool:
    role = leader.core.role
    if not isinstance(role, Leader) or len(role.isr.isr) < role.min_isr:
        return True
    return leader.shows_committed()


def _concerns(broker: int, now: PartitionRegistration, before: PartitionRegistration | None) -> bool:
    return broker in now.replicas or (before is not None and broker in before.replicas)
