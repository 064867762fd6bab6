"""The store's background thread: order, failures, delays beyond what a condition can wait, closing."""

from __future__ import annotations

import os
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from interrupts import interrupted
from waiting import PATIENCE, until

from segstore.storage import scheduler as scheduler_module
from segstore.storage.scheduler import NICER, Scheduler


def test_tasks_run_in_order_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that stands still until both are there."""
    now = [0.0]
    monkeypatch.setattr(scheduler_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    scheduler, done, ran = Scheduler(), threading.Event(), []
    scheduler.after(0.02, lambda: (ran.append("later"), done.set()))
    scheduler.after(0.01, lambda: ran.append("sooner"))
    now[0] = 1.0
    assert done.wait(PATIENCE)
    scheduler.close()
    assert ran == ["sooner", "later"]


@pytest.mark.parametrize("seconds", [(2**63 - 1) / 1000, 1e9])
def test_a_delay_of_years_does_not_end_the_thread(seconds: float) -> None:
    scheduler, done = Scheduler(), threading.Event()
    scheduler.after(seconds, lambda: None)
    scheduler.soon(done.set)
    assert done.wait(PATIENCE)
    scheduler.soon((again := threading.Event()).set)
    assert again.wait(PATIENCE)
    scheduler.close()


def test_a_task_that_fails_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, done = Scheduler(), threading.Event()
    scheduler.soon(lambda: 1 // 0)
    scheduler.soon(done.set)
    assert done.wait(PATIENCE)
    scheduler.close()
    assert "background task failed" in caplog.text


def test_nothing_runs_after_close() -> None:
    """What is running when it is closed is waited for; what is due by then is not begun."""
    scheduler, begun, ran = Scheduler("of this test"), threading.Event(), []

    def running() -> None:
        begun.set()
        until(lambda: scheduler._closed)
        ran.append("running")

    scheduler.soon(running)
    scheduler.soon(lambda: ran.append("due"))
    assert begun.wait(PATIENCE)
    scheduler.close()
    scheduler.soon(lambda: ran.append("late"))
    assert ran == ["running"]
    until(lambda: "of this test" not in [thread.name for thread in threading.enumerate()])


def test_every_comes_again_after_a_failure() -> None:
    scheduler, done, calls = Scheduler(), threading.Event(), []

    def task() -> None:
        calls.append(1)
        if len(calls) == 3:
            done.set()
        raise ValueError("on purpose")

    scheduler.every(0.001, task)
    assert done.wait(PATIENCE)
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
    assert done.wait(PATIENCE)
    scheduler.close()
    assert found == [(os.SCHED_BATCH, min(before + NICER, 19))]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def closed(scheduler: Scheduler) -> bool:
    thread = threading.Thread(target=scheduler.close, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("call", ["soon", "close"])
def test_an_interrupt_anywhere_keeps_nobody_waiting(call: str, running: bool) -> None:
    """Who closes behind it waits for what runs, and for nothing else."""
    nth, more = 0, True
    while more:
        nth += 1
        scheduler, done = Scheduler(), threading.Event()
        if running:
            scheduler.soon((began := threading.Event()).set)
            assert began.wait(60)
        run = scheduler.close if call == "close" else partial(scheduler.soon, done.set)
        # Python's own start of a thread, interrupted, may raise another error in place of Ctrl-C.
        more = interrupted(nth, (scheduler_module, threading) if running else (scheduler_module,), run)
        if call == "soon":
            scheduler.soon((after := threading.Event()).set)
            assert after.wait(60)
            assert more or done.is_set()
        assert closed(scheduler)
    assert nth > 2


def test_a_failure_that_lasts_is_logged_once_for_each_cause(caplog: pytest.LogCaptureFixture) -> None:
    results = [*[OSError(5, "a disk")] * 3, *[OSError(28, "a full one")] * 2, None, OSError(28, "again")]
    scheduler, done, left = Scheduler(), threading.Event(), iter(results)

    def task() -> None:
        result = next(left, done)
        if result is done:
            done.set()
        elif result is not None:
            raise result  # type: ignore[misc]

    scheduler.every(0.0001, task)
    assert done.wait(PATIENCE)
    scheduler.close()
    causes = [each.exc_info[1] for each in caplog.records if each.exc_info]
    assert [str(each) for each in causes] == [
        "[Errno 5] a disk",
        "[Errno 28] a full one",
        "[Errno 28] again",
    ]
