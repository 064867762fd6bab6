"""A real Apache Kafka cluster (KRaft) on the loopback address: a controller and brokers, each a
process of its own, which can be killed and paused.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafka.protocol.admin.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from kafka_broker import CLUSTER, free_port
from kafka_metadata import Observer
from kafka_tools import classpath
from kafka_wire import Address, Connection
from waiting import PATIENCE, until

from segstore.replication.core.registration import PartitionRegistration
from segstore.replication.metadata.image import PartitionKey

PREFERRED = 0
"""Kafka: ElectionType."""
SMALL = ("-Xmx384m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
PROPERTIES = """\
process.roles={role}
node.id={node}
listeners={listener}://127.0.0.1:{port}
log.dirs={logs}
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
broker.session.timeout.ms=9000
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms=4000
replica.fetch.backoff.ms=100
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
log.cleaner.backoff.ms=200
log.retention.ms=-1
auto.leader.rebalance.enable=false
num.network.threads=1
num.io.threads=2
"""


class Node:
    """A controller or a broker, in a directory of its own."""

    def __init__(self, node: int, role: str, directory: Path, controller_port: int = 0) -> None:
        self.node, self.directory, self.logs = node, directory, directory / "logs"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._properties, self._log = directory / "server.properties", directory / "out.log"
        directory.mkdir(parents=True)
        self._properties.write_text(
            PROPERTIES.format(
                role=role,
                node=node,
                listener=role.upper() if role == "controller" else "PLAINTEXT",
                port=self.port,
                controller=controller_port or self.port,
                logs=self.logs,
            )
        )
        self._format = self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c")

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self._log, "ab") as out:
            command = ["java", *SMALL, "-cp", classpath(), *arguments, str(self._properties)]
            return subprocess.Popen(command, stdout=out, stderr=out)

    @property
    def address(self) -> Address:
        return "127.0.0.1", self.port

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; it is not awaited."""
        assert self._format.wait(PATIENCE) == 0, self._log.read_text()[-4000:]
        if not self.runs:
            self._process = self._java("kafka.Kafka")

    def await_up(self) -> None:
        """Wait until it listens."""

        def listens() -> bool:
            assert self.runs, self._log.read_text()[-4000:]
            with suppress(OSError), socket.create_connection(self.address, 1):
                return True
            return False

        until(listens)

    def signal(self, number: int) -> None:
        """Send a signal: SIGSTOP pauses the process, SIGCONT lets it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Let the process stop cleanly."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(PATIENCE)

    def end(self) -> None:
        """End all processes of the node."""
        self._format.kill()
        self._format.wait()
        self.kill()

    def partition_directory(self, topic: str) -> Path:
        return self.logs / f"{topic}-0"

    def copy_of(self, topic: str, to: Path) -> Path:
        """Return a copy of a partition, which may be written meanwhile."""
        return Path(shutil.copytree(self.partition_directory(topic), to))


class Cluster:
    """A controller, 1, and a broker, `broker`, 3. Others may join."""

    def __init__(self, directory: Path) -> None:
        self.cluster_id = CLUSTER
        self.controller = Node(1, "controller", directory / "controller")
        self.broker = Node(3, "broker", directory / "broker", self.controller.port)
        self._observer: Observer | None = None

    def start(self) -> None:
        self.controller.start()
        self.broker.start()
        self.controller.await_up()
        self._observer = Observer(self.controller.address, self.cluster_id)
        self.await_broker()
        # Made later, it might be placed on a broker of ours, which coordinates no transactions.
        self.create_topic("__transaction_state", [self.broker.node], {"cleanup.policy": "compact"})

    def await_broker(self) -> None:
        """Start the broker where it does not run, and wait until it may lead."""
        with suppress(ProcessLookupError, AssertionError):
            self.broker.signal(signal.SIGCONT)
        self.broker.start()
        self.broker.await_up()
        until(lambda: self.is_active(self.broker.node))

    def is_active(self, broker: int) -> bool:
        """Return whether a broker is unfenced."""
        found = self._look().image.brokers.get(broker)
        return found is not None and found.active

    def _look(self) -> Observer:
        assert self._observer is not None
        until(self._observer.poll)
        return self._observer

    def partition(self, topic: str) -> PartitionRegistration | None:
        """Return the state of a topic's partition 0, as the controller has committed it."""
        return self._look().image.partitions.get(PartitionKey(topic, 0))

    def create_topic(self, topic: str, replicas: Sequence[int], config: Mapping[str, str]) -> None:
        """Create a topic of one partition, whose preferred leader is the first of `replicas`."""
        wanted = CreateTopicsRequest.CreatableTopic
        request = CreateTopicsRequest(
            version=7,
            timeout_ms=30_000,
            validate_only=False,
            topics=[
                wanted(
                    name=topic,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[
                        wanted.CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
                    ],
                    configs=[
                        wanted.CreatableTopicConfig(name=name, value=value) for name, value in config.items()
                    ],
                )
            ],
        )
        (created,) = self._ask(request, CreateTopicsResponse).topics
        assert created.error_code == 0, created

    def prefer(self, topic: str, replicas: Sequence[int]) -> None:
        """Let the first of `replicas`, which are those of the partition in another order, be preferred, and
        elect it.
        """
        wanted = AlterPartitionReassignmentsRequest.ReassignableTopic
        partition = wanted.ReassignablePartition(partition_index=0, replicas=list(replicas))
        order = AlterPartitionReassignmentsRequest(
            version=0, timeout_ms=30_000, topics=[wanted(name=topic, partitions=[partition])]
        )
        answer = self._ask(order, AlterPartitionReassignmentsResponse)
        assert answer.error_code == 0, answer
        assert answer.responses[0].partitions[0].error_code == 0, answer
        election = ElectLeadersRequest(
            version=2,
            election_type=PREFERRED,
            topic_partitions=[ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[0])],
            timeout_ms=30_000,
        )
        answer = self._ask(election, ElectLeadersResponse)
        assert answer.error_code == 0, answer
        assert answer.replica_election_results[0].partition_result[0].error_code == 0, answer

    def _ask(self, request: Any, answer: Any) -> Any:
        to = Connection(self.controller.address, 30)
        try:
            return to.call(request, answer)
        finally:
            to.close()

    def end(self) -> None:
        """End all processes."""
        if self._observer is not None:
            self._observer.close()
        for node in (self.broker, self.controller):
            with suppress(OSError):
                node.end()
