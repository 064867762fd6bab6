"""Waits of a consumer in races with appends, and interrupts within a wait: no wake and no record is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from consumers import LONG_MS, replace_waits, tp
from late_signals import handled, send_to_this_thread, sent
from struck import struck
from waiting import PATIENCE, until
from waiting_consumers import at_the_end
from waiting_consumers import sides as sides

import segstore
from segstore import threads
from segstore._native import ffi, lib
from segstore.storage.meta.tailed_ends import LATE, TailedEnds
from segstore.storage.store import reader

TURNS, PLANTED_TURNS = 300, 20
ENOUGH_MS, PLANTED_MS = 5_000, 100
SOON_S = 0.05  # so that the other thread sleeps


def race(writer: segstore.Store, consumer: segstore.Consumer, turns: int, wait_ms: int, pauses: Any) -> None:
    """Append a record at a random moment around the beginning of each wait."""
    log, next_one = writer.partition("t", 0), threading.Semaphore(0)

    def append() -> None:
        for _ in range(turns):
            next_one.acquire()
            time.sleep(next(pauses))
            log.append(b"x")

    thread = threading.Thread(target=append)
    thread.start()
    for _ in range(turns):
        next_one.release()
        came = until(lambda: consumer.poll(wait_ms))
        assert sum(map(len, came.values())) == 1
    thread.join(PATIENCE)


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "planted"])
def test_no_wake_is_lost(
    sides: Any, monkeypatch: pytest.MonkeyPatch, rng: random.Random, planted: bool
) -> None:
    """A wake was lost where a wait lasts to its end although there is a record. The planted fault takes what
    is published just before a wait for seen, as if that had been looked at.
    """
    writer, store = sides
    monkeypatch.setattr(reader, "_BLIND_SECONDS", PATIENCE)
    monkeypatch.setattr(threads, "FIRST_SLEEP", PATIENCE)
    pauses = iter(lambda: rng.uniform(0, 0.001), None)
    wait_for, lost = segstore.Store.wait_for, list[int]()
    turns, wait_ms = (PLANTED_TURNS, PLANTED_MS) if planted else (TURNS, ENOUGH_MS)

    with at_the_end(store) as consumer:

        def slowly(self: segstore.Store, tailed: Any, nudges: int, seconds: float) -> int:
            time.sleep(next(pauses))
            for each in range(tailed.n if planted else 0):
                lib.seg_read_tailed(tailed.memory, tailed._size, ffi.NULL, tailed.content + each, 1000)
            ended = wait_for(self, tailed, nudges, seconds)
            end = writer.partition("t", 0).end_offset
            lost.extend(
                [end] if ended == LATE and end > consumer._subscription.states[tp(0)].position else []
            )
            return ended

        monkeypatch.setattr(segstore.Store, "wait_for", slowly)
        race(writer, consumer, turns, wait_ms, pauses)
    assert bool(lost) is planted


def test_ctrl_c_ends_a_wait_at_once(sides: Any) -> None:
    writer, store = sides
    with at_the_end(store) as consumer:
        with handled(signal.SIGALRM, signal.default_int_handler):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(LONG_MS)
        writer.partition("t", 0).append(b"after")
        assert [record.value for record in consumer.poll(LONG_MS)[tp(0)]] == [b"after"]


@pytest.mark.parametrize("ends", ["error", "close"])
def test_a_handler_runs_soon_if_its_signal_came_just_before_a_sleep(
    sides: Any, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The signal comes after Python's last check, and before the sleep, which it does not end. It is the same
    if another thread gets the signal. A record ends the poll if the handler does not.
    """
    writer, store = sides
    sleeping, wait = threading.Event(), TailedEnds.wait
    monkeypatch.setattr(TailedEnds, "wait", lambda *args: (sleeping.set(), wait(*args))[1])

    def ring() -> None:
        assert sleeping.wait(PATIENCE)
        time.sleep(SOON_S)
        send_to_this_thread(signal.SIGUSR1)

    def append() -> None:
        writer.partition("t", 0).append(b"late")

    with at_the_end(store) as consumer:
        handler = {"error": signal.default_int_handler, "close": lambda *_: consumer.close()}[ends]
        with handled(signal.SIGUSR1, handler), sent(ring, append):
            if ends == "error":
                with pytest.raises(KeyboardInterrupt):
                    consumer.poll(10 * LONG_MS)
            else:
                assert consumer.poll(10 * LONG_MS) == {}


def test_an_interrupt_anywhere_loses_no_record(sides: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record comes at the beginning of the wait, by another thread, and so within the wait. The last step
    of a poll moves the position: only an interrupt of its return takes a record from the application.
    """
    writer, store = sides
    log, place, raised, taken = writer.partition("t", 0), 0, 1, 0
    with at_the_end(store) as consumer, ThreadPoolExecutor(1) as other:

        def append(_store: segstore.Store, _ms: float) -> None:
            other.submit(log.append, b"x").result(PATIENCE)

        while raised:
            place += 1
            at, came = log.end_offset, list[Any]()
            with monkeypatch.context() as patched:
                replace_waits(patched, append, then=True)
                raised = struck(partial(poll_into, came, consumer), place)
            assert bool(came) is not bool(raised)
            if raised and consumer.position(tp(0)) == log.end_offset > at:
                taken += 1
                continue
            if raised and log.end_offset > at:
                poll_into(came, consumer)
            assert [record.offset for record in came] == list(range(at, log.end_offset))
    assert place > 50
    assert taken <= 5


def poll_into(came: list[Any], consumer: segstore.Consumer) -> None:
    came += consumer.poll(LONG_MS)[tp(0)]


def test_a_handler_that_seeks_is_heard(sides: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record that came within the wait is not returned: the application wants others."""
    writer, store = sides
    log = writer.partition("t", 0)
    log.append(b"first")
    with at_the_end(store) as consumer:

        def seek(*_: object) -> None:
            consumer.seek(tp(0), 0)
            log.append(b"second")

        before = signal.signal(signal.SIGUSR1, seek)
        try:
            with monkeypatch.context() as patched:
                replace_waits(patched, lambda _store, _ms: os.kill(os.getpid(), signal.SIGUSR1), then=True)
                came = consumer.poll(LONG_MS)[tp(0)]
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert [record.value for record in came] == [b"first", b"second"]
