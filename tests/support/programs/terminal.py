"""Runs a command in a terminal of its own, a pty of some size; tests read what it shows, and type keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from types import TracebackType

from cli import COMMAND
from waiting import PATIENCE

SECONDS = 2 * PATIENCE  # enough for a whole demo
CTRL_C = b"\x03"


class Terminal:
    """Runs `segstore` with these arguments. It is a context manager that leaves no process behind."""

    def __init__(self, *arguments: object, columns: int = 80, lines: int = 24, **env: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        kept = {
            k: v for k, v in os.environ.items() if k not in ("SEGSTORE_PATH", "NO_COLOR", "COLUMNS", "LINES")
        }
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**kept, "TERM": "xterm-256color", "LANG": "C.UTF-8", **env},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.shown = b""

    def text(self) -> str:
        """Return the output so far, with its control sequences."""
        return self.shown.decode(errors="replace")

    def plain(self) -> str:
        """Return the output so far without control sequences: the frames follow each other."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text())

    def read_until(self, seen: Callable[[str], object]) -> None:
        """Read until `seen(self.plain())` is true."""
        end = time.monotonic() + SECONDS
        while not seen(self.plain()):
            assert self._read(end), f"the command has ended: {self.text()[-2000:]}"

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> int:
        """Read to the end, and return the exit status."""
        end = time.monotonic() + SECONDS
        while self._read(end):
            pass
        return self.process.wait(SECONDS)

    def _read(self, end: float) -> bool:
        output = select.poll()  # takes any descriptor: a test run may have more than 1,024
        output.register(self._master, select.POLLIN)
        assert output.poll(max(end - time.monotonic(), 0) * 1000), f"nothing more came: {self.text()[-2000:]}"
        try:
            part = os.read(self._master, 65536)
        except OSError:  # EIO: the other side is closed
            return False
        self.shown += part
        return bool(part)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def _take_terminal() -> None:
    """Make standard input the child's controlling terminal, on which Ctrl-C is typed, and let Ctrl-C
    end it.
    """
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
