"""What those who started a run have set, and tests need otherwise. Writes nothing.

`nohup` and a shell's background leave signals ignored, and so would be all that tests start and end by them;
a supervisor may block some, or ignore SIGCHLD, without which nobody knows how a child ended. This process
goes on living through what it found ignored: it handles that by doing nothing, and a handler is not inherited
by programs. Whoever closes stdin gives its number to the first file that a test opens.
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
"""Names of the signals that were ignored when this process began, or its controller."""


def _pass_by(number: int, frame: FrameType | None) -> None:
    """Of a signal that was ignored."""


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
    """Workers of xdist are programs: what their controller handles has its default there."""
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
