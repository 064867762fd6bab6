"""Workers of Kafka Connect with the file connectors, standalone or of a cluster."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kafka_tools
from java_programs import JavaProgram
from kafka_broker import free_port
from places import SUPPORT
from waiting import PATIENCE

FILE_POM = SUPPORT / "kafka" / "kafka_connect_file" / "pom.xml"
CLI = "org.apache.kafka.connect.cli.Connect"
FILES = "org.apache.kafka.connect.file.FileStream"
STRINGS = "org.apache.kafka.connect.storage.StringConverter"
INTERNAL = {"connect-configs": 1, "connect-offsets": 2, "connect-status": 1}
"""The topics of a cluster, and their partitions."""
KINDS = ("config", "offset", "status")
STARTING = (404, 409, 500, 503)
"""Answers of a worker that starts, joins its cluster, or has not read of a connector yet."""
COMMON = {
    "key.converter": STRINGS,
    "value.converter": STRINGS,
    "offset.flush.interval.ms": 200,
    "plugin.discovery": "service_load",
}
CLUSTER: dict[str, object] = {
    "group.id": "connect-cluster",
    "exactly.once.source.support": "enabled",
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 1000,
    "scheduled.rebalance.max.delay.ms": 0,
    "config.storage.topic": "connect-configs",
    "config.storage.replication.factor": 1,
    "offset.storage.topic": "connect-offsets",
    "offset.storage.replication.factor": 1,
    "offset.storage.partitions": INTERNAL["connect-offsets"],
    "status.storage.topic": "connect-status",
    "status.storage.replication.factor": 1,
    "status.storage.partitions": INTERNAL["connect-status"],
    **{f"{kind}.storage.segment.ms": 500 for kind in KINDS},
    **{f"{kind}.storage.min.cleanable.dirty.ratio": 0.01 for kind in KINDS},
}
"""Of workers that write exactly once, and whose topics are compacted soon."""


def source(file: Path, topic: str, **more: object) -> dict[str, object]:
    return {
        "connector.class": f"{FILES}SourceConnector",
        "tasks.max": 1,
        "file": file,
        "topic": topic,
        **more,
    }


def sink(file: Path, topic: str, **more: object) -> dict[str, object]:
    return {"connector.class": f"{FILES}SinkConnector", "tasks.max": 1, "file": file, "topics": topic, **more}


class Standalone:
    """A worker that keeps the offsets of its connectors in a file of its directory."""

    def __init__(self, directory: Path, address: str, connectors: Mapping[str, Mapping[str, object]]) -> None:
        self._directory = directory
        settings = {"offset.storage.file.filename": directory / "offsets"}
        self._files = [_worker(directory, address, free_port(), settings)]
        for name, config in connectors.items():
            self._files.append(_written(directory / f"{name}.properties", {"name": name, **config}))

    def started(self) -> JavaProgram:
        return JavaProgram(f"{CLI}Standalone", self._files, self._directory / "worker.log")


KNOWN = "InvalidTxnStateException"
"""On a busy machine a producer of Kafka's 4.4 may lose track of its transaction, also with a broker of
Kafka's; it ends the task, which Connect leaves to its operator.
"""


class Worker:
    """A worker of a cluster, and its REST interface."""

    def __init__(self, directory: Path, address: str) -> None:
        self._directory, self._port = directory, free_port()
        self._properties = _worker(directory, address, self._port, CLUSTER)
        self.program = self._started()

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _started(self) -> JavaProgram:
        return JavaProgram(f"{CLI}Distributed", [self._properties], self._directory / "worker.log")

    def restart(self) -> None:
        """Start it again after its end."""
        self.program = self._started()

    def create(self, name: str, config: Mapping[str, object]) -> None:
        """Create a connector, once the worker is ready."""
        self.program.until(lambda: self._asked(f"connectors/{name}/config", config))

    def runners(self, connector: str) -> list[str]:
        """Return the ids of the workers that run the tasks of a connector. A task that a known fault has
        ended is begun again.
        """
        status = self._asked(f"connectors/{connector}/status")
        tasks: Sequence[Any] = status["tasks"] if status else ()
        for task in tasks:
            if task["state"] == "FAILED":
                assert KNOWN in task["trace"], task["trace"]
                self._asked(f"connectors/{connector}/tasks/{task['id']}/restart", {}, "POST")
        return [task["worker_id"] for task in tasks if task["state"] == "RUNNING"]

    def _asked(self, path: str, body: Mapping[str, object] | None = None, method: str = "PUT") -> Any:
        """Return the answer; None while the worker does not answer, or can't, or answers nothing."""
        data = None if body is None else json.dumps(body, default=str).encode()
        request = urllib.request.Request(
            f"http://{self.id}/{path}",
            data,
            {"Content-Type": "application/json"},
            method="GET" if body is None else method,
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            told = error.read().decode()
            if error.code not in STARTING:
                raise AssertionError(told) from error
        except OSError:
            pass
        return None


def _worker(directory: Path, address: str, port: int, settings: Mapping[str, object]) -> Path:
    plugins = directory / "plugins" / "file"
    plugins.mkdir(parents=True)
    for jar in map(Path, kafka_tools.classpath(FILE_POM).split(":")):
        (plugins / jar.name).symlink_to(jar)
    own = {
        "bootstrap.servers": address,
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.path": plugins.parent,
    }
    return _written(directory / "worker.properties", {**COMMON, **own, **settings})


def _written(file: Path, settings: Mapping[str, object]) -> Path:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return file
