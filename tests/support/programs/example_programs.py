"""Programs of examples/ that run while a test talks to them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from places import REPOSITORY, environment
from waiting import PATIENCE

EXAMPLES = REPOSITORY / "examples"


@contextmanager
def started(*arguments: object, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A program that runs; at the end it is killed where it does so still."""
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # as in a terminal
    pipes = {"stdout": subprocess.PIPE, "text": True, "cwd": EXAMPLES}
    env = {**environment(), "PYTHONUNBUFFERED": "1", **variables}
    with subprocess.Popen([sys.executable, *map(str, arguments)], env=env, **pipes, **heed) as program:
        try:
            yield program
        finally:
            program.kill()


def said(program: subprocess.Popen[str], pattern: str) -> list[str]:
    """Read lines until one matches; return its groups."""
    for line in out(program):
        if found := re.fullmatch(pattern, line.strip()):
            return list(found.groups())
    raise AssertionError(f"{pattern} was not said")


def out(program: subprocess.Popen[str]) -> IO[str]:
    assert program.stdout is not None
    return program.stdout


def ended(program: subprocess.Popen[str], number: signal.Signals) -> int:
    """Send a signal; return the exit status."""
    program.send_signal(number)
    return program.wait(PATIENCE)
