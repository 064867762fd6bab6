"""A standby in a process of its own, for studies of what it costs. On disk: its directory. Threads: one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLLOW = """
import sys, time
import segstore
segstore.follow, segstore.Standby  # imported before the clock runs
began = time.perf_counter()
with segstore.follow(*sys.argv[1:3], mode=sys.argv[3]) as standby:
    standby.wait_caught_up()
    print(time.perf_counter() - began, flush=True)
    sys.stdin.read()
"""


@contextmanager
def following(source: str, directory: Path, mode: str = "async") -> Iterator[float]:
    """Run a standby in another process until the block ends, which begins when the standby has caught up;
    yield the seconds that this took.
    """
    command = [sys.executable, "-c", FOLLOW, source, str(directory), mode]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield float(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()
