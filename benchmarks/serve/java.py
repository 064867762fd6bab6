"""Kafka's own perf tools, each a JVM of its own. On disk: nothing. Threads: one."""

from __future__ import annotations

import re
import subprocess
from datetime import datetime

import kafka_tools

OPTIONS = ("-Xmx512m",)
"""As bin/kafka-run-class.sh has it (KAFKA_HEAP_OPTS)."""
SECONDS = 240
STATS_MS = 200
_SENT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)


def _run(tool: str, *arguments: str) -> str:
    command = ["java", *OPTIONS, "-cp", kafka_tools.classpath(), f"org.apache.kafka.tools.{tool}", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{tool} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def produced(address: str, topic: str, count: int, value_bytes: int) -> float:
    """Records/s of ProducerPerformance, with its defaults: acks=all, idempotent."""
    out = _run(
        "ProducerPerformance", "--topic", topic, "--num-records", str(count), "--record-size",
        str(value_bytes), "--throughput", "-1", "--producer-props", f"bootstrap.servers={address}",
    )  # fmt: skip
    sent, rate = _SENT.findall(out)[-1]
    assert int(sent) == count, out
    return float(rate)


def consumed(address: str, topic: str, count: int) -> float:
    """Records/s of ConsumerPerformance, with its defaults, once its group has been formed."""
    out = _run(
        "ConsumerPerformance", "--bootstrap-server", address, "--topic", topic, "--messages", str(count),
        "--timeout", "60000",
    )  # fmt: skip
    headings, *lines = [line.split(", ") for line in out.splitlines() if ", " in line]
    told = dict(zip(headings, lines[-1], strict=True))
    assert int(told["data.consumed.in.nMsg"]) >= count, out
    return float(told["fetch.nMsg.sec"])


def shared(address: str, topic: str, group: str, count: int) -> float:
    """Records/s of ShareConsumerPerformance, with its defaults, behind the first record of its group."""
    out = _run(
        "ShareConsumerPerformance", "--bootstrap-server", address, "--topic", topic, "--group", group,
        "--num-records", str(count), "--timeout", "60000", "--show-detailed-stats",
        "--reporting-interval", str(STATS_MS),
    )  # fmt: skip
    _, *lines = [line.split(", ") for line in out.splitlines() if ", " in line]
    rows = [(_moment(line[1]), int(line[5])) for line in lines]
    (began, before), (ended, got) = next(row for row in rows if row[1]), rows[-1]
    assert got >= count, out
    return (got - before) / max(ended - began, STATS_MS / 1000)  # a quick run may be over at once


def _moment(text: str) -> float:
    """Seconds of a time as the tools print it."""
    return datetime.strptime(f"{text}000", "%Y-%m-%d %H:%M:%S:%f").timestamp()
