"""The part of `Files` that moves bytes of a file to a sink (a socket, pipe or file), a system call each.

On disk: reads only. Threads: any; a window, pipe or ring is one thread's at a time.
Errors are the system's: one about the source carries its path, one about the sink carries none. Where the
sink takes less than was asked for, the count says so; BlockingIOError where it takes nothing for now;
InterruptedError after a signal, whose handler has run by the time that the caller tries again.
"""

from __future__ import annotations

from segstore.sending.plain import SinkInfo
from segstore.sending.probes import why_not
from segstore.sending.results import Source
from segstore.sending.windows import Notices, Windows

__all__ = ["Notices", "Sending", "SinkInfo", "Source"]


class Sending(Windows):
    """Sinks are descriptors; positions and counts in bytes."""

    def why_not(self, method: str) -> str | None:
        """None where this system has what a method of transfers needs, else the call that fails, and how."""
        return why_not(method)
