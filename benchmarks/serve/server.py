"""The servers that are compared, each a process of its own on the loopback address.

On disk: a directory a server. Threads: one. Processor time is the process's CPU-time clock, which counts
what /proc/PID/stat does, in ns instead of ticks of 10 ms.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import kafka_broker
import kafka_tools
from waiting import PATIENCE, until
from wire_client import WireClient

from benchmarks.steps import ROOT

from .terms import KAFKA, OURS

JAVA = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""As bin/kafka-server-start.sh has them (KAFKA_HEAP_OPTS, KAFKA_JVM_PERFORMANCE_OPTS)."""
SHARE_STATES = """\
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
"""Of the broker, which has no other node; the 50 partitions are its default."""
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
"""Of both: ConsumerPerformance's group has one member, for which nobody waits."""


class AbsentError(Exception):
    """A server can't be started here: why."""


@dataclass
class Spent:
    """What a stretch of time has cost: seconds, and of them the server's on a processor."""

    seconds: float = 0.0
    cpu: float = 0.0


@dataclass(frozen=True)
class Server:
    """One that runs. `started` are the seconds from its process's start to its first answer to Metadata."""

    name: str
    address: str
    pid: int
    directory: Path
    started: float

    def connect(self) -> WireClient:
        host, _, port = self.address.rpartition(":")
        return WireClient(host, int(port), "bench")

    def resident(self) -> float:
        """MB (10^6 bytes) of memory that the process holds."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found, f"process {self.pid} has ended"
        return int(found[1]) * 1024 / 1e6

    @contextmanager
    def measured(self) -> Iterator[Spent]:
        """The figures are there after the block."""
        spent, cpu, began = Spent(), cpu_seconds(self.pid), time.perf_counter()
        yield spent
        spent.seconds = time.perf_counter() - began
        spent.cpu = cpu_seconds(self.pid) - cpu


def cpu_seconds(pid: int) -> float:
    """Processor time of another process so far, user and system, all threads: clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


@dataclass
class Ours:
    """`segstore serve` with this Python."""

    name: str = OURS
    versions: dict[str, str] = field(default_factory=lambda: {"segstore": version("segstore")})

    @contextmanager
    def running(self, directory: Path) -> Iterator[Server]:
        address = f"127.0.0.1:{kafka_broker.free_port()}"
        given = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "segstore", "serve", "--store", str(directory), "--listen", address]
        with ExitStack() as ended:
            began = time.perf_counter()
            process = subprocess.Popen(
                [*command, *given], cwd=ROOT, env=_environment(), stdout=subprocess.DEVNULL
            )
            ended.callback(_end, process)
            answered(address, process)
            yield Server(self.name, address, process.pid, directory, time.perf_counter() - began)


@dataclass
class Kafka:
    """A broker that is its own controller, as tests have it, with Java's options of a real one."""

    classpath: str
    name: str = KAFKA
    versions: dict[str, str] = field(default_factory=lambda: {"Apache Kafka": kafka_tools.VERSION})

    @contextmanager
    def running(self, directory: Path) -> Iterator[Server]:
        """Formatting the directory is not part of the start."""
        broker = kafka_broker.Broker(self.classpath, directory, JAVA, more=SHARE_STATES)
        began = time.perf_counter()
        with broker.running() as address:
            assert broker.process is not None
            answered(address, broker.process)
            yield Server(self.name, address, broker.process.pid, directory, time.perf_counter() - began)


def _environment() -> dict[str, str]:
    """With compiled files, as an installed package has them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def maker(name: str) -> Ours | Kafka:
    """Raises AbsentError."""
    if name == OURS:
        return Ours()
    if why := kafka_tools.why_not():
        raise AbsentError(why)
    try:
        return Kafka(kafka_tools.classpath())
    except RuntimeError as error:
        raise AbsentError(str(error).partition("\n")[0]) from error


def answered(address: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until Metadata is answered by a node that leads."""
    host, _, port = address.rpartition(":")

    def asked() -> bool:
        assert process.poll() is None, f"the server of {address} has ended"
        with suppress(OSError), WireClient(host, int(port), "bench") as wire:
            return bool(wire.ask("Metadata", 12, topics=None).brokers)
        return False

    until(asked)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def descriptors(wanted: int) -> None:
    """Let this process, and those that it starts, have so many open files, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
