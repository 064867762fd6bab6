"""The part of `Files` that moves bytes of a file to a sink (a socket, pipe or file), a system call each.

On disk: reads only. Threads: any; a window or pipe is one thread's at a time.
Errors are the system's: one about the source carries its path, one about the sink carries none. Where the
sink takes less than was asked for, the count says so; BlockingIOError where it takes nothing for now;
InterruptedError after a signal, whose handler has run by the time that the caller tries again.
"""

from __future__ import annotations

from segstore.sending.results import SentFile, sent
from segstore.sending.sendfile import SendfileCalls, SinkInfo

__all__ = ["SendfileCalls", "SentFile", "SinkInfo", "sent"]
