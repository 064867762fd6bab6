"""Plays rounds: a primary, a standby that follows it through a proxy, and a sender. Either side is killed and
stopped, connections are cut and stalled; every few rounds the roles change, and the old primary comes back.
"""

from __future__ import annotations

import faulthandler
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from fault_proxy import Proxy
from mirrors import stored
from places import environment
from waiting import PATIENCE

import segstore
from segstore.errors import StoreClosedError

from .sender import Sender
from .told import PARTITIONS, TOPIC, Cut, Place, Told

REUNION = 3
"""Rounds from one change of roles to the next."""
ACKNOWLEDGED = (10, 80)
"""How many records are acknowledged in a round, at least."""
A_WHILE = 5.0
"""Seconds after which a round goes on though little was acknowledged."""
ENDING = 10.0
"""Seconds in which a process ends that should have done something else."""
KILLED_AT_START, STARTING = 0.3, 0.8
"""How often a standby is killed before it follows, and within how many seconds."""
DUMPED = 1.0
"""Seconds in which a process writes what its threads do."""
Read = dict[Place, tuple[int, str]]


class Failed(Exception):
    """A round that went wrong: its seed, and what was seen."""


class Node:
    """One of the two directories, its proxy, and the process that has it now."""

    def __init__(self, name: str, directory: Path, proxy: Proxy) -> None:
        self.name, self.directory, self.proxy = name, directory / name, proxy
        self.port_file = directory / f"{name}.port"
        self.process: subprocess.Popen[bytes] | None = None


