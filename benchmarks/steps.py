"""Runs a step of the measurements, a process, to its end. On disk: nothing of its own. Threads: one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from segstore.cli.signals import EndedError, ended_later

ROOT = Path(__file__).parents[1]
PATIENCE, LAST = 5.0, 30.0  # seconds until an interrupted step gets a signal of ours, and until it is killed


class Step(NamedTuple):
    """A command, and what its environment has on top."""

    command: list[str]
    environment: Mapping[str, str] = {}


def environment() -> dict[str, str]:
    """This one's, without a test run's of several processes: pytest-benchmark would measure nothing."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}


def finished(one: Step) -> int:
    """Its exit status. KeyboardInterrupt once it has ended, and cleaned up."""
    with ended_later():
        process = subprocess.Popen(one.command, cwd=ROOT, env={**environment(), **one.environment})
    try:
        return process.wait()
    except KeyboardInterrupt as error:
        # The terminal's Ctrl-C reaches the step too, and a second one would disturb what it then does.
        _end(process, 0.0 if isinstance(error, EndedError) else PATIENCE)
        raise


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """By itself, by Ctrl-C, by force."""
    for seconds, number in ((patience, signal.SIGINT), (LAST, signal.SIGKILL)):
        try:
            process.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            process.send_signal(number)
    process.wait()
