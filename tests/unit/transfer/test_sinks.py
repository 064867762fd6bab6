"""Transfers to sinks that are slow, stuck, closed midway, or would kill the process; of a cut segment."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import IMPORTED
from transfers import PAIRS, Sink, fill, open_descriptors, served, sink_of, stored, transfer
from waiting import PATIENCE, until

import segstore

pytestmark = pytest.mark.kind("limits")

TOTAL = 12_000_000  # more than the buffers of any sink hold
WAITING = [(kind, method) for kind, method in PAIRS if kind != "file"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[segstore.PartitionLog]:
    with segstore.open(tmp_path_factory.mktemp("sinks") / "store") as store:
        store.create_topic("t", config={"segment.bytes": 5_000_000})
        log = store.partition("t", 0)
        fill(log, random.Random(seed), TOTAL, 65536)
        yield log


def is_full(sink: Sink) -> bool:
    """Return whether the sink takes nothing for 200 ms: the transfer is stuck. POLLERR, which poll(2) always
    reports, is no room: a send of MSG_ZEROCOPY that is stuck leaves the notices of earlier ones unread.
    """
    poll = select.poll()
    poll.register(sink.fd, select.POLLOUT)

    def takes_bytes() -> bool:
        return any(events & select.POLLOUT for _, events in poll.poll(0))

    return not any(takes_bytes() or threading.Event().wait(0.02) for _ in range(10))


@pytest.mark.parametrize(("kind", "method"), WAITING)
def test_a_slow_reader_gets_every_byte(
    log: segstore.PartitionLog, kind: str, method: str, tmp_path: Path
) -> None:
    """It begins to read when nothing more goes, and a piece at a time."""
    with sink_of(kind, tmp_path) as sink:
        sink.start(waits=True, most=100_003)
        let_go = threading.Timer(0.2, sink.go.set)
        let_go.start()
        sent, after = transfer(log, sink, 0, 600_000 if "tiny" in kind else 2 * TOTAL, method)
        let_go.join()
        got = sink.close()
    assert got == stored(log)[:sent]
    assert "tiny" in kind or (sent, after) == (log.size, log.end_offset)


@pytest.mark.parametrize(("kind", "method"), WAITING)
def test_a_peer_that_closes_midway_is_told(
    log: segstore.PartitionLog, kind: str, method: str, tmp_path: Path
) -> None:
    with sink_of(kind, tmp_path) as sink:
        before = open_descriptors()
        closing = threading.Timer(0.1, sink.close_other)
        closing.start()
        with pytest.raises(segstore.SinkClosedError) as told:
            transfer(log, sink, 0, 2 * TOTAL, method)
        closing.join()
        assert isinstance(told.value, (BrokenPipeError, ConnectionResetError))
        assert told.value.filename is None
        assert open_descriptors().keys() <= before.keys()


KNOCKED = [("tiny tcp", method) for method in served("tcp")]
"""Such a sink is slow before it is stuck: calls that a signal cuts short have sent a part."""


@pytest.mark.parametrize(
    ("kind", "method", "knocks"),
    [
        *(pytest.param(*pair, False, id="-".join(pair)) for pair in WAITING),
        *(pytest.param(*pair, True, id="-".join(pair) + "-cut short") for pair in KNOCKED),
    ],
)
def test_an_interrupt_gets_through_a_stuck_transfer(
    log: segstore.PartitionLog, kind: str, method: str, knocks: bool, tmp_path: Path
) -> None:
    """Ctrl-C while the reader reads nothing: KeyboardInterrupt, and nothing stays open. It is pressed until
    it gets through: the first may come as the transfer is just about to wait. With `knocks`, signals whose
    handlers return come before.
    """
    before, felt = open_descriptors(), threading.Event()
    main = threading.main_thread().ident or 0

    def is_stuck(sink: Sink) -> bool:
        if knocks:
            signal.pthread_kill(main, signal.SIGUSR1)
        return is_full(sink)

    def feel(*_: object) -> None:
        if not felt.is_set():
            felt.set()
            raise KeyboardInterrupt

    def press(sink: Sink) -> None:
        try:
            until(lambda: is_stuck(sink))
        finally:  # a transfer that nobody interrupts would never end
            while not felt.wait(0.05):
                signal.pthread_kill(main, signal.SIGINT)

    previous = signal.signal(signal.SIGINT, feel)
    knocked = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with sink_of(kind, tmp_path) as sink:
            pressing = threading.Thread(target=press, args=(sink,))
            pressing.start()
            with pytest.raises(KeyboardInterrupt):
                transfer(log, sink, 0, 2 * TOTAL, method)
            pressing.join()
    finally:
        felt.set()
        signal.signal(signal.SIGINT, previous)
        signal.signal(signal.SIGUSR1, knocked)
    assert open_descriptors() == before


@pytest.mark.parametrize("method", served("tcp"))
def test_a_signal_whose_handler_returns_costs_no_byte(
    log: segstore.PartitionLog, method: str, tmp_path: Path
) -> None:
    seen = threading.Event()
    previous = signal.signal(signal.SIGUSR1, lambda *_: seen.set())

    def knock(sink: Sink) -> None:
        while not seen.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        sink.go.set()

    try:
        with sink_of("tcp", tmp_path) as sink:
            sink.start(waits=True)
            knocking = threading.Thread(target=knock, args=(sink,))
            knocking.start()
            sent, _ = transfer(log, sink, 0, 2 * TOTAL, method)
            knocking.join()
            got = sink.close()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert sent == log.size
    assert got == stored(log)


KILLED = """
import os, signal, sys, segstore
sys.path[:0] = sys.argv[3].split(os.pathsep)
from pathlib import Path
from transfers import sink_of, transfer
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
with segstore.open(sys.argv[1], "r") as store:
    for kind, method in [pair.split("=") for pair in sys.argv[4:]]:
        with sink_of(kind, Path(sys.argv[2])) as sink:
            sink.close_other()
            for _ in range(2):  # of a TCP peer that is gone the first send learns
                try:
                    transfer(store.partition("t", 0), sink, 0, 20_000_000, method)
                except segstore.SinkClosedError:
                    break
            else:
                raise SystemExit(f"{kind} {method}: not told")
assert signal.SIGPIPE not in signal.sigpending() and signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
print("alive")
"""


def test_a_process_that_sigpipe_would_kill_lives(log: segstore.PartitionLog, tmp_path: Path) -> None:
    pairs = [f"{kind}={method}" for kind, method in WAITING]
    run = subprocess.run(
        [sys.executable, "-c", KILLED, log.context.root, tmp_path, os.pathsep.join(IMPORTED), *pairs],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (run.returncode, run.stdout) == (0, "alive\n"), run.stderr


@pytest.mark.parametrize(("kind", "method"), [pair for pair in PAIRS if pair[0] in ("tcp", "unix", "file")])
def test_a_segment_that_was_cut_is_told(tmp_path: Path, kind: str, method: str, rng: random.Random) -> None:
    """Not by a SIGBUS, and never by a transfer that ends as if all were well."""
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t", config={"index.interval.bytes": 1 << 30})
        log = store.partition("t", 0)
        log.append_batch([rng.randbytes(1000) for _ in range(300)], batch_bytes=400_000)
        path = Path(log.source.view.segments[0].path)
        with sink_of(kind, tmp_path) as sink:
            sink.start()
            os.truncate(path, 100_000)
            with pytest.raises(segstore.StorageError, match="became shorter") as told:
                transfer(log, sink, 0, 1 << 20, method)
            assert told.value.filename == str(path)
            sink.close()
