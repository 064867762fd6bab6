"""Resets what the program that started a run has set, where tests need something else. Writes nothing.

With `nohup`, and in a shell's background, some signals are ignored. Programs that tests start would inherit
that, and could not be ended by these signals. A supervisor may also block signals, or ignore SIGCHLD, without
which nobody learns how a child ended. This process survives the signals that it found ignored by a handler
that does nothing, since programs do not inherit handlers. If stdin is closed, the first file that a test
opens would get its descriptor.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

import pytest

ENDING = (signal.SIGHUP, signal.SIGTERM)
NEEDED = {signal.SIGINT, signal.SIGCHLD, signal.SIGALRM, signal.SIGPIPE, *ENDING}
_passed_by: list[str] = []
"""The names of the signals that were ignored when this process or its controller began."""


def _pass_by(number: int, frame: FrameType | None) -> None:
    """Handle a signal that was ignored before, by doing nothing."""


def pytest_configure(config: pytest.Config) -> None:
    ignored = [one.name for one in ENDING if signal.getsignal(one) is signal.SIG_IGN]
    _passed_by[:] = getattr(config, "workerinput", {}).get("ignored signals", ignored)
    for name in _passed_by:
        signal.signal(signal.Signals[name], _pass_by)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NEEDED)
    _hold_stdin()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the ignored signals to a worker of xdist: it is a program, in which they have their defaults."""
    node.workerinput["ignored signals"] = _passed_by


def _hold_stdin() -> None:
    try:
        os.fstat(0)
    except OSError:
        if (opened := os.open(os.devnull, os.O_RDONLY)) != 0:
            os.dup2(opened, 0)
            os.close(opened)
    if sys.__stdin__ is None:
        sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
