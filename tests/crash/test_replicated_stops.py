"""A process with a replicated store is stopped for longer than all its timeouts, or one of its disks fails
under load.

Promise: nobody else opens the store of a process that is stopped; once it goes on, all replicas come to be in
sync. With acks=all and min.insync.replicas 2 nothing that was acknowledged is lost.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from replicated_stores import Directories, await_in_sync, found
from waiting import PATIENCE, until

import segstore

pytestmark = pytest.mark.kind("kills")

Run = Callable[["Told"], None]
LAG_MS, SESSION_MS = 200, 300
WRITES = ("pwrite", "pwritev")


class Told:
    """What a process says, by lines in a file: its writes are there however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def say(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(line + "\n")

    def lines(self) -> list[str]:
        """All whole lines."""
        return self._path.read_text().split("\n")[:-1]

    def acknowledged(self) -> dict[int, bytes]:
        """The values that were acknowledged, by offset."""
        told = [line.split(" ", 2)[1:] for line in self.lines() if line.startswith("ack ")]
        return {int(offset): value.encode() for offset, value in told}

    def await_acks(self, count: int) -> None:
        """Wait until so many more records are acknowledged."""
        wanted = len(self.acknowledged()) + count
        until(lambda: len(self.acknowledged()) >= wanted)


@contextmanager
def process(run: Run, told: Told) -> Iterator[int]:
    """A forked process that calls `run`; it is killed at the end where it has not ended by itself."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            run(told)
            status = 0
        except BaseException as error:
            told.say(f"raised {error!r}")
        finally:
            os._exit(status)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def ended(pid: int) -> int:
    """Wait for the end of a process, and return its status."""
    found = until(lambda: next(iter([each for each in [os.waitpid(pid, os.WNOHANG)] if each[0]]), None))
    return os.waitstatus_to_exitcode(found[1])


def write(store: segstore.ReplicatedStore, told: Told, over: Path) -> None:
    """Append records until a file is there; say what was acknowledged. What was refused is not repeated."""
    log, count = store.partition("t"), 0
    while not over.exists():
        value = f"record {count}"
        count += 1
        try:
            offset = log.append(value.encode(), acks="all", timeout_ms=PATIENCE * 1000)
        except segstore.SegstoreError as error:
            told.say(f"refused {type(error).__name__}")
        else:
            told.say(f"ack {offset} {value}")


def assert_kept(directories: Directories, told: Told) -> None:
    """What was acknowledged is there at its offset, and nothing is there twice."""
    with directories.open() as store:
        await_in_sync(store, directories.gone)
        here = found(store.partition("t"))
    assert told.acknowledged().items() <= here.items()
    assert len({*here.values()}) == len(here)
    directories.judge()


def stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all("State:\tT" in (task / "status").read_text() for task in tasks)


@pytest.mark.parametrize("times", [1, 3])
def test_stopped_for_longer_than_all_timeouts(tmp_path: Path, times: int) -> None:
    three, told, over = Directories(tmp_path, 3), Told(tmp_path / "told"), tmp_path / "over"

    def run(told: Told) -> None:
        settings = {"replica_lag_time_max_ms": LAG_MS, "broker_session_timeout_ms": SESSION_MS}
        with three.open(min_insync_replicas=2, **settings) as store:
            store.create_topic("t", replication_factor=3)
            write(store, told, over)
            await_in_sync(store)
            told.say("in sync")

    with process(run, told) as pid:
        for _ in range(times):
            told.await_acks(50)
            os.kill(pid, signal.SIGSTOP)
            until(lambda: stopped(pid))
            before = told.lines()
            time.sleep(3 * max(LAG_MS, SESSION_MS) / 1000)
            with pytest.raises(segstore.StoreLockedError, match=str(pid)):
                segstore.open_replicated(three.paths, config=three.config)
            assert told.lines() == before
            os.kill(pid, signal.SIGCONT)
        told.await_acks(50)
        over.touch()
        assert ended(pid) == 0, told.lines()[-3:]
    assert told.lines()[-1] == "in sync"
    assert_kept(three, told)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("number", range(3))
def test_one_disk_of_three_fails_under_load(tmp_path: Path, number: int, code: int) -> None:
    """EIO takes the directory offline, and the others go on. A leader whose disk is full refuses appends; a
    full disk takes its directory offline, too, if the metadata has to be written there meanwhile.
    """
    three, told, over = Directories(tmp_path, 3), Told(tmp_path / "told"), tmp_path / "over"

    def run(told: Told) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: three.files.fail(three.paths[number], code, WRITES))
        signal.signal(signal.SIGUSR2, lambda *_: three.files.mend())
        with three.open(min_insync_replicas=2) as store:
            store.create_topic("t", assignments={0: [0, 1, 2]})
            write(store, told, over)
            told.say("closing")

    with process(run, told) as pid:
        told.await_acks(50)
        os.kill(pid, signal.SIGUSR1)
        before = len(told.lines())
        until(lambda: len(told.lines()) >= before + 50)
        if code == errno.EIO or number:
            told.await_acks(50)
        os.kill(pid, signal.SIGUSR2)
        told.await_acks(50)
        over.touch()
        ended(pid)
    assert "closing" in told.lines(), told.lines()[-3:]
    assert_kept(three, told)
