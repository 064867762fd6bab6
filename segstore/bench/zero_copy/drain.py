"""The receiver's process: reads bytes as fast as it can, and drops them.

Threads: one. It is run by its path, as `python -I -S drain.py DATA CONTROL` with two descriptors. It imports
nothing of segstore, so that it starts at once. CONTROL, a socket, brings the number of bytes to read from
DATA (8 bytes, big-endian); the answer is one byte, sent when these bytes have come. The process exits when
DATA or CONTROL is closed, so also when its parent exits.
"""

from __future__ import annotations

import os
import socket
import sys

BUFFER = 256 << 10
"""Bytes read at a time: more than a pipe holds, and few enough for a core's own cache."""


def drain(data: int, control: socket.socket) -> None:
    """Read and drop the bytes of each request, and answer it, until DATA or CONTROL is closed."""
    whole = memoryview(bytearray(BUFFER))
    while asked := control.recv(8, socket.MSG_WAITALL):
        left = int.from_bytes(asked, "big")
        while left:
            got = os.readv(data, [whole if left >= BUFFER else whole[:left]])
            if not got:
                return
            left -= got
        try:
            control.send(b"\0")
        except BrokenPipeError:
            return


if __name__ == "__main__":
    drain(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
