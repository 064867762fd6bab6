"""Runs one round: a process with the store, and consumers behind a proxy; processes and connections fail in
turn; then all that is left in the queue is taken, and the history is judged.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fault_proxy import Proxy
from places import environment
from queue_events import Ended, Noted, Part, from_lines
from queue_histories import Left, QueueHistory, Terms
from stores import records
from waiting import PATIENCE, until

import segstore

from .plan import LETTERS, Plan
from .told import Flags, Telling, now

GAP_S = (0.1, 0.7)
"""Seconds between two faults."""
LIFE_S = 1.6
"""How long a life of the store's process is, at least: some locks run out."""
END_S = 8.0
"""How long a consumer on the wire may take to end before it is killed."""


class Failed(Exception):
    """A round that went wrong: its seed, and what was seen."""


class Round:
    """All in `directory`, which is empty. `wrong` is what the judge has found."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory, self.plan = directory, plan
        self.rng = random.Random(f"round {plan.seed}")
        self.store, self.told, self.errors = (directory / n for n in ("store", "told", "errors"))
        self.port_file = directory / "port"
        self.tell, self.flags = Telling(self.told), Flags(self.told)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.life = self.lives = 0
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self.faults: dict[str, Callable[[], None]] = {
            "worker killed": self._worker_killed,
            "worker stopped": lambda: self._stopped(self.rng.choice([*self.workers.values()])),
            "store stopped": lambda: self._stopped(self.owner),
            "cut": lambda: self.proxy.cut(hard=self.rng.random() < 0.5),
            "torn": lambda: self.proxy.tear(self.rng.randrange(1, 6)),
            "answers lost": self._answers_lost,
            "stalled": self._stalled,
        }

    def play(self) -> Counter[str]:
        """Play, and judge the history; no process is left. Raises Failed."""
        try:
            with Proxy() as self.proxy:
                self._play()
            self._judge()
        finally:
            for process in self._started:
                process.kill()
                process.wait()
        if self.wrong:
            raise Failed(self._say("\n".join(self.wrong[:12])))
        self.counts["rounds"] += 1
        return self.counts

    def _say(self, what: str) -> str:
        errors = self.errors.read_text(errors="replace")[-6_000:] if self.errors.exists() else ""
        return f"seed {self.plan.seed}, {self.directory}, {self.plan}: {what}\n{errors}"

    def _play(self) -> None:
        port = 0
        for is_killed, faults in zip(self.plan.kills, self.plan.faults, strict=True):
            port = self._serve(port, "storm")
            for kind in self.plan.wire if not self.workers else ():
                self._begin_worker(kind)
            end = time.monotonic() + LIFE_S
            for fault in faults:
                self._wait(self.rng.uniform(*GAP_S))
                self._do(fault)
            self._wait(max(end - time.monotonic(), self.rng.uniform(*GAP_S)))
            if self.life == len(self.plan.kills):
                self._end_workers()
            self._end_owner(is_killed)
        self._serve(port, "drain")
        self._ends(self.owner)
        self.tell(Ended(self.life, False, now()))

    # --- processes -------------------------------------------------------------------------------

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"queue_judge.{module}", *arguments]
        with open(self.errors, "ab") as errors:
            process = subprocess.Popen(command, env=environment(), stdout=errors, stderr=errors)
        self._started.append(process)
        return process

    def _serve(self, port: int, how: str) -> int:
        """Begin a life of the process that has the store; return the port at which it serves."""
        self.port_file.unlink(missing_ok=True)
        self.life += 1
        arguments = str(self.life), str(port), str(self.proxy.port), self.plan.dumped(), how
        self.owner = self._start("owner", str(self.store), str(self.told), *arguments)
        until(lambda: self._port() or self._fails(self.owner))
        self.proxy.target = self._port()
        return self.proxy.target

    def _port(self) -> int:
        with suppress(FileNotFoundError, ValueError):
            return int(self.port_file.read_text())
        return 0

    def _begin_worker(self, kind: str) -> None:
        self.lives += 1
        name, address = f"{kind.replace(' ', '-')}.{self.lives}", self.proxy.address
        self.workers[f"{kind}/{self.lives}"] = self._start(
            "worker", kind, address, str(self.told), name, self.plan.dumped()
        )

    def _fails(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() not in (None, 0):
            raise Failed(self._say(f"{process.args!r} ended: {process.returncode}"))
        return False

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        for process in (self.owner, *self.workers.values()):
            self._fails(process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        self._fails(process)
        process.kill()
        process.wait()

    def _ends(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            process.wait()
        if process.returncode:
            raise Failed(self._say(f"{process.args!r} ended: {process.returncode}"))

    def _end_owner(self, is_killed: bool) -> None:
        if is_killed:
            self._kill(self.owner)
            self.counts["store killed"] += 1
        else:
            self.owner.send_signal(signal.SIGTERM)
            self._ends(self.owner)
            self.counts["store ended"] += 1
        self.tell(Ended(self.life, is_killed, now()))

    def _end_workers(self) -> None:
        """Have some of the consumers close, and kill the others."""
        if self.rng.random() < 0.5:
            self.flags.over()
            end = time.monotonic() + END_S
            while time.monotonic() < end and any(each.poll() is None for each in self.workers.values()):
                time.sleep(0.02)
        for process in self.workers.values():
            self._fails(process)
            process.kill()
            process.wait()

    # --- faults ----------------------------------------------------------------------------------

    def _do(self, fault: str) -> None:
        self.tell(Noted(fault, now()))
        self.faults[fault]()
        self.counts[fault] += 1

    def _worker_killed(self) -> None:
        which = self.rng.choice([*self.workers])
        self._kill(self.workers.pop(which))
        self._begin_worker(which.partition("/")[0])

    def _stopped(self, process: subprocess.Popen[bytes]) -> None:
        """Now and then for longer than a lock."""
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(self.plan.lock_ms / 1000 * self.rng.choice((0.2, 1.3)))
        os.kill(process.pid, signal.SIGCONT)

    def _answers_lost(self) -> None:
        self.proxy.mute()
        time.sleep(self.rng.uniform(0.05, 0.3))
        self.proxy.cut(hard=self.rng.random() < 0.5)
        self.proxy.go_on()

    def _stalled(self) -> None:
        self.proxy.stall(requests=self.rng.random() < 0.7, answers=self.rng.random() < 0.7)
        time.sleep(self.rng.uniform(0.1, self.plan.lock_ms / 1000 * 1.2))
        if self.rng.random() < 0.5:
            self.proxy.cut(hard=True)
        self.proxy.go_on()

    # --- the judgement ---------------------------------------------------------------------------

    def _judge(self) -> None:
        history = self.history()
        self.wrong += history.anomalies()
        self.wrong += [
            event.what
            for event in history.events
            if isinstance(event, Noted) and event.what.startswith("not drained")
        ]
        self.wrong += [f"check: {found}" for found in segstore.check(self.store)]
        self.counts += history.counts

    def history(self) -> QueueHistory:
        """Return what was told, and what is left."""
        plan = self.plan
        terms = Terms(min(plan.limits), max(plan.limits), plan.letters, plan.copies)
        with segstore.open(self.store, config=plan.config) as store:
            return QueueHistory(from_lines(self.told.read_bytes()), left(store, plan), terms)


def left(store: segstore.Store, plan: Plan) -> Left:
    """Return what a round has left in its store."""
    parts: list[Part] = [(topic, n) for topic in plan.topics for n in store.topics()[topic].partition_ids]
    log, visible = (
        {
            part: {
                each.offset: (each.value or b"").decode()
                for each in records(store.partition(*part), isolation_level=isolation)
            }
            for part in parts
        }
        for isolation in ("read_uncommitted", plan.isolation)
    )
    starts = {part: store.partition(*part).start_offset for part in parts}
    return Left(log, visible, starts, letters(store))


def letters(store: segstore.Store) -> dict[tuple[Part, int], list[tuple[int, str | None]]]:
    """Return the dead letters by what they are copies of."""
    found: dict[tuple[Part, int], list[tuple[int, str | None]]] = {}
    for number in store.topics()[LETTERS].partition_ids if LETTERS in store.topics() else ():
        for record in records(store.partition(LETTERS, number)):
            told = {name.rpartition("errors.")[2]: (text or b"").decode() for name, text in record.headers}
            at = (told["topic"], int(told["partition"])), int(told["offset"])
            value = None if record.value is None else record.value.decode()
            found.setdefault(at, []).append((int(told["delivery.count"]), value))
    return found
