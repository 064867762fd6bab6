"""A partition with two replicas: one of a real Kafka broker, one of ours. Both roles, and what must be equal
when all is over.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from kafka_cluster import Cluster
from kafka_member_process import MemberProcess
from kafka_tools import judge
from replicated_stores import epochs_of, log_bytes
from waiting import until

import segstore
from segstore.replication.core.registration import PartitionRegistration


class Pair:
    """Broker 3 of `cluster` and our broker `node`; each test has a topic and a node of its own."""

    def __init__(self, cluster: Cluster, node: int, directory: Path) -> None:
        self.cluster, self.node, self.kafka = cluster, node, cluster.broker.node
        self.topic, self.root, self._base = f"t{node}", directory / f"member-{node}", directory
        self._member: MemberProcess | None = None

    def begin(self) -> None:
        self.cluster.await_broker()
        self.join()

    def join(self) -> None:
        """Start our broker, and wait until it may lead."""
        address = self.cluster.controller.address
        peers = {self.kafka: self.cluster.broker.address}
        self._member = MemberProcess(self.node, self.root, self.cluster.cluster_id, address, peers)
        self.ask("start")

    @property
    def member(self) -> MemberProcess:
        assert self._member is not None
        return self._member

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of our broker."""
        return self.member.ask(name, *args, **kwargs)

    def end(self) -> None:
        if self._member is not None:
            self._member.kill()
        with suppress(ProcessLookupError):
            self.cluster.broker.signal(signal.SIGCONT)

    # --- the partition ----------------------------------------------------------------------------

    def create(self, leader: int, **config: str) -> None:
        """Create the topic, led by `leader`; settings have underscores for dots. Wait until both are in
        sync.
        """
        other = {self.node: self.kafka, self.kafka: self.node}[leader]
        settings = {name.replace("_", "."): value for name, value in config.items()}
        self.cluster.create_topic(self.topic, [leader, other], settings)
        self.await_leader(leader)
        self.await_in_sync()

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

    def produce(self, values: Iterable[bytes], acks: str = "all", codec: str = "none", **more: Any) -> None:
        """Have a client of Kafka's produce to broker 3, which leads."""
        host, port = self.cluster.broker.address
        told: list[Any] = []
        settings = {"bootstrap.servers": f"{host}:{port}", "acks": acks, "compression.type": codec, **more}
        settings["log.connection.close"] = (
            False  # it looks for metadata at our broker, which serves no clients
        )
        producer = Producer(settings)
        for value in values:
            producer.produce(self.topic, value, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(120) == 0
        assert not any(told), told

    # --- when all is over -------------------------------------------------------------------------

    def judge(self) -> list[dict[str, object]]:
        """Wait until both replicas are in sync and have the same; stop ours, and assert that their bytes and
        leader epochs are equal, that Kafka's dump tool reads both alike, and that `check` finds nothing.
        Return the batches.
        """
        self.await_in_sync()
        theirs, ours = self.cluster.broker.partition_directory(self.topic), self.root / f"{self.topic}-0"
        until(lambda: log_bytes(theirs) == log_bytes(ours) and epochs_of(theirs) == epochs_of(ours))
        epochs = epochs_of(ours)
        self.member.stop()
        self._member = None
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


def values(name: str, count: int = 50, size: int = 100) -> Sequence[bytes]:
    """Return values that tell who wrote them, of about so many bytes, which can't be compressed well."""
    rng = random.Random(name)
    return [b"%s %d %s" % (name.encode(), n, rng.randbytes(size // 2).hex().encode()) for n in range(count)]
