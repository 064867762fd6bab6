"""How near `PartitionLog.transfer` comes to a bare loop of os.sendfile over the same file, in the page cache.

The receiver is another process, which reads and drops; the engine finds its batches, the loop knows where
they lie. Rounds go by turns; what is compared is the time until the receiver has all. /dev/null takes what is
sent at once: there the look-up alone is compared with the bare call. Where a receiver sleeps until bytes
come, each send also pays for waking it, the more often the longer the sender takes.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import SEED, Results, by_turns, new_log

import segstore

TARGET = 0.95
BATCH = 16384
SMALL_TARGET = {"tcp": 0.6, "unix": 0.6, "pipe": 0.6, "null": 0.0}
"""For 4 KiB; where it is 0, and for 100 bytes, the figure alone is told."""
SMALL_SENDS, SMALL_LOG = 10_000, 4_096
LOG_BYTES = 128 << 20
ROUND_BYTES = 512 << 20
DRAIN = """
import os, socket, sys
data, said = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
room = bytearray(1 << 20)
while wanted := int.from_bytes(said.recv(8), "big"):
    while wanted:
        got = os.readv(data, [room])
        if not got:
            sys.exit()
        wanted -= got
    said.send(b"!")
"""


class Receiver:
    """A process that reads as many bytes as it is told to, and then says so."""

    def __init__(self, sink: Any, said: socket.socket) -> None:
        self.sink, self._said = sink, said

    def expect(self, count: int) -> None:
        self._said.send(count.to_bytes(8, "big"))

    def wait(self) -> None:
        assert self._said.recv(1) == b"!"


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        return ours, listening.accept()[0]


def pipe_pair() -> tuple[Any, Any]:
    reading, writing = os.pipe()
    return os.fdopen(writing, "wb", 0), os.fdopen(reading, "rb", 0)


PAIRS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "tcp": tcp_pair,
    "unix": socket.socketpair,
    "pipe": pipe_pair,
}


class Nobody(Receiver):
    """What is sent to /dev/null is gone at once."""

    def expect(self, count: int) -> None:
        pass

    def wait(self) -> None:
        pass


@contextmanager
def receiver(kind: str) -> Iterator[Receiver]:
    if kind == "null":
        with open(os.devnull, "wb", 0) as null, socket.socket() as unused:
            yield Nobody(null, unused)
        return
    ours, theirs = PAIRS[kind]()
    said, says = socket.socketpair()
    with ours, theirs, said, says:
        fds = theirs.fileno(), says.fileno()
        command = [sys.executable, "-I", "-S", "-c", DRAIN, *map(str, fds)]
        with subprocess.Popen(command, pass_fds=fds) as process:
            theirs.close()
            says.close()
            try:
                yield Receiver(ours, said)
            finally:
                said.close()
                ours.close()
                process.wait()


def fill(store: segstore.Store) -> segstore.PartitionLog:
    """LOG_BYTES in batches of exactly BATCH bytes, one record each, so that offsets count batches."""
    log = new_log(store, "transfer")
    value = np.random.default_rng(7).bytes(BATCH - 61 - 11)
    for _ in range(LOG_BYTES // BATCH // 1024):
        log.append_batch([value] * 1024, batch_bytes=BATCH)
    assert log.size == LOG_BYTES
    log.flush()
    return log


@pytest.mark.parametrize("size", [1 << 20, 16 << 20])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_sendfile_of_the_engine(
    benchmark: Any, store: segstore.Store, results: Results, kind: str, size: int
) -> None:
    log = fill(store)
    (path,) = Path(store.path, "transfer-0").glob("*.log")
    starts = [at % LOG_BYTES for at in range(0, ROUND_BYTES, size)]
    with receiver(kind) as reader, open(path, "rb") as file:
        sink, source = reader.sink.fileno(), file.fileno()

        def engine() -> None:
            reader.expect(ROUND_BYTES)
            for start in starts:
                sent, _ = log.transfer(sink, start // BATCH, size)
                assert sent == size
            reader.wait()

        def bare() -> None:
            reader.expect(ROUND_BYTES)
            for start in starts:
                at, stop = start, start + size
                while at < stop:
                    at += os.sendfile(sink, source, at, stop - at)
            reader.wait()

        ratio, theirs, ours = by_turns(benchmark, engine, bare, rounds=15)
    note = f"{ROUND_BYTES / ours / 1e9:.2f} GB/s against {ROUND_BYTES / theirs / 1e9:.2f}"
    results.add(benchmark, f"transfer {size >> 20} MiB, {kind}", ratio, TARGET, "x bare", True, note)


@pytest.mark.parametrize("size", [100, 4096])
@pytest.mark.parametrize("kind", SMALL_TARGET)
def test_small_ranges(benchmark: Any, store: segstore.Store, results: Results, kind: str, size: int) -> None:
    """A batch of so many bytes, at a random offset, a transfer."""
    log, rng = new_log(store, "transfer"), random.Random(SEED)
    values = [rng.randbytes(size - 61 - (9 if size > 200 else 7)) for _ in range(SMALL_LOG)]
    log.append_batch(values, batch_bytes=1)
    assert log.size == SMALL_LOG * size
    (path,) = Path(store.path, "transfer-0").glob("*.log")
    starts = [rng.randrange(SMALL_LOG) for _ in range(SMALL_SENDS)]
    with receiver(kind) as reader, open(path, "rb") as file:
        sink, source = reader.sink.fileno(), file.fileno()

        def engine() -> None:
            reader.expect(SMALL_SENDS * size)
            send = log.transfer
            for start in starts:
                assert send(sink, start, size)[0] == size
            reader.wait()

        def bare() -> None:
            reader.expect(SMALL_SENDS * size)
            for start in starts:
                at, stop = start * size, start * size + size
                while at < stop:
                    at += os.sendfile(sink, source, at, stop - at)
            reader.wait()

        ratio, theirs, ours = by_turns(benchmark, engine, bare, rounds=9)
    note = f"{ours / SMALL_SENDS * 1e6:.1f} to {theirs / SMALL_SENDS * 1e6:.1f} us"
    target = SMALL_TARGET[kind] if size == 4096 else 0
    results.add(benchmark, f"transfer {size:,} bytes, {kind}", ratio, target, "x bare", True, note)
