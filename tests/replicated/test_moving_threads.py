"""The native thread that writes for a follower moves off its appender's processor, where the kernel has put
both: it goes on as a new one, which begins elsewhere. Counted: the threads, and their switches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from replicated_stores import Directories, found
from waiting import until

from segstore.storage.segment import native_tail

FEWEST, TOGETHER, CLOSELY = 32, 200, 4_000
"""Appends after which a thread moves first, how many are made without a look at the threads, which ends a
row of them, and how many a test makes.
"""
NAME = "segstore-disk"

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux tells of processors"),
    pytest.mark.kind("replicated stores"),
]


class Appender:
    """A store of two directories, and the native thread which writes for the follower."""

    def __init__(self, directories: Directories) -> None:
        self.store = directories.open(broker_session_timeout_ms=60_000, replica_lag_time_max_ms=60_000)
        self.store.create_topic("t", replication_factor=2)
        self.log = self.store.partition("t")
        until(self._is_handed_over)

    def _is_handed_over(self) -> bool:
        self.log.append(b"before")
        leader = self.store.engine.manager.leader(("t", 0))
        tail = leader.partition.tail.native
        return tail is not None and tail.is_open and all(each.is_open for each in tail.followers)

    @property
    def thread(self) -> int:
        """The id of the native thread: of two, while one goes on for the other, that of the newer one."""
        return max(until(native_threads))[1]

    def pin(self, processor: int) -> bool:
        """Let the thread run on one processor only; False if another thread went on for it meanwhile."""
        thread = self.thread
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread, {processor})
        return self.thread == thread

    def threads(self, appends: int) -> set[int]:
        """Append so often, as many in a row as let the thread move; return which threads have written."""
        seen = set()
        for _ in range(appends // TOGETHER):
            seen.add(self.thread)
            for _ in range(TOGETHER):
                self.log.append(b"v")
        return seen | {self.thread}


def native_threads() -> list[tuple[int, int]]:
    """When each native thread began, and its id. None if the listing of the threads is older than the newest
    of them, and the others have ended since.
    """
    return [(began(task), int(task.name)) for task in Path("/proc/self/task").iterdir() if name(task) == NAME]


def name(task: Path) -> str:
    """The name of a thread; "" where it has ended."""
    try:
        return (task / "comm").read_text().strip()
    except OSError:
        return ""


def began(task: Path) -> int:
    """When a thread began, in ticks; -1 where it has ended."""
    try:
        return int((task / "stat").read_text().rsplit(")", 1)[1].split()[19])
    except OSError:
        return -1


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Directories]:
    directories = Directories(tmp_path, 2)
    yield directories
    directories.close()
    directories.judge()


@pytest.fixture
def one_processor() -> Iterator[int]:
    """The number of the only processor on which this thread, which appends, may run."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield min(allowed)
    os.sched_setaffinity(0, allowed)


def test_a_thread_that_shares_its_appenders_processor_moves_ever_less_often(
    two: Directories, monkeypatch: pytest.MonkeyPatch, one_processor: int
) -> None:
    """It may run on that processor only, here, so that each move is in vain."""
    monkeypatch.setattr(native_tail, "_processors", lambda: 2)
    appender = Appender(two)
    until(lambda: appender.pin(one_processor))
    seen = appender.threads(CLOSELY)

    def moves() -> bool:
        seen.update(appender.threads(TOGETHER))
        return len(seen) > 2

    until(moves)
    twice_as_many_each_time = (appender.log.end_offset // FEWEST + 1).bit_length()
    assert len(seen) <= 1 + twice_as_many_each_time
    assert os.sched_getaffinity(appender.thread) == {one_processor}
    assert len(found(appender.log)) == appender.log.end_offset


def test_a_thread_does_not_move_where_there_is_one_processor(
    two: Directories, monkeypatch: pytest.MonkeyPatch, one_processor: int
) -> None:
    monkeypatch.setattr(native_tail, "_processors", lambda: 1)
    appender = Appender(two)
    until(lambda: appender.pin(one_processor))
    assert len(appender.threads(CLOSELY)) == 1


def state(thread: int) -> list[str]:
    """What a thread does, and how often it was switched; nothing if it has ended."""
    try:
        status = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
    except OSError:
        return []
    return [line for line in status if "ctxt_switches" in line or line.startswith("State")]


def test_the_thread_of_an_idle_store_sleeps(two: Directories) -> None:
    """Without a switch it makes no call that waits, and it does not spin: it is asleep all the time. What it
    was asked for before has to be over first, a move to another thread among it.
    """
    appender = Appender(two)
    appender.threads(TOGETHER)

    def slept() -> bool:
        thread = appender.thread
        before = state(thread)
        time.sleep(0.5)
        return state(thread) == before and any("sleeping" in line for line in before)

    until(slept, seconds=10)