class Rounds:
    """All in `directory`, which is empty. `mode` is that of the standby; `defect` is one of `defects`, which
    both sides are given. A context manager.
    """

    def __init__(self, directory: Path, seed: int, mode: str, defect: str = "none") -> None:
        self.seed, self.rng, self.mode, self.defect = seed, random.Random(seed), mode, defect
        self.directory, self.errors = directory, directory / "errors"
        self.told, self.counts = Told(may_cut=mode == "async"), Counter[str]()
        self.reign = 0
        self._stack = ExitStack()
        self._started: list[subprocess.Popen[bytes]] = []
        self._began: dict[int, int] = {}
        self._at: Counter[int] = Counter()
        self.faults: dict[str, Callable[[], None]] = {
            "primary killed": self._primary_killed,
            "standby killed": self._standby_killed,
            "primary stopped": lambda: self._stopped(self.leader),
            "standby stopped": lambda: self._stopped(self.follower),
            "cut": lambda: self.leader.proxy.cut(hard=self.rng.random() < 0.5),
            "torn": lambda: self.leader.proxy.tear(self.rng.randrange(1, 4)),
            "stalled": self._stalled,
            "answers lost": self._answers_lost,
            "refused": self._refused,
        }
        self.changes: dict[str, Callable[[], None]] = {
            "primary dead": self._promote_dead,
            "primary taken for dead": self._promote_beside,
            "primary reachable": self._promote_reachable,
            "promotion killed": self._promotion_killed,
        }

    def __enter__(self) -> Rounds:
        self.leader, self.follower = (
            Node(name, self.directory, self._stack.enter_context(Proxy())) for name in "AB"
        )
        self.sender = self._stack.enter_context(Sender(self.told, -1 if self.mode == "sync" else 1))
        self._stack.callback(self._end_all)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def play(self, rounds: int) -> Counter[str]:
        """Play so many rounds; the last one ends with a change of roles. Failed."""
        try:
            self._lead()
            self._follow()
            self._sends()
            for number in range(1, rounds + 1):
                self._load()
                self._do(self.faults)
                if number % REUNION == 0 or number == rounds:
                    self._load()
                    self._do(self.changes)
                    self._reunite()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            told = self._say(str(error))
            raise Failed(f"{told}\n{self._dump()}") from error
        self.counts["acknowledged"], self.counts["seen"] = len(self.told.acknowledged), len(self.told.seen)
        self.counts["told as cut"], self.counts["refused sends"] = len(self.told.cut), self.sender.refused
        return self.counts

    def _do(self, what: dict[str, Callable[[], None]]) -> None:
        name = self.rng.choice([*what])
        self._note(name)
        self.counts[name] += 1
        what[name]()

    def _dump(self) -> str:
        """Have each process that runs, and this one, tell what its threads do; returns that."""
        before = self.errors.stat().st_size
        with open(self.errors, "a") as errors:
            faulthandler.dump_traceback(errors)
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGUSR1)
        time.sleep(DUMPED)
        return self.errors.read_bytes()[before:].decode(errors="replace")[-20_000:]

    def _say(self, what: str) -> str:
        errors = self.errors.read_text(errors="replace")[-20_000:]
        return f"seed {self.seed}, {self.mode}, {self.directory}: {what}\n{errors}"

    def _note(self, what: str) -> None:
        """Write what is done among what the processes print."""
        with open(self.errors, "a") as errors:
            errors.write(f"{time.time():.3f} {len(self.told.acknowledged)} acknowledged: {what}\n")

    # --- processes ------------------------------------------------------------------------

    def _start(self, node: Node, work: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "standby_rounds.node", self.defect, work]
        command += [str(node.directory), *arguments]
        with open(self.errors, "ab") as errors:
            began = errors.tell()
            process = subprocess.Popen(
                command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self._started.append(process)
        self._began[process.pid] = began
        self._stack.callback(self._ended, process)
        return process

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.communicate()

    def _end_all(self) -> None:
        for node in (self.leader, self.follower):
            node.proxy.go_on()

    def _lead(self) -> None:
        node = self.leader
        node.port_file.unlink(missing_ok=True)
        node.process = self._start(node, "lead", str(node.port_file), node.proxy.address)
        self._until(node.port_file.exists, "the primary serves", node.process)
        node.proxy.target = int(node.port_file.read_text())

    def _follow(self) -> None:
        node, source = self.follower, self.leader.proxy.address
        if self.rng.random() < KILLED_AT_START:
            self.counts["killed at start"] += 1
            node.process = self._start(node, "follow", source, self.mode)
            time.sleep(self.rng.uniform(0, STARTING))
            self._kill(node)
        node.process = self._start(node, "follow", source, self.mode)
        assert node.process.stdout is not None
        came, _, _ = select.select([node.process.stdout], [], [], PATIENCE)
        assert came, f"not in {PATIENCE} s: {node.name} follows"
        line = node.process.stdout.readline()
        told = "" if line == b"following\n" else f"{line!r}; {self._ending(node.process)}"
        assert not told, f"{node.name} does not follow: {told}"

    def _ending(self, process: subprocess.Popen[bytes]) -> str:
        """Return how a process ends, and what it and others have printed since it began."""
        try:
            output, _ = process.communicate(timeout=ENDING)
        except subprocess.TimeoutExpired as error:
            output = error.stdout or b""
        errors = self.errors.read_bytes()[self._began[process.pid] :].decode(errors="replace")
        return f"status {process.returncode}, output {output!r}, errors {errors[-20_000:]!r}"

    def _sends(self) -> None:
        self.sender.reign = f"{self.leader.name}{self.reign}", self.leader.proxy.target

    def _until(
        self, holds: Callable[[], bool], what: str, *processes: subprocess.Popen[bytes] | None
    ) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, f"not in {PATIENCE} s: {what}"
            for process in processes:
                if process is not None and process.poll() is not None:
                    raise AssertionError(f"{process.args} has ended: {self._ending(process)}")
            time.sleep(0.01)

    def _kill(self, node: Node) -> None:
        assert node.process is not None
        node.process.kill()
        node.process.communicate()

    # --- load -----------------------------------------------------------------------------

    def _load(self) -> None:
        """Let some more be acknowledged, and read what the standby shows."""
        enough = len(self.told.acknowledged) + self.rng.randint(*ACKNOWLEDGED)
        end = time.monotonic() + A_WHILE
        while len(self.told.acknowledged) < enough and time.monotonic() < end:
            self._look()
            time.sleep(0.01)
            assert self.sender.error is None, repr(self.sender.error)
            for node in (self.leader, self.follower):
                assert node.process is not None
                if node.process.poll() is not None:
                    raise AssertionError(f"{node.name} has ended: {self._ending(node.process)}")

    def _look(self) -> None:
        """Read on in the standby's directory, below its high watermark."""
        with segstore.open(self.follower.directory, mode="r") as store:
            if TOPIC not in store.topics():
                return
            for partition in range(PARTITIONS):
                try:
                    self._read_on(partition, store.partition(TOPIC, partition))
                except StoreClosedError:  # the standby has not made this partition yet
                    assert not self._at[partition], f"partition {partition} has gone"

    def _read_on(self, partition: int, log: segstore.PartitionLog) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._at[partition] < (end := log.end_offset):
            records = log.read(self._at[partition], 1 << 20)
            if not len(records):
                what = f"partition {partition} is shown up to {end}, and nothing is read from "
                assert time.monotonic() < deadline, f"{what}{self._at[partition]} on"
                time.sleep(0.01)
            for record in records:
                assert record.value is not None
                self.told.seen[partition, record.offset] = record.value.decode()
                self._at[partition] = record.offset + 1

    # --- faults ---------------------------------------------------------------------------

    def _primary_killed(self) -> None:
        self.sender.reign = None
        self._kill(self.leader)
        self.sender.stop()
        self._lead()
        self._sends()

    def _standby_killed(self) -> None:
        self._kill(self.follower)
        self._look()
        self._follow()

    def _stopped(self, node: Node) -> None:
        assert node.process is not None
        os.kill(node.process.pid, signal.SIGSTOP)
        time.sleep(self.rng.choice((0.1, 0.3, 0.8)))
        self._look()
        os.kill(node.process.pid, signal.SIGCONT)

    def _stalled(self) -> None:
        way = self.rng.randrange(3)
        self.leader.proxy.stall(requests=way != 0, answers=way != 1)
        time.sleep(self.rng.choice((0.1, 0.3, 0.8)))
        if self.rng.random() < 0.5:
            self.leader.proxy.cut(hard=True)
        self.leader.proxy.go_on()

    def _answers_lost(self) -> None:
        self.leader.proxy.mute()
        time.sleep(self.rng.choice((0.05, 0.2)))
        self.leader.proxy.cut(hard=False)
        self.leader.proxy.go_on()

    def _refused(self) -> None:
        self.leader.proxy.refuse()
        self.leader.proxy.cut(hard=True)
        time.sleep(self.rng.choice((0.1, 0.3)))
        self.leader.proxy.go_on()

    # --- changes of roles -----------------------------------------------------------------

    def _promote_dead(self) -> None:
        if self.rng.random() < 0.5:  # what the primary acknowledges from now on it has alone, in async mode
            self.leader.proxy.stall()
            time.sleep(0.05)
        self._kill(self.leader)
        self.sender.stop()
        self._promoted("dead")
        self.leader.proxy.go_on()
        self._change()

    def _promote_reachable(self) -> None:
        """The primary hands over: nothing that it has acknowledged is cut, in async mode neither."""
        self.told.may_cut = False
        self._promoted("reachable")
        self._kill(self.leader)
        self.sender.stop()
        self._change()

    def _promote_beside(self) -> None:
        """The old primary lives, and is written while the standby leads already: until it is told."""
        self.leader.proxy.refuse()
        self.leader.proxy.cut(hard=True)
        old = self.leader
        self._promoted("dead")
        self._change(sends=False)
        self._some_more()
        old.proxy.go_on()
        fence = old.directory / ".segstore" / "fence"
        self._until(fence.exists, "the old primary is fenced", old.process, self.leader.process)
        refused = self.sender.refused
        self._until(lambda: self.sender.refused > refused, "the old primary refuses", old.process)
        self.sender.stop()
        self._kill(old)
        self._sends()

    def _some_more(self) -> None:
        before, end = self.sender.number, time.monotonic() + A_WHILE
        while self.sender.number < before + 10 and time.monotonic() < end:
            time.sleep(0.01)

    def _promotion_killed(self) -> None:
        self._kill(self.leader)
        self.sender.stop()
        assert self.follower.process is not None
        assert self.follower.process.stdin is not None
        self.follower.process.stdin.write(b"dead\n")
        self.follower.process.stdin.flush()
        time.sleep(self.rng.uniform(0, 0.15))
        ended = self.follower.process.poll()
        self._kill(self.follower)
        if ended is None and (self.follower.directory / ".segstore" / "role").exists():
            self.counts["promotions completed"] += 1
            process = self._start(self.follower, "promote", "dead")
            assert process.wait(PATIENCE) == 0, "the promotion is not completed"
        self._change()

    def _promoted(self, old: str) -> None:
        assert self.follower.process is not None
        self.follower.process.communicate(old.encode() + b"\n", PATIENCE)
        done = self.follower.process
        assert done.returncode == 0, f"{self.follower.name} is not promoted: {self._ending(done)}"

    def _change(self, sends: bool = True) -> None:
        self.leader, self.follower = self.follower, self.leader
        self.leader.proxy.go_on()  # what was to be torn in its last reign may not have come to pass
        self.reign += 1
        self._lead()
        if sends:
            self._sends()

    # --- reunion --------------------------------------------------------------------------

    def _reunite(self) -> None:
        """The old primary follows the new one; all that was told is judged by what both have."""
        self._some_more()
        self._follow()
        self._some_more()
        self.sender.stop()
        self._until(self._are_equal, "logs are equal", self.leader.process, self.follower.process)
        self._look()
        wrong = self.told.anomalies(self._stored(), self._cut())
        self.told.may_cut = self.mode == "async"
        wrong += [str(each) for node in (self.leader, self.follower) for each in self._check(node)]
        assert not wrong, "\n".join(wrong[:20])
        self.counts["reunions"] += 1
        self._sends()

    def _are_equal(self) -> bool:
        with suppress(FileNotFoundError):  # segments are rolled and cut meanwhile
            return all(
                stored(self.leader.directory, TOPIC, n) == stored(self.follower.directory, TOPIC, n)
                for n in range(PARTITIONS)
            )
        return False

    def _check(self, node: Node) -> list[Any]:
        return list(segstore.check(node.directory))

    def _stored(self) -> Read:
        with segstore.open(self.leader.directory, mode="r") as store:
            found: Read = {}
            for partition in range(PARTITIONS):
                log = store.partition(TOPIC, partition)
                records = log.read(log.start_offset, 1 << 30)
                for record, epoch in zip(records, records.leader_epochs.tolist(), strict=True):
                    found[partition, record.offset] = epoch, (record.value or b"").decode()
        return found

    def _cut(self) -> list[Cut]:
        return [
            Cut((each.partition, each.offset), each.leader_epoch, (each.value or b"").decode())
            for each in segstore.cut_records(self.follower.directory)
            if each.topic == TOPIC
        ]
