"""Runs many of Kafka's tools in one JVM, which takes a tenth of the time of a JVM for each
(tests/server/programs/tools/Tools.java).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import built_programs
from kafka_tools import classpath

JAVA = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")


class Outcome(NamedTuple):
    """How a tool ended: `code` is None if it did not end in time."""

    code: int | None
    out: str
    err: str


class ToolRunner:
    """A JVM that runs tools, one after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, tool: str, *arguments: str, text: str = "", seconds: int = 60) -> Outcome:
        """Run the tool of that class, with `text` as its standard input."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"tool": tool, "arguments": arguments, "input": text, "seconds": seconds}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))


@contextlib.contextmanager
def tool_runner() -> Iterator[ToolRunner]:
    jars = classpath().split(os.pathsep)
    (own,) = (jar for jar in jars if os.path.basename(jar).startswith("kafka-tools-4"))
    classes = built_programs.compiled("tools", classpath())
    path = os.pathsep.join([str(classes), *(jar for jar in jars if jar != own)])
    with subprocess.Popen(
        ["java", *JAVA, "-cp", path, "Tools", own],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            yield ToolRunner(process)
        finally:
            process.kill()
