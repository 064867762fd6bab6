"""The loop on its own: calls, timers, workers, sleeps for news."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest
from waiting import PATIENCE, told, until

from segstore.server.network import wakeup, workers
from segstore.server.network.loop import IN, Loop
from segstore.server.network.timers import Timers
from segstore.threads import Background


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    thread = Background(loop.run, "loop")
    thread.start()
    yield loop
    loop.soon(loop.end)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def within(loop: Loop, call: Callable[[], Any]) -> Any:
    came: SimpleQueue[Any] = SimpleQueue()
    loop.soon(lambda: came.put(call()))
    return came.get(timeout=PATIENCE)


# --- calls -----------------------------------------------------------------------------------------


def test_calls_of_many_threads_are_made_in_the_loop(loop: Loop) -> None:
    made: list[tuple[int, int]] = []
    idents: set[int] = set()

    def call(number: int, n: int) -> None:
        made.append((number, n))
        idents.add(threading.get_ident())

    def ask(number: int) -> None:
        for n in range(500):
            loop.soon(lambda n=n: call(number, n))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(made) == 2000)
    assert [[n for which, n in made if which == number] for number in range(4)] == [[*range(500)]] * 4
    assert len(idents) == 1


def test_a_loop_that_is_awake_is_not_woken(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that are asked for in the loop, and in a burst, cost one system call, or none."""
    writes: list[int] = []
    write = os.eventfd_write
    monkeypatch.setattr(wakeup.os, "eventfd_write", lambda fd, n: (writes.append(fd), write(fd, n)))
    held, asked = Event(), Event()

    def busy() -> None:
        asked.set()
        assert held.wait(PATIENCE)
        loop.soon(lambda: None)

    loop.soon(busy)
    assert asked.wait(PATIENCE)
    before = len(writes)
    for _ in range(100):
        loop.soon(lambda: None)
    held.set()
    within(loop, lambda: None)
    assert len(writes) - before <= 1  # the last call, where the loop slept again


def test_a_call_that_fails_ends_nothing(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    def reads_and_fails(events: int) -> None:
        ours.recv(1)
        raise ZeroDivisionError

    ours, theirs = socket.socketpair()
    with theirs:
        loop.soon(fails)
        within(loop, lambda: loop.add(ours, IN, reads_and_fails))
        within(loop, lambda: loop.later(0, fails))
        theirs.send(b"x")
        until(lambda: caplog.text.count("has failed") >= 3)
        within(loop, lambda: loop.remove(ours))
        assert theirs.recv(1) == b""
    told()


def test_each_turn_ends_with_the_calls_for_that(loop: Loop) -> None:
    order: list[str] = []

    def first() -> None:
        order.append("first")
        loop.soon(lambda: order.append("in the next turn"))

    def both() -> None:
        loop.every_turn(lambda: order.append("end"))
        loop.soon(first)

    loop.soon(both)
    until(lambda: order.count("end") >= 3 and "in the next turn" in order)
    assert order[: order.index("in the next turn")] in (["end", "first", "end"], ["first", "end"])


def test_what_is_asked_after_the_end_is_not_called() -> None:
    loop = Loop()
    thread = Background(loop.run, "loop")
    thread.start()
    loop.end()
    thread.join(PATIENCE)
    called: list[None] = []
    loop.soon(lambda: called.append(None))
    loop.end()
    assert called == []


def test_a_closed_wakeup_writes_to_no_other_file() -> None:
    one = wakeup.Wakeup()
    number = one.fd
    one.close()
    other = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        assert other == number
        one.asleep = True
        one.wake()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
    finally:
        os.close(other)


def test_the_next_socket_of_a_number_gets_no_event_of_the_one_before(loop: Loop) -> None:
    """Both get bytes in one turn; the first call removes the other socket, and makes a new one."""
    pairs = [socket.socketpair() for _ in range(2)]
    came: list[str] = []
    new: list[socket.socket] = []

    def first(events: int) -> None:
        for ours, _ in pairs:
            loop.remove(ours)
        new.extend(socket.socketpair())
        loop.add(new[0], IN, lambda events: came.append("new"))
        came.append("first")

    def both() -> None:
        for ours, theirs in pairs:
            loop.add(ours, IN, first)
            theirs.send(b"x")

    within(loop, both)
    until(lambda: came)
    within(loop, lambda: None)
    assert came == ["first"]
    for _, theirs in pairs:
        theirs.close()
    new[1].close()


def test_a_client_that_has_gone_raises_no_sigpipe(loop: Loop) -> None:
    """The application may have its own mind of SIGPIPE; sendfile(2) can't be told."""
    blocked = within(loop, lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []))
    assert signal.SIGPIPE in blocked
    assert signal.SIGPIPE not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


# --- timers ----------------------------------------------------------------------------------------


