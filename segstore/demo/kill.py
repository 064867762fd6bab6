"""Kills a writing process: a child process appends flights, and gets SIGKILL when half of the flights are
acknowledged.

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
    """Start the process that `killed_midway` kills, and yield the process. The child loads the flights at
    once, while the calling process loads them too. The child opens the store at `path` when `killed_midway`
    tells it to append.
    """
    command = [sys.executable, "-m", "segstore.demo.child", os.path.abspath(path), str(records)]
    pipe = subprocess.PIPE
    # The child has a session of its own, so that the terminal sends Ctrl-C only to the demo, which then kills
    # the child.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as child:
        try:
            yield child
        finally:
            child.kill()


def killed_midway(screen: Screen, child: subprocess.Popen[str], records: int) -> list[int]:
    """Tell the `victim` to append, and kill it midway. Return a list of offsets by partition: the offset
    after the last acknowledged record.
    """
    with screen.step("A kill", "another process appends, and is killed with SIGKILL midway"):
        assert child.stdin is not None
        assert child.stdout is not None
        ends = [0] * PARTITIONS
        # If the child has exited, the call of `wait` below reports this.
        with suppress(BrokenPipeError):
            os.write(child.stdin.fileno(), b"go\n")
        # The loop reads to the end of the output, also after the kill.
        for line in child.stdout:
            partition, end = map(int, line.split())
            ends[partition] = end
            if sum(ends) >= records // 2 and child.poll() is None:
                child.kill()
        child.kill()
        if child.wait() != -signal.SIGKILL:
            raise StorageError(f"the appending process ended by itself, with {child.returncode}")
        screen.say(f"process {child.pid} was killed after {sum(ends):,} records were acknowledged")
    return ends
