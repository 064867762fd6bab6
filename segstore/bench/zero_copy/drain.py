"""The receiver's process: reads what it is sent as fast as it can, and drops it.

Threads: one. Run by path as `python -I -S drain.py DATA CONTROL`, two descriptors: it imports nothing of
segstore, so that it starts at once. CONTROL, a socket, brings 8 bytes, big-endian: how many bytes to read
from DATA; one byte goes back once they have come. It ends when either of the two is closed, so with its
parent.
"""

from __future__ import annotations

import os
import socket
import sys

BUFFER = 256 << 10
"""Bytes read at a time: more than a pipe holds, and little enough to stay in a core's own cache."""


def drain(data: int, control: socket.socket) -> None:
    """Answer every request until the other side has gone."""
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
