"""The program of the receiver's process. It reads bytes as fast as it can, and drops them. Threads: one. The
program is run by its path, as `python -I -S drain.py DATA CONTROL`; DATA and CONTROL are numbers of
descriptors. It imports nothing of segstore, so that it starts at once. A request is a number of bytes to read
from DATA; the number comes from CONTROL, a socket, as 8 bytes, big-endian. When these bytes were read, the
program sends one byte to CONTROL as its answer. It exits when DATA or CONTROL is closed, and therefore also
when its parent process exits.
"""

from __future__ import annotations

import os
import socket
import sys

BUFFER = 256 << 10
"""The maximum number of bytes in one read: more than the capacity of a pipe, and few enough for the cache of
a single core.
"""


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