def test_timers_are_taken_in_order_once_they_are_due() -> None:
    timers, made = Timers(), []
    for n, due in enumerate((3.0, 1.0, 2.0, 1.0)):
        timers.add(due, lambda due=due, n=n: made.append((due, n)))
    assert timers.pause(0.5) == 0.5
    assert timers.take(0.9) is None
    while (call := timers.take(2.5)) is not None:
        call()
    assert made == [(1.0, 1), (1.0, 3), (2.0, 2)]
    assert timers.pause(2.5) == 0.5
    assert timers.pause(9.0) == 0.0
    last = timers.take(3.0)
    assert last is not None
    assert (timers.pause(3.0), timers.take(99.0)) == (-1.0, None)


def test_a_cancelled_timer_is_not_taken() -> None:
    timers = Timers()
    timer = timers.add(1.0, lambda: None)
    timer.cancel()
    timer.cancel()
    assert timers.take(2.0) is None
    taken = timers.add(1.0, lambda: None)
    assert timers.take(2.0) is not None
    taken.cancel()  # too late
    assert timers.take(2.0) is None


def test_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    kept = timers.add(1e9, lambda: None)
    for _ in range(10_000):
        timers.add(1e9, lambda: None).cancel()
    assert len(timers) < 1000
    assert kept.call is not None


def test_a_sleeping_loop_wakes_for_a_timer(loop: Loop) -> None:
    called = Event()
    within(loop, lambda: loop.later(0.001, called.set))
    assert called.wait(PATIENCE)


# --- workers ---------------------------------------------------------------------------------------


def test_results_and_exceptions_of_workers_come_to_the_loop(loop: Loop) -> None:
    came: SimpleQueue[tuple[Any, int]] = SimpleQueue()
    workers_: set[int] = set()

    def fails() -> int:
        workers_.add(threading.get_ident())
        raise ZeroDivisionError

    def begin() -> None:
        for run in (lambda: 7, fails):
            loop.work(run, lambda result: came.put((result, threading.get_ident())))

    ident = within(loop, threading.get_ident)
    within(loop, begin)
    results = [came.get(timeout=PATIENCE) for _ in range(2)]
    assert sorted(type(result).__name__ for result, _ in results) == ["ZeroDivisionError", "int"]
    assert {where for _, where in results} == {ident}
    assert ident not in workers_
    until(lambda: not within(loop, lambda: loop.works))


def test_two_jobs_go_on_at_once_and_more_wait(loop: Loop) -> None:
    go, begun, done = Event(), [], []

    def run() -> None:
        begun.append(None)
        assert go.wait(PATIENCE)

    within(loop, lambda: [loop.work(run, done.append) for _ in range(5)])
    until(lambda: len(begun) == 2)
    assert within(loop, lambda: loop.works)
    go.set()
    until(lambda: len(done) == 5)
    assert len(begun) == 5


def test_without_threads_the_loop_does_the_work(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    class None_(Background):
        def start(self) -> None:
            raise self._refused("there are none")

    monkeypatch.setattr(workers, "Background", None_)
    came: SimpleQueue[int] = SimpleQueue()
    within(loop, lambda: loop.work(threading.get_ident, came.put))
    assert came.get(timeout=PATIENCE) == within(loop, threading.get_ident)


# --- sleeps for news -------------------------------------------------------------------------------


def test_a_watch_sleeps_once_for_each_time_that_it_is_asked(loop: Loop) -> None:
    go, slept, after = Event(), [], []

    def sleep() -> None:
        slept.append(threading.get_ident())
        assert go.wait(PATIENCE)

    watch = within(loop, lambda: loop.watch(go.set, lambda: after.append(threading.get_ident())))
    for _ in range(3):
        within(loop, lambda: watch.ask(sleep))
    until(lambda: slept)
    assert after == []
    go.set()
    until(lambda: after)
    within(loop, lambda: None)
    assert (len(slept), len(after)) == (1, 1)
    assert after == [within(loop, threading.get_ident)] != slept
    within(loop, lambda: watch.ask(sleep))
    until(lambda: len(after) == 2)


def test_a_sleep_that_fails_is_over(loop: Loop) -> None:
    after = Event()

    def sleep() -> None:
        raise ZeroDivisionError

    watch = within(loop, lambda: loop.watch(lambda: None, after.set))
    within(loop, lambda: watch.ask(sleep))
    assert after.wait(PATIENCE)


def test_the_end_wakes_a_watch() -> None:
    loop, wake, sleeps = Loop(), Event(), Event()

    def sleep() -> None:
        sleeps.set()
        wake.wait(PATIENCE)

    thread = Background(loop.run, "loop")
    thread.start()
    within(loop, lambda: loop.watch(wake.set, lambda: None).ask(sleep))
    assert sleeps.wait(PATIENCE)
    loop.end()
    thread.join(PATIENCE)
    assert wake.is_set()
    assert "segstore-server-watch" not in {each.name for each in threading.enumerate()}
