"""Servers that do no more than answer with a stretch of a file: `sendfile`, and `copy` by pread and send.

    python -m benchmarks.serve.bare sendfile PATH

prints its port, and answers one connection after the other, until its input ends. A request is a position and
a count, two int64; an answer is the count as an int32, and the bytes. On disk: reads PATH. Threads: one, and
one that waits for the input's end.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.steps import ROOT

REQUEST = struct.Struct(">qq")
_SIZE = struct.Struct(">i")
_COPIED = 1 << 16
"""Bytes of a read, as a program's buffer has them."""


def request(position: int, count: int) -> bytes:
    return REQUEST.pack(position, count)


def by_sendfile(connection: socket.socket, fd: int, position: int, count: int) -> None:
    connection.send(_SIZE.pack(count), socket.MSG_MORE)
    end = position + count
    while position < end:
        position += os.sendfile(connection.fileno(), fd, position, end - position)


def by_copy(connection: socket.socket, fd: int, position: int, count: int) -> None:
    connection.send(_SIZE.pack(count), socket.MSG_MORE)
    buffer, end = memoryview(bytearray(_COPIED)), position + count
    while position < end:
        got = os.preadv(fd, [buffer[: end - position]], position)
        connection.sendall(buffer[:got])
        position += got


WAYS = {"sendfile": by_sendfile, "copy": by_copy}


def serve(way: str, path: str) -> None:
    answer, fd = WAYS[way], os.open(path, os.O_RDONLY)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                while data := connection.recv(REQUEST.size, socket.MSG_WAITALL):
                    answer(connection, fd, *REQUEST.unpack(data))


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


@contextmanager
def serving(way: str, path: Path) -> Iterator[tuple[int, tuple[str, int]]]:
    """(process id, address)."""
    command = [sys.executable, "-m", "benchmarks.serve.bare", way, str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.pid, ("127.0.0.1", int(process.stdout.readline()))
        finally:
            process.stdin.close()


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    serve(*sys.argv[1:])
