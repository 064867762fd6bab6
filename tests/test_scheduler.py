"""The store's background thread: order, failures, delays beyond what a condition can wait, closing."""

from __future__ import annotations

import os
import threading

import pytest

from segstore.storage.scheduler import NICER, Scheduler


def test_tasks_run_in_order_of_their_time() -> None:
    scheduler, done, ran = Scheduler(), threading.Event(), []
    scheduler.after(0.02, lambda: (ran.append("later"), done.set()))
    scheduler.soon(lambda: ran.append("soon"))
    assert done.wait(10)
    scheduler.close()
    assert ran == ["soon", "later"]


@pytest.mark.parametrize("seconds", [(2**63 - 1) / 1000, 1e9])
def test_a_delay_of_years_does_not_end_the_thread(seconds: float) -> None:
    scheduler, done = Scheduler(), threading.Event()
    scheduler.after(seconds, lambda: None)
    scheduler.soon(done.set)
    assert done.wait(10)
    scheduler.soon((again := threading.Event()).set)
    assert again.wait(10)
    scheduler.close()


def test_a_task_that_fails_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, done = Scheduler(), threading.Event()
    scheduler.soon(lambda: 1 // 0)
    scheduler.soon(done.set)
    assert done.wait(10)
    scheduler.close()
    assert "background task failed" in caplog.text


def test_nothing_runs_after_close() -> None:
    scheduler, ran = Scheduler(), []
    scheduler.after(0.01, lambda: ran.append(1))
    scheduler.close()
    scheduler.soon(lambda: ran.append(2))
    assert not ran
    assert not [t for t in threading.enumerate() if t.name == "segstore-scheduler" and t.is_alive()]


def test_every_comes_again_after_a_failure() -> None:
    scheduler, done, calls = Scheduler(), threading.Event(), []

    def task() -> None:
        calls.append(1)
        if len(calls) == 3:
            done.set()
        raise ValueError("on purpose")

    scheduler.every(0.001, task)
    assert done.wait(10)
    scheduler.close()


def test_background() -> None:
    """Its thread takes the processor from none; that of the caller stays as it is."""
    before, done = os.getpriority(os.PRIO_PROCESS, 0), threading.Event()
    found: list[tuple[int, int]] = []

    def look() -> None:
        found.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)))
        done.set()

    scheduler = Scheduler(background=True)
    scheduler.soon(look)
    assert done.wait(10)
    scheduler.close()
    assert found == [(os.SCHED_BATCH, min(before + NICER, 19))]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
