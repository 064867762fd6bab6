"""The output of the demo: numbered steps, printed on standard output. Threads: one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from segstore.cli.output import console

INDENT = "   "


class Screen:
    """Prints the demo's output: in colour if standard output is a terminal, else as plain text."""

    def __init__(self) -> None:
        self._out, self._number = console(), 0

    def title(self, head: str, text: str) -> None:
        self._out.print(Text.assemble((head, "bold magenta"), "  ", text))

    @contextmanager
    def step(self, head: str, text: str = "") -> Iterator[None]:
        """Print the head of a numbered step, and at the end of the `with` block the time that the block
        took.
        """
        self._number += 1
        self._out.print()
        self._out.print(Text.assemble((f"{self._number}. {head}", "bold"), "  ", (text, "dim")))
        started = time.perf_counter()
        yield
        self._out.print(Text(f"{INDENT}{time.perf_counter() - started:.2f} s", style="dim"))

    def say(self, text: str, style: str = "") -> None:
        self._out.print(Text(INDENT + text, style=style))

    def good(self, text: str) -> None:
        """Print a fact that the demo has verified."""
        self.say(f"✓ {text}", "green")

    def example(self, key: str, value: str) -> None:
        self._out.print(Text.assemble(INDENT, (key, "bold"), "  ", (value, "dim")))

    @property
    def interactive(self) -> bool:
        """Return whether the output is a terminal that can overwrite lines."""
        return sys.stdout.isatty() and self._out.is_terminal and not self._out.is_dumb_terminal

    @contextmanager
    def frames(self) -> Iterator[Callable[[RenderableType], None]]:
        """Yield a function that shows a frame, and replaces the preceding frame. The last frame stays on the
        terminal.
        """
        with Live(console=self._out, auto_refresh=False, vertical_overflow="crop") as shown:
            yield lambda frame: shown.update(frame, refresh=True)

    def table(self, made: Table) -> None:
        self._out.print(made)
