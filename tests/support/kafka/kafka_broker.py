"""Runs a real Apache Kafka broker (KRaft, one node) on the loopback address, which may serve
segstore's files.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from waiting import PATIENCE, until

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Java's options for a broker that starts quickly and does not need to be fast."""

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
"""


def free_port() -> int:
    """Return a port on which nobody listens, and which the system does not hand out: the broker needs it
    seconds later.
    """
    lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(1024, lowest_given) if lowest_given > 2048 else 0
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])


class Broker:
    """A broker and its directory; `running` starts it, any number of times, with these options of Java;
    `process` is the one that was started last.

    `more` are lines of its properties file, besides PROPERTIES.
    """

    def __init__(
        self, classpath: str, directory: Path, options: Sequence[str] = SMALL, more: str = ""
    ) -> None:
        self.classpath, self.directory, self.options = classpath, directory, options
        self.logs = directory / "kafka"
        self.process: subprocess.Popen[bytes] | None = None
        self.port, controller = free_port(), free_port()
        self.properties = directory / "server.properties"
        directory.mkdir(parents=True, exist_ok=True)
        made = PROPERTIES.format(port=self.port, controller=controller, logs=self.logs)
        self.properties.write_text(made + more)
        self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self.properties))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _java(self, *arguments: str) -> None:
        done = subprocess.run(
            ["java", "-cp", self.classpath, *arguments], capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Start the broker, yield its address, and stop it cleanly."""
        log = self.directory / "broker.log"
        java = ["java", *self.options, "-cp", self.classpath, "kafka.Kafka", str(self.properties)]
        with open(log, "ab") as out:
            process = self.process = subprocess.Popen(java, stdout=out, stderr=out)
        try:
            self._await(process, log)
            yield self.address
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _await(self, process: subprocess.Popen[bytes], log: Path) -> None:
        def listens() -> bool:
            assert process.poll() is None, log.read_text()[-4000:]
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return True
            return False

        until(listens)
