"""Rich's console and text as the commands want them. Apart from `output`, since rich is imported only by a
command that prints with it. On disk: nothing. Threads: one.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.containers import Lines
from rich.text import Text


class TerminalConsole(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # `app` handles it


class PipedConsole(TerminalConsole):
    """Leaves out the blanks at the ends of lines, which fill the columns of tables."""

    def print(self, *objects: Any, **how: Any) -> None:
        """See rich.console.Console."""
        with self.capture() as captured:
            super().print(*objects, **how)
        self.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


class WrappedCell(Text):
    """A text that is broken behind a separator, where a line has one, rather than within a name."""

    def wrap(self, console: Console, width: int, **how: Any) -> Lines:
        """See rich.text.Text."""
        text = Text("\n".join(folded(self.plain, width)), style=self.style)
        return text.wrap(console, width, **how)


def folded(text: str, width: int) -> list[str]:
    """Return lines of at most `width` characters: broken at blanks, else behind one of `,=._-`, else
    anywhere.
    """
    lines, width = [], max(width, 1)
    while len(text) > width:
        blank = text.rfind(" ", 0, width + 1)
        cut = blank + 1 or max(text.rfind(mark, 0, width) + 1 for mark in ",=._-") or width
        lines.append(text[:cut].rstrip())
        text = text[cut:].lstrip()
    return [*lines, text]
