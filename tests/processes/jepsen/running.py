"""Runs one round: processes are stopped, continued and killed; then the history of what they were told is
judged.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from group_histories import GroupHistory
from histories import Commit, Log, Part, from_lines
from places import environment
from stores import records
from waiting import PATIENCE, until

import segstore
from segstore import Consumer, TopicPartition

from .telling import CONFIG, GROUPS, HOPS, TOPICS

SENDS = 400
LAST_SENDS = 40
STOPPED = (0.1, 0.5, 0.8)  # seconds; members are taken for failed after 0.3 and 0.4


class Failed(Exception):
    """A round that went wrong: its seed, and what was seen."""


class Round:
    """All in `directory`, which is empty. `package` has the modules that its processes run."""

    package = "jepsen"

    def __init__(self, directory: Path, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.store, self.told, self.errors = (directory / n for n in ("store", "told", "errors"))
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        """What the judge has found."""
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, lives: int, readers: int) -> Counter[str]:
        """`lives` of the writer end by SIGKILL, the last one reads all. Failed."""
        return self._judged(lambda: self._run(lives, readers))

    def _judged(self, play: Callable[[], None]) -> Counter[str]:
        """Play, and judge the history; no process is left."""
        try:
            play()
            found = self._history()
            self.wrong = [*found.anomalies(), *map(str, segstore.check(self.store))]
            if self.wrong:
                raise Failed(self._say("\n".join(self.wrong[:20])))
        finally:
            for process in self._started:
                process.kill()
                process.wait()
        self.counts["rounds"] += 1
        self.counts["polls"] = len(found.polls)
        self.counts["sends"] = sum(send.offset >= 0 for send in found.sends)
        self.counts["commits"] = sum(isinstance(event, Commit) for event in found.events)
        self.counts["generations"] = len({(p.group, p.member, p.generation) for p in found.polls if p.group})
        return self.counts

    def _say(self, what: str) -> str:
        errors = self.errors.read_text(errors="replace")[-20_000:]
        return f"seed {self.seed}, {self.store.parent}: {what}\n{errors}"

    def _run(self, lives: int, readers: int) -> None:
        reading: dict[int, subprocess.Popen[bytes]] = {}
        for life in range(lives):
            writer = self._start("writer", f"w{life}", str(self.rng.random()), str(SENDS))
            until(lambda process=writer: self._is_there() or self._has_ended(process))
            for n in range(readers):
                reading[n] = self._replaced(reading.get(n), f"r{n}.{life}")
            self._torment([writer, *reading.values()], self.rng.randrange(300, 2500))
            self._kill(writer)
        writer = self._start("writer", "last", str(self.rng.random()), str(LAST_SENDS), "calm")
        self._ends(writer)
        for process in reading.values():
            process.send_signal(signal.SIGTERM)
            self._ends(process)

    def _start(self, module: str, run: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"{self.package}.{module}", str(self.store), str(self.told), run]
        command += arguments
        with open(self.errors, "ab") as errors:
            process = subprocess.Popen(command, env=environment(), stdout=errors, stderr=errors)
        self._started.append(process)
        return process

    def _is_there(self) -> bool:
        """Whether something was told: all topics are there."""
        return self.told.exists() and self.told.stat().st_size > 0

    def _has_ended(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() not in (None, 0, -signal.SIGKILL):
            raise Failed(self._say(f"{process.args} ended: {process.returncode}"))
        return process.poll() is not None

    def _replaced(self, process: subprocess.Popen[bytes] | None, run: str) -> subprocess.Popen[bytes]:
        """A reader goes on through the writer's death, or another one comes."""
        if process is not None and self.rng.random() < 0.7:
            return process
        if process is not None:
            self._kill(process)
        return self._start("reader", run, self.rng.choice(("consumer", "logs")))

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if not self._has_ended(process):
            process.kill()
            process.wait()
            self.counts["kills"] += 1

    def _torment(self, processes: list[subprocess.Popen[bytes]], events: int) -> None:
        """Stop them now and then until so many events more were told, or the writer has ended."""
        enough = self._events() + events
        while self._events() < enough and not self._has_ended(processes[0]):
            time.sleep(self.rng.uniform(0.05, 0.4))
            process = self.rng.choice([processes[0], *processes])
            if self.rng.random() < 0.5 and not self._has_ended(process):
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(self.rng.choice(STOPPED))
                os.kill(process.pid, signal.SIGCONT)
                self.counts["stops"] += 1

    def _events(self) -> int:
        return self.told.read_bytes().count(b"\n")

    def _ends(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            process.wait()
        if process.returncode:
            raise Failed(self._say(f"{process.args} ended: {process.returncode}"))

    def _history(self) -> GroupHistory:
        with segstore.open(self.store, config=CONFIG) as store:
            parts = [(topic, n) for topic in TOPICS for n in store.topics()[topic].partition_ids]
            return GroupHistory(
                from_lines(self.told.read_bytes()),
                contents(store, parts, "read_uncommitted"),
                contents(store, parts, "read_committed"),
                {group: committed(store, group, of_topics(parts, GROUPS[group])) for group in GROUPS},
                {part: store.partition(*part).start_offset for part in parts},
                HOPS,
            )


def contents(store: segstore.Store, parts: list[Part], isolation: str) -> Log:
    """Values by offset."""
    return {
        part: {
            record.offset: record.value.decode()
            for record in records(store.partition(*part), isolation_level=isolation)
        }
        for part in parts
    }


def of_topics(parts: list[Part], topics: Iterable[str]) -> list[Part]:
    """The partitions of these topics."""
    return [part for part in parts if part[0] in topics]


def committed(store: segstore.Store, group: str, parts: list[Part]) -> dict[Part, int]:
    """What the group has committed in these partitions."""
    with Consumer(store, group_id=group, enable_auto_commit=False) as looking:
        return {part: looking.committed(TopicPartition(*part)) or 0 for part in parts}
