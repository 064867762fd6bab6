"""The methods of `Files` that move bytes of a file to a sink (a socket, pipe or file). Each method makes one
system call.

On disk: reads only. Threads: any; only one thread at a time may use a pipe, or a window (a mapped part of a
file).

Errors are those of the system call. An OSError of the source has the source's path; an OSError of the sink
has no path. If the sink takes fewer bytes than requested, the smaller count is returned. Raises
BlockingIOError if the sink takes no byte now, and InterruptedError after a signal; the signal's handler has
run when the caller tries again.
"""

from __future__ import annotations

from segstore.sending.results import SentFile, sent
from segstore.sending.sendfile import SendfileCalls, SinkInfo

__all__ = ["SendfileCalls", "SentFile", "SinkInfo", "sent"]
