"""Shared by the tests of transfers: sinks of every kind with a reader at the other end, and a log to send."""

from __future__ import annotations

import gc
import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from descriptors import never_blocks
from waiting import PATIENCE

import segstore
from segstore._native import ffi, lib
from segstore.bench.zero_copy.contenders import ALL_METHODS, EXHIBITS, ExhibitFiles, send_log
from segstore.storage.transfer import METHODS

TINY = 4096
KINDS = (
    "tcp",
    "tiny tcp",
    "non-blocking tcp",
    "unix",
    "non-blocking unix",
    "pipe",
    "non-blocking pipe",
    "file",
)
AVAILABLE = [name for name, why in segstore.transfer_methods().items() if why is None]
SHOWN = [name for name in EXHIBITS if ExhibitFiles().why_not(name) is None]
"""The exhibits that this machine has, which a log sends by with `transfer` here."""


def served(kind: str) -> list[str]:
    """The methods that serve a kind of sink and that this machine has, exhibits among them."""
    there = [name for name, method in ALL_METHODS.items() if kind.split()[-1] in method.kinds]
    return [name for name in there if name in (*AVAILABLE, *SHOWN)]


def transfer(
    log: segstore.PartitionLog, sink: Any, offset: int, max_bytes: int, method: str
) -> tuple[int, int]:
    """`log.transfer`, or the same by an exhibit."""
    if method in METHODS:
        return log.transfer(sink, offset, max_bytes, method)
    files = log.context.files  # those of a test see the calls
    files = files if isinstance(files, ExhibitFiles) else ExhibitFiles()
    return send_log(log, files, sink, offset, max_bytes, method)


WINDOW = bytes(range(256)) * 40
"""The bytes of the file of `window`."""
OUTSIDE = [(4095, 1), (5000, 101), (5100, 1), (5101, 0), (4096, -1), (-1, 1), (0, 1), (5000, 2**62)]
"""Ranges, as (position, count), that are not within `window`."""


@contextmanager
def window(directory: Path) -> Iterator[Any]:
    """Yield a mapping of bytes 4096 to 5099 of a file, a `seg_window *`."""
    (directory / "file").write_bytes(WINDOW)
    with open(directory / "file", "rb") as file:
        mapped = ffi.new("seg_window *")
        assert lib.seg_map_window(mapped, file.fileno(), 5000, 100) == 0
    yield mapped
    assert lib.seg_unmap_window(mapped) == 0


PAIRS = [(kind, method) for kind in KINDS for method in served(kind)]


@dataclass
class Sink:
    """A sink. Tests write to `fd`; `got` has what arrived, once the sink is closed. A reader that waits goes
    on when `go` is set.
    """

    fd: int
    other: int
    kind: str
    got: bytearray = field(default_factory=bytearray)
    go: threading.Event = field(default_factory=threading.Event)
    most: int = 1 << 16
    reader: threading.Thread | None = None

    def fileno(self) -> int:
        return self.fd

    def start(self, waits: bool = False, most: int = 1 << 16) -> None:
        self.most = most
        if not waits:
            self.go.set()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.go.wait(PATIENCE)
        while self.kind != "file":
            try:
                data = os.read(self.other, self.most)
            except ConnectionResetError:
                break
            if not data:
                break
            self.got += data

    def close(self) -> bytes:
        """Close the sink, and read to the end."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.go.set()
        if self.reader is not None:
            self.reader.join(PATIENCE)
        if self.kind == "file":
            os.lseek(self.other, 0, os.SEEK_SET)
            while data := os.read(self.other, 1 << 20):
                self.got += data
        return bytes(self.got)

    def close_other(self) -> None:
        if self.other >= 0:
            os.close(self.other)
            self.other = -1


def tcp_pair(tiny: bool = False) -> tuple[socket.socket, socket.socket]:
    """Return a connection over the loopback; with `tiny` the sender has the smallest buffer possible."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        ours = socket.socket()
        if tiny:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, TINY)
        ours.connect(listening.getsockname())
        theirs, _ = listening.accept()
    return ours, theirs


def _ends(kind: str, path: Path) -> tuple[int, int]:
    what = kind.split()[-1]
    if what == "file":
        fd = os.open(path / "sink", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        return fd, os.dup(fd)
    if what == "pipe":
        reading, writing = os.pipe()
        return writing, reading
    ours, theirs = tcp_pair(kind == "tiny tcp") if what == "tcp" else socket.socketpair()
    return ours.detach(), theirs.detach()


@contextmanager
def sink_of(kind: str, path: Path) -> Iterator[Sink]:
    """Yield a sink, whose reader is not started."""
    sink = Sink(*_ends(kind, path), kind)
    os.set_blocking(sink.fd, "non-blocking" not in kind)
    try:
        yield sink
    finally:
        sink.go.set()
        if sink.fd >= 0:
            os.close(sink.fd)
        if sink.reader is not None:
            sink.reader.join(PATIENCE)
        sink.close_other()


def fill(log: segstore.PartitionLog, rng: random.Random, total: int, batch_bytes: int = 4096) -> None:
    """Append about `total` bytes of records of many sizes."""
    sizes = [rng.randrange(1, batch_bytes // 2) for _ in range(2 * total // (batch_bytes // 2))]
    log.append_batch([rng.randbytes(size) for size in sizes], batch_bytes=batch_bytes)


def stored(log: segstore.PartitionLog) -> bytes:
    """Return all bytes of the log's files."""
    view = log.source.view
    return b"".join(Path(s.path).read_bytes()[: view.end_of(i)] for i, s in enumerate(view.segments))


def open_descriptors() -> dict[str, str]:
    """Return the pipes and rings that this process has open, by descriptor. Sockets are left out: transfers
    open none, and those of Spark, in the same process, come and go. So do the pipes of `never_blocks`: a
    transfer's own pipe blocks.
    """
    gc.collect()  # frees what earlier tests left
    there = {}
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the store's threads open and close files meanwhile
            what = os.readlink(f"/proc/self/fd/{fd}")
            if not never_blocks(fd):
                there[fd] = what
    return {fd: what for fd, what in there.items() if not what.startswith(("/", "socket:"))}
