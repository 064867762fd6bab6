"""Runs rounds of a storm: starts members, kills, stops and continues them from outside, and has the store
judged. This process opens no store itself: it forks all that do.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import segstore
from segstore._native import held
from segstore.storage.meta.published_ends import slot_key

from . import member, steps
from .follower import follow
from .judge import Judge, behind_the_end
from .notes import DONE, Notes
from .notes import SLOT as SLOT_NOTE
from .plan import Chances, Plan

_CLONE_NEWPID = 0x20000000
_HANGS = 40.0  # seconds
LOOK = 0.05  # seconds
_KILLED = 128 + signal.SIGKILL


class Result(NamedTuple):
    """What a round has shown. `wrong` is empty if all is well."""

    wrong: list[str]
    counts: Counter[str]
    steps: dict[str, Counter[str]]


class Round:
    """One round in a directory of its own, all drawn from a seed."""

    def __init__(self, directory: Path, seed: int, plan: Plan) -> None:
        self.work, self.plan, self.rng = directory, plan, random.Random(seed)
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "notes").mkdir(parents=True)
        self.root = directory / "store"
        self.word = mmap.mmap(-1, 4096)
        self.number = 0
        self.members: dict[int, Notes] = {}
        self.stopped: dict[int, float] = {}
        self.counts, self.wrong = Counter[str](), list[str]()
        steps.make(directory / "counts")

    # --- processes ------------------------------------------------------------------------

    def is_over(self) -> bool:
        """Return whether members are to stop."""
        return self.word[0] != 0

    def fork(self, run: Callable[[], int], *, apart: bool = False) -> int:
        """Run in a process of a group of its own, which ends with this one."""
        pid = os.fork()
        if pid:
            return pid
        status = 4
        try:
            os.setsid()
            member.die_with_parent()
            status = _in_namespace(run) if apart else run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def start(self) -> None:
        """Start a member."""
        self.number += 1
        number, chances = self.number, Chances.drawn(self.rng, self.plan)
        notes = Notes(self.work / "notes" / str(number))
        pid = self.fork(
            lambda: member.run(self.root, number, self.plan, chances, self.is_over), apart=self.plan.apart
        )
        self.members[pid] = notes

    def host(self) -> int | None:
        """Return the process of the host, if it is one of ours that lives."""
        try:
            with open(self.root / ".segstore" / "shared", "rb") as file:
                header = held("seg_shared_header *", bytearray(file.read(4096)))
        except (FileNotFoundError, ValueError):
            return None
        return next(
            (pid for pid, notes in self.members.items() if notes[SLOT_NOTE] == header.host_slot + 1), None
        )

    def kill(self, pid: int, how: str) -> None:
        """Kill a member from outside."""
        send(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.gone(pid)
        self.counts[how] += 1

    def kill_all(self) -> None:
        """Kill all members at once."""
        for pid in self.members:
            send(pid, signal.SIGKILL)
        for pid in list(self.members):
            os.waitpid(pid, 0)
            self.gone(pid)
            self.counts["killed with all"] += 1

    def gone(self, pid: int) -> None:
        """Note that a member has ended."""
        self.members.pop(pid).close()
        self.stopped.pop(pid, None)

    def reap(self) -> None:
        """Take note of members that have ended by themselves."""
        for pid in list(self.members):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.ended(pid, status)

    def ended(self, pid: int, status: int) -> None:
        """Take note of how a member has ended."""
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if code == _KILLED:
            self.counts["killed at a step"] += 1
        elif code:
            self.wrong.append(f"a member ended with {code}: {self.said()}")
        else:
            self.counts["ended"] += 1
        self.gone(pid)

    def said(self) -> str:
        """Return the last of what members have said."""
        path = self.work / "errors"
        return path.read_text()[-3000:] if path.exists() else ""

    # --- a round --------------------------------------------------------------------------

    @property
    def kills(self) -> int:
        """Return how many members were killed."""
        return sum(count for how, count in self.counts.items() if how.startswith("kill"))

    def play(self) -> Result:
        """Play the round."""
        self._child(self._make)
        reader = self.fork(self._follow) if self.plan.reader else 0
        began = time.monotonic()
        while self.kills < self.plan.kills and not self.wrong and time.monotonic() - began < 5 * _HANGS:
            self.turn()
        if self.kills < self.plan.kills and not self.wrong:
            self.wrong.append(f"only {self.kills} kills in {5 * _HANGS:.0f} s: {self.said()}")
        self._end()
        self.word[1] = 1
        if reader:
            self._await_reader(reader)
        self._child(self._judge)
        said = json.loads((self.work / "judged").read_text()) if (self.work / "judged").exists() else None
        if said is None:
            self.wrong.append("the judge has said nothing")
        else:
            self.wrong += said["wrong"]
            self.counts.update(said["counts"])
        return Result(self.wrong, self.counts, steps.counts(self.work / "counts"))

    def turn(self) -> None:
        """Do one thing to one member."""
        plan, rng = self.plan, self.rng
        self.reap()
        while len(self.members) < plan.members:
            self.start()
        time.sleep(rng.choice([0.002, 0.01, 0.03]))
        self._continue()
        if plan.looks_behind and rng.random() < 0.5:
            self._look_behind()
        # Most of them only once they have appended: however busy the machine is, things happen in between.
        least = rng.choice([0, 1, 5, 5, 20])
        going = [
            pid for pid, notes in self.members.items() if notes[DONE] >= least and pid not in self.stopped
        ]
        if not going:
            return
        what, host = rng.random(), self.host() if rng.random() < 0.35 else None
        pid = host if host in going else rng.choice(going)
        assert pid is not None
        if what > 0.985:
            self.kill_all()
        elif what < 0.12 and plan.fences and len(self.stopped) < plan.members - 1:
            send(pid, signal.SIGSTOP)
            self.stopped[pid] = time.monotonic() + rng.choice([0.005, 0.03, 0.3])
            self.counts["stopped host" if pid == host else "stopped"] += 1
        elif what < 0.12 + plan.outside:
            self.kill(pid, "killed host" if pid == host else "killed")

    def _look_behind(self) -> None:
        """Look for a while, as often as it goes, at what lies behind the log's end: a crash of the machine
        could leave that.
        """
        key, end = int((self.work / "key").read_text()), time.monotonic() + LOOK
        while time.monotonic() < end and not self.wrong:
            self.counts["looks behind the end"] += 1
            self.wrong += behind_the_end(self.root, key, self.work / "notes")

    def _continue(self) -> None:
        """Continue members that have stopped themselves, and those that were stopped for long enough."""
        for pid in list(self.members):
            until = self.stopped.get(pid)
            if until is None:
                if self.plan.fences and self.rng.random() < self.plan.goes_on:
                    send(pid, signal.SIGCONT)
            elif time.monotonic() > until:
                if self.rng.random() < 0.4:
                    self.kill(pid, "killed while stopped")
                else:
                    send(pid, signal.SIGCONT)
                    del self.stopped[pid]

    def _end(self) -> None:
        """Let all members close the store, or kill them; sometimes one of them is left for the last."""
        if self.rng.random() < self.plan.all_killed:
            self.kill_all()
            return
        self.word[0] = 1
        end = time.monotonic() + _HANGS
        while self.members and time.monotonic() < end:
            for pid in self.members:
                send(pid, signal.SIGCONT)
            self.reap()
            time.sleep(0.01)
        if self.members:
            for pid in self.members:
                send(pid, signal.SIGUSR1)
            time.sleep(1)
            self.wrong.append(f"{len(self.members)} members hang: {self.said()}")
            for pid in list(self.members):
                self.kill(pid, "hung")

    def _await_reader(self, pid: int) -> None:
        end = time.monotonic() + _HANGS
        while time.monotonic() < end:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                if status:
                    self.wrong.append(f"the reader: {(self.work / 'reader').read_text()[-1500:]}")
                return
            time.sleep(0.01)
        send(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.wrong.append("the reader hangs")

    # --- what is done in processes of their own ---------------------------------------------

    def _child(self, run: Callable[[], object]) -> None:
        """Run in a child, and wait for it."""

        def status() -> int:
            try:
                run()
                return 0
            except BaseException:
                (self.work / "errors").open("a").write(traceback.format_exc())
                return 5

        _, found = os.waitpid(self.fork(status), 0)
        if found:
            self.wrong.append(f"a child ended with {found}: {self.said()}")

    def _make(self) -> None:
        with segstore.open(self.root, shared=True, config=self.plan.store_config) as store:
            info = store.create_topic(member.TOPIC, 1, self.plan.topic_config)
            (self.work / "key").write_text(str(slot_key(info.topic_id, member.TOPIC, 0)))
            store.create_topic(member.TXN_TOPIC, 2, self.plan.topic_config)

    def _follow(self) -> int:
        try:
            follow(self.root, lambda: self.word[1] != 0)
            return 0
        except BaseException:
            (self.work / "reader").write_text(traceback.format_exc())
            return 6

    def _judge(self) -> None:
        judge = Judge(self.root, self.plan)
        judge.look()
        said = {"wrong": judge.wrong[:12], "counts": judge.counts}
        (self.work / "judged").write_text(json.dumps(said))


def _in_namespace(run: Callable[[], int]) -> int:
    """Run in a pid namespace of its own, as its second process: the first one, as an init, hears no signal
    of its own. Returns the status with which to exit.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWPID):
        return 7
    return _waited_for(lambda: _waited_for(run))


def _waited_for(run: Callable[[], int]) -> int:
    pid = os.fork()
    if not pid:
        status = 4
        try:
            member.die_with_parent()
            status = run()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    return _KILLED if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def may_be_apart() -> bool:
    """Return whether pid namespaces may be made here."""
    pid = os.fork()
    if not pid:
        os._exit(_in_namespace(lambda: 0))
    return os.waitpid(pid, 0)[1] == 0


def send(pid: int, number: int) -> None:
    """Send a signal to a process and its namespace's; to it alone as long as it has no group of its own."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        os.kill(pid, number)
