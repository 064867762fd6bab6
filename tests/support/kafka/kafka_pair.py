"""A partition with two replicas: one of a real Kafka broker, one of ours. Both roles, and what must be equal
when all is over.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import repeat
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from fault_proxy import Proxy
from kafka_cluster import Cluster
from kafka_member_process import MemberProcess
from kafka_tools import judge
from kafka_wire import Address
from replica_logs import read
from replicated_stores import epochs_of, log_bytes
from waiting import until

import segstore
from segstore.replication.core.registration import PartitionRegistration


class Network:
    """The links of our broker, each through a proxy that can cut it: from us to broker 3, from broker 3 to
    us, and from us to the controller. A context manager.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.to_kafka, self.to_us = Proxy(cluster.broker.port), Proxy()
        self.to_controller = Proxy(cluster.controller.port)
        self._open = ExitStack()

    def __enter__(self) -> Network:
        for proxy in (self.to_kafka, self.to_us, self.to_controller):
            self._open.enter_context(proxy)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _of(proxy: Proxy) -> Address:
    return "127.0.0.1", proxy.port


class Pair:
    """Broker 3 of `cluster` and our broker `node`; each test has a topic and a node of its own. With a
    `network` all that they say to each other, and we to the controller, goes over that.
    """

    def __init__(self, cluster: Cluster, node: int, directory: Path, network: Network | None = None) -> None:
        self._network = network
        self.cluster, self.node, self.kafka = cluster, node, cluster.broker.node
        self.topic, self.root, self._base = f"t{node}", directory / f"member-{node}", directory
        self._member: MemberProcess | None = None

    def begin(self) -> None:
        self.cluster.await_broker()
        self.join()

    def join(self) -> None:
        """Start our broker, and wait until it may lead."""
        controller, kafka, told = self.cluster.controller.address, self.cluster.broker.address, None
        if (network := self._network) is not None:
            controller, kafka, told = map(_of, (network.to_controller, network.to_kafka, network.to_us))
        peers = {self.kafka: kafka}
        self._member = MemberProcess(self.node, self.root, self.cluster.cluster_id, controller, peers, told)
        if network is not None:
            network.to_us.target = self.ask("listens_at")[1]
        self.ask("start")

    @property
    def network(self) -> Network:
        assert self._network is not None
        return self._network

    @property
    def member(self) -> MemberProcess:
        assert self._member is not None
        return self._member

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of our broker."""
        return self.member.ask(name, *args, **kwargs)

    def end(self) -> None:
        if self._member is not None:
            self._member.kill()  # where it was not stopped
        with suppress(ProcessLookupError):
            self.cluster.broker.signal(signal.SIGCONT)

    # --- the partition ----------------------------------------------------------------------------

    def create(self, leader: int, *, in_sync: bool = True, **config: str) -> None:
        """Create the topic, led by `leader`; settings have underscores for dots. Wait until the follower
        has fetched, unless `in_sync` is false.
        """
        other = {self.node: self.kafka, self.kafka: self.node}[leader]
        settings = {name.replace("_", "."): value for name, value in config.items()}
        self.cluster.create_topic(self.topic, [leader, other], settings)
        self.await_leader(leader)
        if in_sync and leader == self.kafka:
            self.await_follows()

    def elect(self, leader: int) -> None:
        """Let a member of the ISR lead."""
        other = {self.node: self.kafka, self.kafka: self.node}[leader]
        self.cluster.prefer(self.topic, [leader, other])
        self.await_leader(leader)

    @property
    def state(self) -> PartitionRegistration:
        """Return the state of the partition in the controller."""
        found = self.cluster.partition(self.topic)
        assert found is not None
        return found

    def await_leader(self, leader: int) -> None:
        """Wait until the controller has elected `leader`, and our broker knows."""
        until(lambda: self.state.leader == leader)
        if leader == self.node:
            until(lambda: self.ask("state", self.topic)[0] == "leader")

    def await_in_sync(self) -> None:
        """Wait until both are in the ISR."""
        until(lambda: {*self.state.isr} == {self.node, self.kafka})

    def await_follows(self) -> None:
        """Wait until our replica follows in the leader epoch that the controller has."""
        epoch = self.state.leader_epoch
        until(lambda: self.ask("state", self.topic)[:2] == ("follower", epoch))

    def produce(
        self,
        values: Iterable[bytes],
        acks: str = "all",
        codec: str = "none",
        keys: Iterable[bytes | None] = repeat(None),
    ) -> None:
        """Have a client of Kafka's produce to broker 3, which leads."""
        told: list[Any] = []
        producer = Producer(self._client(**{"acks": acks, "compression.type": codec}))
        for value, key in zip(values, keys, strict=False):
            producer.produce(self.topic, value, key, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(120) == 0
        assert not any(told), told

    def _client(self, **settings: Any) -> dict[str, Any]:
        """Return settings of a client. It looks for metadata at our broker, too, which closes the
        connection.
        """
        host, port = self.cluster.broker.address
        return {"bootstrap.servers": f"{host}:{port}", "log.connection.close": False, **settings}

    def transact(self, values: Iterable[bytes], commit: bool) -> None:
        """Have a client of Kafka's write a transaction to broker 3, which leads."""
        producer = Producer(self._client(**{"transactional.id": self.topic}))
        producer.init_transactions(120)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.topic, value)
        assert producer.flush(120) == 0  # an abort would drop what was not sent
        producer.commit_transaction(120) if commit else producer.abort_transaction(120)

    def consumed(self, count: int) -> list[bytes]:
        """Return the first records that a client of Kafka's reads from broker 3, which leads: the committed
        ones.
        """
        # Without commits no group is looked for, and Kafka makes no topic for groups.
        settings = {"group.id": self.topic, "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer(self._client(**settings))
        found: list[bytes] = []
        try:
            consumer.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
            until(
                lambda: found.extend(m.value() for m in consumer.consume(count, 0.1)) or len(found) >= count
            )
        finally:
            consumer.close()
        return found

    def delete_records(self, before_offset: int) -> None:
        """Delete the begin of the log, which broker 3 leads."""
        admin = AdminClient(self._client())
        (deleted,) = admin.delete_records([TopicPartition(self.topic, 0, before_offset)]).values()
        deleted.result(120)

    def await_compacted(self) -> None:
        """Wait until broker 3 has compacted its log up to the active segment."""
        path = self.cluster.broker.logs / "cleaner-offset-checkpoint"

        def compacted() -> bool:
            lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
            cleaned = max((int(line[2]) for line in lines if line[0] == self.topic), default=0)
            logs = self.cluster.broker.partition_directory(self.topic).glob("*.log")
            return 0 < cleaned == max(int(log.stem) for log in logs)

        until(compacted)

    def stored(self, isolation_level: str = "read_uncommitted") -> list[bytes | None]:
        """Return the values that our directory shows; our broker has stopped."""
        with segstore.open(self.root, mode="r") as store:
            return [record.value for record in read(store.partition(self.topic), isolation_level)]

    # --- what happens to brokers ------------------------------------------------------------------

    def kill_kafka(self) -> None:
        """Kill broker 3, and wait until its session is over."""
        self.cluster.broker.kill()
        until(lambda: not self.cluster.is_active(self.kafka))

    def kill_ours(self) -> None:
        """Kill our broker, and wait until its session is over."""
        self.member.kill()
        until(lambda: not self.cluster.is_active(self.node))

    def await_alone(self, broker: int) -> None:
        """Wait until a broker is alone in the ISR."""
        until(lambda: self.state.isr == (broker,))

    # --- when all is over -------------------------------------------------------------------------

    def judge(self) -> list[dict[str, object]]:
        """Wait until both replicas are in sync and have the same; stop ours, and assert that their bytes and
        leader epochs are equal, that Kafka's dump tool reads both alike, and that `check` finds nothing.
        Return the batches.
        """
        self.await_in_sync()
        theirs, ours = self.cluster.broker.partition_directory(self.topic), self.root / f"{self.topic}-0"
        until(lambda: _equal(theirs, ours))
        epochs = epochs_of(ours)
        self.member.stop()
        copy = self.cluster.broker.copy_of(self.topic, self._base / "theirs")
        assert log_bytes(copy) == log_bytes(ours)
        assert epochs_of(ours) == epochs
        for hint in (*copy.glob("*.index"), *copy.glob("*.timeindex")):
            hint.unlink()  # those of a running broker are preallocated, and written when it rolls a segment
        dump = judge(copy, ours)
        assert dump.errors == []
        assert dump.records(copy) == dump.records(ours)
        assert dump.batches(copy) != []
        assert [str(finding) for finding in segstore.check(self.root)] == []
        return dump.batches(ours)


def _equal(theirs: Path, ours: Path) -> bool:
    try:
        return log_bytes(theirs) == log_bytes(ours) and epochs_of(theirs) == epochs_of(ours)
    except FileNotFoundError:  # a broker renames segments that it removes
        return False


def values(name: str, count: int = 50, size: int = 100) -> Sequence[bytes]:
    """Return values that tell who wrote them, of about so many bytes, which can't be compressed well."""
    rng = random.Random(name)
    return [b"%s %d %s" % (name.encode(), n, rng.randbytes(size // 2).hex().encode()) for n in range(count)]
