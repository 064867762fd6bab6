"""Programs of Kafka's that run beside a test: killed, stopped, and started anew."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import kafka_tools
from places import SUPPORT
from waiting import PATIENCE, until

T = TypeVar("T")
POM = SUPPORT / "kafka" / "kafka_apps" / "pom.xml"
"""Connect and Streams."""
JAVA = (
    *("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"),
)


class JavaProgram:
    """A running program, and the text that it has printed, `told`."""

    def __init__(self, name: str, arguments: Sequence[object], log: Path, classes: Path | None = None):
        path = [*([str(classes)] if classes else []), kafka_tools.classpath(POM)]
        command = [*JAVA, os.pathsep.join(path), name, *map(str, arguments)]
        self.log = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    @property
    def told(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, look: Callable[[], T], patience: float = PATIENCE) -> T:
        """Wait until `look` returns a true value, and return that. Fails if the program ends before."""

        def found() -> T:
            assert self.process.poll() is None, self.told[-8000:]
            return look()

        return until(found, patience)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def end(self) -> None:
        """Send SIGTERM, as an operator does, and wait for its end."""
        self.process.terminate()
        self.process.wait(PATIENCE)

    def __enter__(self) -> JavaProgram:
        return self

    def __exit__(self, *args: object) -> None:
        self.kill()
