"""Kills a writer: a child process appends until half of the flights are acknowledged, then gets SIGKILL.

Threads: one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from segstore.demo.flights import PARTITIONS
from segstore.demo.screen import Screen
from segstore.errors import StorageError


def killed_midway(screen: Screen, path: str, records: int) -> list[int]:
    """Return for each partition the offset up to which appends were acknowledged before the child was
    killed.
    """
    with screen.step("A kill", "another process appends, and is killed with SIGKILL midway"):
        command = [sys.executable, "-m", "segstore.demo.child", os.path.abspath(path), str(records)]
        ends = [0] * PARTITIONS
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
            assert child.stdout is not None
            try:
                for line in child.stdout:  # to the end: what the child printed before it died counts too
                    partition, end = map(int, line.split())
                    ends[partition] = end
                    if sum(ends) >= records // 2 and child.poll() is None:
                        child.kill()
            finally:
                child.kill()
        if child.returncode != -signal.SIGKILL:
            raise StorageError(f"the appending process ended by itself, with {child.returncode}")
        screen.say(f"process {child.pid} was killed after {sum(ends):,} records were acknowledged")
    return ends
