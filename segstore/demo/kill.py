"""Kills a writer: a child process appends until half of the flights are acknowledged, then gets SIGKILL.

Threads: one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from segstore.demo.flights import PARTITIONS
from segstore.demo.screen import Screen
from segstore.errors import StorageError


@contextmanager
def victim(path: str, records: int) -> Iterator[subprocess.Popen[str]]:
    """Start the process that `killed_midway` kills, and yield the process. It loads the flights at once,
    while this process loads them too. It opens the store at `path` when `killed_midway` lets it append.
    """
    command = [sys.executable, "-m", "segstore.demo.child", os.path.abspath(path), str(records)]
    pipe = subprocess.PIPE
    # The child has a session of its own, so that only the demo gets Ctrl-C, and then kills the child.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as child:
        try:
            yield child
        finally:
            child.kill()


def killed_midway(screen: Screen, child: subprocess.Popen[str], records: int) -> list[int]:
    """Let the `victim` append, and kill it midway; return for each partition the offset after the last
    acknowledged record.
    """
    with screen.step("A kill", "another process appends, and is killed with SIGKILL midway"):
        assert child.stdin is not None
        assert child.stdout is not None
        ends = [0] * PARTITIONS
        with suppress(BrokenPipeError):  # the child has exited, which `wait` below reports
            os.write(child.stdin.fileno(), b"go\n")
        for line in child.stdout:  # reads after the kill too, to the end of the output
            partition, end = map(int, line.split())
            ends[partition] = end
            if sum(ends) >= records // 2 and child.poll() is None:
                child.kill()
        child.kill()
        if child.wait() != -signal.SIGKILL:
            raise StorageError(f"the appending process ended by itself, with {child.returncode}")
        screen.say(f"process {child.pid} was killed after {sum(ends):,} records were acknowledged")
    return ends
