"""A broker in a real Kafka cluster around our replicas: the core, the engine, and a data directory's threads.
The rest of what a broker is, is here, as far as replicas need it: registration, heartbeats, metadata, and
fetches in both directions. Clients are not served.

Threads: those of the data directory; one for the controller, one that observes the metadata, one that has
the replicas fetch, and one for each connection of another broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from kafka_fetching import RemoteLeader, Server
from kafka_metadata import Observer
from kafka_wire import Address, Connection, alter_partition, heartbeat, register
from producers import send
from waiting import until

from segstore import names
from segstore.config import StoreConfig
from segstore.errors import NotEnoughReplicasError
from segstore.files import Files
from segstore.replication.core.leader import Leader
from segstore.replication.core.messages import AlterPartition
from segstore.replication.core.registration import BrokerRegistration, PartitionRegistration
from segstore.replication.data_directory import DataDirectory, DirectoryChange, open_directory
from segstore.replication.local_replica import LocalReplica
from segstore.replication.metadata.image import PartitionKey
from segstore.replication.metadata.properties import MetaProperties, read_properties
from segstore.replication.metadata.voters import VoterDirectory
from segstore.replication.replica_fetch import LeaderRead
from segstore.replication.settings import ReplicationConfig
from segstore.storage.context import wall_clock
from segstore.storage.log.acks import Acks
from segstore.storage.log.append import append_columns
from segstore.storage.log.transaction_markers import end_transaction
from segstore.storage.meta.topics import new_topic
from segstore.storage.store.store import Store

CONFIG: Mapping[str, Any] = {
    "broker.heartbeat.interval.ms": 250,
    "log.cleaner.backoff.ms": 86_400_000,  # what is compared byte by byte must not be compacted here
    "replica.fetch.backoff.ms": 50,
    "replica.high.watermark.checkpoint.interval.ms": 500,
    "replica.lag.time.max.ms": 4000,
}
PAUSE = 0.02  # seconds between two fetches
TIMED_OUT, DOUBLE_REGISTRATION = 7, 101


class Member:
    """Broker `node`, with a directory that is new or holds what an earlier member has left.

    `peers` are the other brokers' addresses; `told` is the address at which these are told to find this one,
    by default that of its server. It is a `Home` of its data directory.
    """

    def __init__(
        self,
        node: int,
        root: Path,
        cluster_id: str,
        controller: Address,
        peers: Mapping[int, Address],
        told: Address | None = None,
    ) -> None:
        self.node, self._cluster_id, self._controller_at = node, cluster_id, controller
        self._settings = StoreConfig.parse(CONFIG)
        self._replication = ReplicationConfig.of(self._settings)
        place = _place(node, root, cluster_id)
        self._directory_id = place.properties.directory_id
        self._writer = open_directory(place, self._settings, Files(), wall_clock, None)
        self._previous_epoch = self._writer.clean_epoch
        self.store = Store(self._writer.context, self._writer)
        self.brokers: dict[int, BrokerRegistration] = {}
        self.directory = DataDirectory(node, self._writer, self.brokers, self, self._replication)
        self.partitions: dict[PartitionKey, PartitionRegistration] = {}
        self._observer = Observer(controller, cluster_id, node)
        self._controller, self._asked = Connection(controller), SimpleQueue[Callable[[], object] | None]()
        self._peers = {broker: RemoteLeader(node, broker, address) for broker, address in peers.items()}
        self.server = Server(self)
        self._told = told or self.server.address
        self.epoch = -1
        self.error: BaseException | None = None
        """Why a thread has ended, or the directory went offline."""
        self.reachable = True
        """Whether the controller can be reached."""
        self.fetches = True
        """Whether replicas here fetch."""
        self._may_stop, self._leaving, self._over = False, False, False
        self._threads: list[threading.Thread] = []

    # --- begin and end ----------------------------------------------------------------------------

    def start(self) -> None:
        """Register with the features that the cluster has, and wait until this broker may lead."""
        until(lambda: self._observer.poll(100))
        until(self._registered)
        self.directory.start()
        for work in (self._talk, self._observe, self._turn, self.server.run):
            thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
            thread.start()
            self._threads.append(thread)
        until(lambda: self.error or (self.node in self.brokers and self.brokers[self.node].active))
        assert self.error is None, self.error

    def _registered(self) -> bool:
        features = {name: (0, level) for name, level in self._observer.image.features.items()}
        features["metadata.version"] = (7, features["metadata.version"][1])
        error, self.epoch = register(
            self._controller,
            self.node,
            self._cluster_id,
            names.new_topic_id(),
            self._told,
            features,
            self._directory_id,
            self._previous_epoch,
        )
        assert error in (0, DOUBLE_REGISTRATION), error  # the session of an earlier one may not be over
        if error:
            time.sleep(0.2)
        return not error

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.error = error
            raise

    def close(self) -> None:
        """Stop as a broker does that is told to: leaderships move first."""
        self._leaving = True
        until(lambda: self.error or self._may_stop)
        self._over = True
        self._asked.put(None)
        self.server.close()
        for thread in self._threads:
            thread.join(60)
        self.directory.stop(60)
        for replica in self.directory.replicas.values():
            replica.go_offline()
        self._writer.close(broker_epoch=self.epoch)
        assert self.error is None, self.error

    # --- the controller ---------------------------------------------------------------------------

    def _talk(self) -> None:
        while (work := self._asked.get()) is not None:
            while not self._over:
                with suppress(OSError):
                    if self.reachable:
                        work()
                        break
                time.sleep(0.1)

    def heartbeat(self, broker: int) -> None:
        """See `Home`."""
        if self._asked.empty():
            self._asked.put(self._beat)

    def _beat(self) -> None:
        offset = self._observer.image.next_offset - 1
        answer = heartbeat(self._controller, self.node, self.epoch, offset, self._leaving)
        if answer.error == TIMED_OUT:  # a controller that is late: the next heartbeat asks again
            return
        assert answer.error == 0, answer
        self._may_stop = self._may_stop or answer.may_shut_down

    def send(self, sender: LocalReplica, message: AlterPartition) -> None:
        """See `Links`."""
        self._asked.put(partial(self._propose, sender, message))

    def _propose(self, sender: LocalReplica, message: AlterPartition) -> None:
        topic = self._observer.image.topics[sender.key.topic].topic_id
        reply = alter_partition(self._controller, self.epoch, topic, sender.key.partition, message)
        sender.on_alter_reply(message, reply)

    # --- the metadata -----------------------------------------------------------------------------

    def _observe(self) -> None:
        """Tell the directory what has changed, from this broker's own registration on (R27)."""
        while not self._over:
            if not self.reachable:
                time.sleep(PAUSE)
                continue
            with suppress(OSError):
                self._observer.poll(100)
            if self._observer.image.next_offset > self.epoch:
                self._publish()

    def _publish(self) -> None:
        image = self._observer.image
        for broker, registration in image.brokers.items():
            self.brokers[broker] = registration
        changed = {k: state for k, state in image.partitions.items() if self.partitions.get(k) != state}
        self.partitions.update(changed)
        concerned = [key for key, state in changed.items() if self.node in state.replicas]
        if concerned:
            self.directory.post(partial(self.directory.apply, [self._change(key) for key in concerned]))

    def _change(self, key: PartitionKey) -> DirectoryChange:
        image = self._observer.image
        topic = image.topics[key.topic]
        here = (
            k.partition
            for k, s in image.partitions.items()
            if k.topic == key.topic and self.node in s.replicas
        )
        made = new_topic(key.topic, 1, topic.config)
        info = replace(made, topic_id=topic.topic_id, partition_ids=tuple(sorted(here)))
        config = self._replication.replica_config(info)
        return DirectoryChange(info, config, ((key.partition, image.partitions[key]),))

    # --- replicas (Links) -------------------------------------------------------------------------

    def find(self, broker: int, key: PartitionKey) -> Any:
        """See `Links`: another broker stands for its replica."""
        peer = self._peers.get(broker)
        topic = self._observer.image.topics.get(key.topic)
        return peer.of(key, topic.topic_id) if self.fetches and peer and topic else None

    def replica(self, topic_id: str, partition: int) -> LocalReplica | None:
        """Return the replica here of a partition that another broker asks for."""
        name = self._observer.image.topic_name(topic_id)
        return None if name is None else self.directory.replicas.get(PartitionKey(name, partition))

    def replica_named(self, topic: str, partition: int) -> LocalReplica | None:
        """Return the replica here of a partition, by its topic's name."""
        return self.directory.replicas.get(PartitionKey(topic, partition))

    def appended(self, leader: LocalReplica) -> None:
        """See `Links`; followers ask by themselves."""
        self.directory.post(leader.settle)

    def shown(self, replica: LocalReplica) -> None:
        """See `Links`."""

    def follows(self, replica: LocalReplica) -> None:
        """See `Links`; `_turn` has it fetch."""

    def leads(self, replica: LocalReplica) -> None:
        """See `Links`."""

    def read(self, broker: int, read: LeaderRead) -> None:
        """See `Links`."""
        self.directory.read(read)

    def resume(self, replica: LocalReplica, work: Callable[[], None]) -> None:
        """See `Links`."""
        self.directory.post(partial(self.directory.resume, replica, work))

    def opens(self, leader: LocalReplica) -> None:
        """See `Links`; followers elsewhere have no tails here."""

    def failed(self, broker: int, error: Exception) -> None:
        """See `Links`."""
        self.error = error
        self.directory.go_offline(error)

    def when_led(self, key: PartitionKey, work: Callable[[], None]) -> None:
        """See `Home`."""
        work()

    def _turn(self) -> None:
        """Have replicas fetch, and leaders look for followers that lag."""
        lag = self._replication.lag_time_max_ms / 2000
        due = time.monotonic() + lag
        while not self._over:
            if self.fetches:
                self.directory.ask_all()
            if time.monotonic() >= due:
                due += lag
                for replica in list(self.directory.replicas.values()):
                    replica.on_time()
            time.sleep(PAUSE)

    # --- what tests ask ---------------------------------------------------------------------------

    def listens_at(self) -> Address:
        """Return the server's address."""
        return self.server.address

    def state(self, topic: str) -> tuple[str, int, int, int]:
        """Return role ("leader", "follower" or ""), leader epoch, log end offset and high watermark."""
        assert self.error is None, self.error
        found = self.directory.replicas.get(PartitionKey(topic, 0))
        if found is None or (role := found.core.role) is None:
            return "", -1, -1, -1
        name = "leader" if isinstance(role, Leader) else "follower"
        return name, role.leader_epoch, found.replica.log_end_offset, found.replica.high_watermark

    def append(self, topic: str, values: list[bytes], compression: str = "none", acks: int = -1) -> int:
        """Append to a log that is led here, as soon as enough replicas are in sync; return the first
        offset.
        """
        partition = self.store.partition(topic).partition_for_write()
        wanted = Acks(acks, 60_000)

        def appended() -> range | None:
            try:
                return append_columns(partition, values, None, None, None, compression, 4096, acks=wanted)
            except NotEnoughReplicasError:  # nothing is written
                return None

        return until(appended).start

    def transact(self, topic: str, producer_id: int, sequence: int, count: int, commit: bool) -> None:
        """Append a transaction to a log that is led here."""
        log = self.store.partition(topic)
        send(log, producer_id, sequence, count, txn=True)
        end_transaction([log], producer_id, 0, 0, commit)

    def delete_records(self, topic: str, before_offset: int) -> None:
        """Delete the begin of a log that is led here."""
        self.store.partition(topic).delete_records(before_offset)

    def hold(self, *, fetches: bool = True, serves: bool = True, reachable: bool = True) -> None:
        """Let replicas here fetch or not; let other brokers get records from here or not; let the controller
        be reachable or not. Fetches and answers that were begun have ended when this returns.
        """
        self.fetches, self.server.serves, self.reachable = fetches, serves, reachable
        passed = threading.Event()
        # A fetch that is under way may read in the other thread, and comes back to this one.
        self.directory.post(lambda: self.directory.read(lambda: self.directory.post(passed.set)))
        assert passed.wait(60)
        self.server.settle()


def _place(node: int, root: Path, cluster_id: str) -> VoterDirectory:
    known = read_properties(Files(), str(root)) if root.exists() else None
    made = known or MetaProperties(cluster_id, node, names.new_topic_id())
    return VoterDirectory(node, str(root), made, known is None)
