"""What a wake-up costs at least: a pipe between two processes, and hand-overs between threads.

A hand-over is a `queue.SimpleQueue`, which is written in C: the quickest that Python has between threads. On
disk nothing. Each sender pauses before each of its `n` messages, as the log's senders do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
clock = time.monotonic_ns
PAUSE, SIZE = 0.001, 100
READER = f"""
import os, sys, time
fd, n = int(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
seen = []
for _ in range(n):
    os.read(fd, {SIZE})
    seen.append(time.monotonic_ns())
print(*seen)
"""


def paced(n: int, send: Callable[[], Any]) -> Times:
    """When each message was handed over, ns."""
    sent = np.zeros(n, np.int64)
    for i in range(n):
        time.sleep(PAUSE)
        sent[i] = clock()
        send()
    return sent


def by_pipe(n: int) -> Times:
    """Nanoseconds from os.write to the return of os.read in another process, which waits."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-c", READER, str(read_end), str(n)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=(read_end,)) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        sent = paced(n, lambda: os.write(write_end, bytes(SIZE)))
        seen = np.array(child.stdout.read().split(), np.int64)
    os.close(read_end)
    os.close(write_end)
    return seen - sent


def by_threads(n: int, hand_overs: int) -> Times:
    """Nanoseconds for so many hand-overs, one after the other, each to another thread."""
    queues = [SimpleQueue[None]() for _ in range(hand_overs)]
    seen = np.zeros(n, np.int64)

    def pass_on(at: int) -> None:
        for i in range(n):
            queues[at].get()
            if at + 1 < hand_overs:
                queues[at + 1].put(None)
            else:
                seen[i] = clock()

    threads = [threading.Thread(target=pass_on, args=(at,)) for at in range(hand_overs)]
    for thread in threads:
        thread.start()
    sent = paced(n, lambda: queues[0].put(None))
    for thread in threads:
        thread.join()
    return seen - sent
