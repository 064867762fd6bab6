"""How near `PartitionLog.transfer` comes to a bare loop of os.sendfile over the same file, in the page cache.

The receiver is another process, which reads and drops; the engine finds its batches, the loop knows where
they lie. Rounds go by turns; what is compared is the time until the receiver has all.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Results, by_turns, new_log

import segstore

TARGET = 0.95
BATCH = 16384
LOG_BYTES = 128 << 20
ROUND_BYTES = 512 << 20
DRAIN = """
import socket, sys
data, said = socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
room = bytearray(1 << 20)
while wanted := int.from_bytes(said.recv(8), "big"):
    while wanted:
        wanted -= data.recv_into(room)
    said.send(b"!")
"""


class Receiver:
    """A process that reads as many bytes as it is told to, and then says so."""

    def __init__(self, sink: socket.socket, said: socket.socket) -> None:
        self.sink, self._said = sink, said

    def expect(self, count: int) -> None:
        self._said.send(count.to_bytes(8, "big"))

    def wait(self) -> None:
        assert self._said.recv(1) == b"!"


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        return ours, listening.accept()[0]


@contextmanager
def receiver(kind: str) -> Iterator[Receiver]:
    ours, theirs = tcp_pair() if kind == "tcp" else socket.socketpair()
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
