"""`ReplicaManager`: the directories of a replicated store, the leaders of its partitions, and the messages
between replicas (Kafka: ReplicaManager, MetadataCache; rules R19, R32).

Nothing is on disk. Threads: any. The controller's changes are passed on to each directory's own thread.
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
"""The longest time in seconds between two checks of a wait for directories; a change of the
counter `news` causes a check at once."""


class ReplicaManager:
    """The replicas of this process. `redirect` is called with the key of a partition and the log of the
    partition's new leader. `changes_for` returns the `DirectoryChange`s of a directory for the given
    partitions.
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
        """The lock for changes of `leaders`, and of the log to which a partition's appends are sent."""
        self.news, self.counters = ChangeCounter(), Counters()
        self._when_led: dict[PartitionKey, deque[Callable[[], None]]] = {}
        self.controller: QuorumController | None = None
        self._beating: set[int] = set()  # directories whose heartbeat is queued at the controller
        self.voter_failed: Callable[[int, Exception], object] = lambda broker, error: None
        """Called with the id and the error of a directory that has failed, so that it no longer counts as a
        voter."""

    @property
    def online(self) -> list[DataDirectory]:
        """Return the directories without an error."""
        return [directory for directory in self.directories.values() if directory.error is None]

    def await_leaders(self, keys: Iterable[PartitionKey], timeout_ms: float) -> bool:
        """Wait until each partition has a leader that takes appends; return whether all have one."""
        missing = list(keys)

        def led() -> bool:
            missing[:] = [key for key in missing if self.leader(key) is None]
            return not missing

        return self.news.until(led, timeout_ms / 1000)

    def leader(self, key: PartitionKey) -> LocalReplica | None:
        """Return the leader of a partition, None without one."""
        found, state = self.leaders.get(key), self.partitions.get(key)
        # A former leader on a hanging disk may still be in `leaders`.
        if found is None or state is None or state.leader != found.broker:
            return None
        return found if isinstance(found.core.role, Leader) else None

    def in_sync(self, key: PartitionKey) -> frozenset[int]:
        """Return the ISR in the metadata, together with the ISR that the leader has proposed."""
        state, leader = self.partitions.get(key), self.leader(key)
        proposed = frozenset[int]() if leader is None else leader.in_sync
        return proposed if state is None else proposed.union(state.isr)

    def follower(self, key: PartitionKey, rack: str, offset: int) -> LocalReplica | None:
        """Return the follower in the directory with the id `rack`, None if consumers can't read `offset`
        there.
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
        """Wait until readers of each leader see all records committed before its leader epoch (R38). Leaders
        with too few in-sync followers are skipped.
        """

        def shown() -> bool:
            roles = [replica.core.role for replica in list(self.leaders.values())]
            return all(_shows_all(role) for role in roles if isinstance(role, Leader))

        self.news.until(shown, timeout_ms / 1000, 0.05)

    def on_each(
        self,
        work: Callable[[DataDirectory], None],
        needed: Callable[[DataDirectory], bool],
        seconds: float,
    ) -> bool:
        """Call `work` in the own thread of each directory for which `needed` is true. Wait for at most
        `seconds` until all calls are done, and return whether they are. Directories that fail, or for which
        `needed` becomes false, are not waited for.
        """
        done: set[int] = set()

        def run(directory: DataDirectory) -> None:
            work(directory)  # the thread handles an error of the disk
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
        """Wait until all directories have written the topic files in their inboxes. A directory whose disk
        hangs is waited for until its session ends.
        """
        # The writing of the files is queued already. So when a directory's thread has done this empty work,
        # it has written the files.
        self.on_each(lambda directory: None, self._is_active, seconds)

    def _is_active(self, directory: DataDirectory) -> bool:
        registration = self.brokers.get(directory.broker)
        return registration is not None and not registration.fenced

    def await_committed(self, key: PartitionKey, seconds: float) -> bool:
        """Wait until readers see all records that were committed before the leader's epoch (R38); return
        whether they do. If fewer replicas are online than min.insync.replicas, this does not wait.
        """

        def shown() -> bool:
            leader = self.leader(key)
            role = None if leader is None else leader.core.role
            return isinstance(role, Leader) and role.log.high_watermark >= role.epoch_start_offset

        def over() -> bool:
            leader, state = self.leader(key), self.partitions.get(key)
            role = None if leader is None else leader.core.role
            live = 0 if state is None else sum(self.find(b, key) is not None for b in state.replicas)
            return shown() or (isinstance(role, Leader) and live < role.min_isr)

        self.news.until(over, seconds, LOOK)
        return shown()

    # --- calls of replicas and directories (Links, DirectoryContext) ------------------------------

    def find(self, broker: int, key: PartitionKey) -> LocalReplica | None:
        """Return a partition's replica in a directory, None without one, or if the directory is offline."""
        directory = self.directories.get(broker)
        return None if directory is None or directory.error is not None else directory.replicas.get(key)

    def appended(self, leader: LocalReplica) -> None:
        """Have the followers fetch; without followers in sync, have the leader's directory call
        `settle_alone`.
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
        """Have a follower fetch, if its leader can answer."""
        # A leader that has not taken its role yet would refuse the fetch. When it takes the role, it calls
        # `leads`, which has its followers fetch.
        own, leader = replica.core.role, self.find(replica.leader_id, replica.key)
        role = None if leader is None else leader.core.role
        if (
            role is None
            or own is None
            or (isinstance(role, Leader) and role.leader_epoch >= own.leader_epoch)
        ):
            self._ask(replica.broker, replica.key)

    def leads(self, replica: LocalReplica) -> None:
        """Send appends and reads to a new leader, and have its followers fetch."""
        with self.redirecting:
            state = self.partitions.get(replica.key)
            # If this thread is late, another leader may have been elected since.
            if state is None or state.leader != replica.broker:
                return
            self.leaders[replica.key] = replica
            self._redirect(replica.key, replica.partition)
        self.counters.leads(replica.key)
        self._is_led(replica.key)
        # The fetches are queued after the directory's other elections, so that after the loss of a directory
        # with thousands of leaders all partitions get leaders before followers fetch. An append makes the
        # followers of its partition fetch at once.
        self.directories[replica.broker].post(partial(self._begin, replica))
        self.news.increment()

    def _begin(self, leader: LocalReplica) -> None:
        """Have the followers of a new leader fetch, and queue the write of its leader epoch file."""
        self._ask_followers(leader)
        self.directories[leader.broker].post(leader.replica.save_epochs)

    def read(self, broker: int, read: LeaderRead) -> None:
        """Have the reading thread of a directory call `read`."""
        self.directories[broker].read(read)

    def resume(self, replica: LocalReplica, work: Callable[[], bool | None]) -> None:
        """Have the thread of the replica's directory call `work`, and then continue to fetch."""
        directory = self.directories[replica.broker]
        directory.post(partial(directory.resume, replica, work))

    def opens(self, leader: LocalReplica) -> None:
        """Have the thread of the leader's directory open the native tails."""
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
        """Elect new leaders for the partitions that a failed directory led, and log their number."""
        led = [key for key, partition in core.partitions.items() if partition.leader == broker]
        decision = Decision(effects=core.fail(broker))
        if not decision.effects:  # another thread has reported the same failure
            return decision
        without = sum(core.partitions[key].leader == NO_LEADER for key in led)
        level = logging.ERROR if without else logging.WARNING
        message = "directory %d led %d partitions: %d have another leader now, %d have none"
        log.log(level, message, broker, len(led), len(led) - without, without)
        return decision

    def when_led(self, key: PartitionKey, work: Callable[[], None]) -> None:
        """Call `work` as soon as the partition has a leader, perhaps at once."""
        self._when_led.setdefault(key, deque()).append(work)
        # `leads` sets the leader, and then does the queued work. So if a leader begins after this check,
        # `leads` finds `work` in the queue.
        if self.leader(key) is not None:
            self._is_led(key)

    def _is_led(self, key: PartitionKey) -> None:
        """Call the work that waits for a leader of this partition."""
        # The empty queue stays in the mapping: another thread may be about to add work to this object.
        waiting = self._when_led.get(key, deque())
        with suppress(IndexError):  # another thread may empty the queue
            while waiting:
                waiting.popleft()()

    def heartbeat(self, broker: int) -> None:
        """Send a directory's heartbeat to the controller, unless one is queued already."""
        # Only one heartbeat is in flight, as in Kafka's BrokerLifecycleManager, so that heartbeats don't pile
        # up while the controller waits for a majority of voters.
        registration, controller = self.brokers.get(broker), self.controller
        if registration is None or controller is None or broker in self._beating:
            return
        read = controller.image.next_offset - 1
        beat = BrokerHeartbeat(broker, registration.epoch, read)

        def beaten(core: Controller, now: int) -> Decision:
            # `_beating` is cleared before this decision is durable, so that the next heartbeat can be queued,
            # and keeps the session alive, while the decision is written.
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
        """Pass the controller's answer to the leader."""
        # The error of a stopped controller is not passed to the leader, because the leader would send the
        # proposal again for ever.
        stopped = self.controller is None or self.controller.error is not None
        if stopped or isinstance(error, StoreClosedError):
            return
        if isinstance(error, SegstoreError):
            reply = AlterPartitionReply(type(error))
        else:
            reply = next(answer for answer in answers if isinstance(answer, AlterPartitionReply))
        self.counters.answered(reply)
        # After this error the broker registers again, and gets new metadata, so the proposal is dropped.
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
        """Pass durable changes on to the directories concerned. `topics` are all topics, `configured` the
        names of topics with changed settings, `reshaped` the names of topics whose files in the inboxes
        change.
        """
        if reshaped:
            # The files are queued before the new leaders are set. A process that sees a leader may stage
            # records at once, and reads the files for that.
            for directory in self.online:
                directory.post(partial(directory.write_topic_files, topics, reshaped))
        changed = {
            key: state
            for key, state in published.partitions.items()
            if isinstance(key, PartitionKey) and key.topic in topics  # else the topic was deleted since
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
            if broker is not None and broker.active:  # its followers may now join ISRs
                directory.post(directory.ask_all)
            keys = [key for key in changed if _concerns(directory.broker, changed[key], before[key])]
            if keys:
                directory.post(partial(directory.apply, self.changes_for(directory.broker, keys)))

    def _fence(self, key: PartitionKey, state: PartitionRegistration) -> None:
        """Refuse appends to the former leaders, whose disks may hang, so that waiting applications go to the
        new leader.
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
        """Have directories delete the topics that were deleted from the store while these directories were
        offline.
        """
        for directory in self.online:
            self.remove_unknown_in(directory, topics)

    def remove_unknown_in(self, directory: DataDirectory, topics: Mapping[str, TopicInfo]) -> None:
        """Have one directory delete the topics that are not in `topics`."""
        for info in list(directory.writer.topics.values()):
            known = topics.get(info.name)
            if info.name != CLUSTER_METADATA and (known is None or known.topic_id != info.topic_id):
                directory.post(partial(directory.delete, info.name, info.topic_id))

    def on_time(self) -> None:
        """Have each leader check its followers for lag; to be called every replica.lag.time.max.ms / 2."""
        for replica in list(self.leaders.values()):
            directory = self.directories[replica.broker]
            # Followers of a leader on a hanging disk are skipped: they lag because they can't read that disk.
            if directory.error is None and not directory.hangs:
                replica.on_time()


def _shows_all(leader: Leader) -> bool:
    committed = leader.log.high_watermark >= leader.epoch_start_offset
    return committed or len(leader.isr.isr) < leader.min_isr


def _concerns(broker: int, now: PartitionRegistration, before: PartitionRegistration | None) -> bool:
    return broker in now.replicas or (before is not None and broker in before.replicas)
