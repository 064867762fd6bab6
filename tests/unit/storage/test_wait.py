"""`Store.wait`: a publication wakes the threads that wait, in this process and in others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from late_signals import handled, send_to_this_thread, sent
from waiting import PATIENCE

import segstore

LONG_MS = PATIENCE * 2000
"""Of a wait that is woken in half of it, however busy the machine is."""


def test_a_wait_that_is_behind_returns_at_once(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        seen = store.publications
        store.partition("t", 0).append(b"x")
        began = time.monotonic()
        store.wait(seen, LONG_MS)
        assert time.monotonic() - began < LONG_MS / 2000


def test_a_wait_ends_after_its_time(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.wait(store.publications, 5)
        store.wait(store.publications, -1)


@pytest.mark.parametrize(
    ("seen", "timeout_ms", "error"),
    [
        ("x", 1, segstore.InvalidTypeError),
        (True, 1, segstore.InvalidTypeError),
        (1.0, 1, segstore.InvalidTypeError),
        (2**40, 1, segstore.InvalidArgumentError),
        (-1, 1, segstore.InvalidArgumentError),
        (0, float("nan"), segstore.InvalidArgumentError),
        (0, "1", segstore.InvalidTypeError),
        (0, None, segstore.InvalidTypeError),
        (0, True, segstore.InvalidTypeError),
    ],
)
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_bad_arguments(
    store_dir: Path, mode: str, seen: object, timeout_ms: object, error: type[Exception]
) -> None:
    segstore.open(store_dir).close()
    with segstore.open(store_dir, mode) as store, pytest.raises(error, match=r"seen|timeout_ms"):
        store.wait(seen, timeout_ms)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout_ms", [10**400, float("inf"), np.float32(1e12)])
def test_no_time_is_too_long(store_dir: Path, timeout_ms: float) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        seen = store.publications
        store.partition("t").append(b"x")
        store.wait(np.int64(seen), timeout_ms)


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_an_append_wakes_a_waiting_thread(store_dir: Path, mode: str) -> None:
    with segstore.open(store_dir) as writer:
        writer.create_topic("t")
        log = writer.partition("t", 0)
        log.append(b"first")
        waiter = writer if mode == "rw" else segstore.open(store_dir, mode="r")
        seen, got = waiter.publications, []

        def wait() -> None:
            waiter.wait(seen, LONG_MS)
            got.append(waiter.partition("t", 0).end_offset)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.02)
        log.append(b"second")
        thread.join(LONG_MS / 2000)
        assert got == [2]
        if mode == "r":
            waiter.close()


def _follow(path: str, ready: int, wanted: int, out: int) -> None:
    with segstore.open(path, mode="r") as store:
        log, offset, rounds = store.partition("t", 0), 0, 0
        os.write(ready, b"r")
        while offset < wanted:
            seen = store.publications
            records = log.read(offset)
            offset, rounds = records.next_offset, rounds + 1
            if not len(records):
                store.wait(seen, LONG_MS)
        os.write(out, b"%d" % rounds)


@pytest.mark.kind("programs")
def test_a_reader_in_another_process_is_woken_and_does_not_spin(store_dir: Path) -> None:
    wanted = 20
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t", 0)
        (ready, ready_w), (out, out_w) = os.pipe(), os.pipe()
        context = multiprocessing.get_context("fork")
        child = context.Process(target=_follow, args=(str(store_dir), ready_w, wanted, out_w))
        child.start()
        assert os.read(ready, 1) == b"r"
        for i in range(wanted):
            log.append(b"%d" % i)
            time.sleep(0.002)
        child.join(PATIENCE)
        assert child.exitcode == 0
        # A look and a wait for each record, and a few more where publications came between them.
        assert int(os.read(out, 20)) <= 4 * wanted + 10
        for fd in (ready, ready_w, out, out_w):
            os.close(fd)


def test_a_broker_directory_is_looked_at_again(kafka_segments: Path) -> None:
    with segstore.open(kafka_segments / "running", mode="r") as store:
        began = time.monotonic()
        store.wait(store.publications, LONG_MS)
        assert time.monotonic() - began < LONG_MS / 2000


def test_a_closed_store_refuses(store_dir: Path) -> None:
    store = segstore.open(store_dir)
    store.close()
    with pytest.raises(segstore.StoreClosedError):
        store.wait(0, 1)


def test_a_handler_runs_soon_if_its_signal_came_just_before_a_sleep(store_dir: Path) -> None:
    """A signal that another thread gets does not end the main thread's sleep, just as one that comes after
    Python's last check for signals. An append ends the wait if the handler does not.
    """

    def ring() -> None:
        time.sleep(0.05)  # so that the main thread sleeps
        send_to_this_thread(signal.SIGUSR1)

    with segstore.open(store_dir) as store, handled(signal.SIGUSR1, signal.default_int_handler):
        store.create_topic("t")
        seen = store.publications
        with sent(ring, lambda: store.partition("t").append(b"late")), pytest.raises(KeyboardInterrupt):
            store.wait(seen, 10 * LONG_MS)
