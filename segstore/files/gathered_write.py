"""Gathered writes: what lies one behind the other in one file is written by one call of the system.

Threads: one at a time.
"""

from __future__ import annotations

from segstore.files.atomic import Whole
from segstore.files.handle import Handle

Write = tuple[Handle, memoryview, int]
"""An open file, the bytes to write, and their position in it."""


class GatheredWrite(list[Write]):
    """Writes that nobody has made yet. Each begins where the one before ends, in the same file."""

    def drain(self, files: Whole) -> None:
        """Make the writes. Raises OSError; a part may be written then."""
        if len(self) == 1:
            files.pwrite(*self[0])
        elif self:
            handle, _, position = self[0]
            files.pwritev(handle, [data for _, data, _ in self], position)
        self.clear()
