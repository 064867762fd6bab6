"""Subclasses of rich's console and text for the commands. This module is separate, so that rich is imported
only by commands that print with rich. Nothing is on disk. Threads: one.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.containers import Lines
from rich.text import Text


class TerminalConsole(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # `app` handles this error.


class PipedConsole(TerminalConsole):
    """A console for pipes. It omits the blanks that rich writes at the ends of a table's lines."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print like rich.console.Console.print, without trailing blanks."""
        with self.capture() as captured:
            super().print(*objects, **how)
        self.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


class WrappedCell(Text):
    """A cell's text. If a line must be broken, it is broken after a separator if possible, and not within a
    name.
    """

    def wrap(self, console: Console, width: int, **how: Any) -> Lines:
        """Return the lines of the text, at most `width` cells wide."""
        text = Text("\n".join(folded(self.plain, width)), style=self.style)
        return text.wrap(console, width, **how)


def folded(text: str, width: int) -> list[str]:
    """Return lines of at most `width` characters. A line is broken at a blank. If there is no blank in a
    line, it is broken after one of `,=._-`. If a line has none of these characters either, it is broken
    anywhere.
    """
    lines, width = [], max(width, 1)
    while len(text) > width:
        blank = text.rfind(" ", 0, width + 1)
        cut = blank + 1 or max(text.rfind(mark, 0, width) + 1 for mark in ",=._-") or width
        lines.append(text[:cut].rstrip())
        text = text[cut:].lstrip()
    return [*lines, text]
