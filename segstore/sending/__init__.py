"""The part of `Files` that moves bytes of a file to a sink (a socket, pipe or file); each method makes one
system call.

On disk: reads only. Threads: any; a window or pipe belongs to one thread at a time.

Errors are the system's: an error of the source carries its path, an error of the sink has no path. If the
sink takes fewer bytes than requested, the returned count is smaller. BlockingIOError is raised if the sink
takes no byte now, InterruptedError after a signal, whose handler runs before the caller can try again.
"""

from __future__ import annotations

from segstore.sending.results import SentFile, sent
from segstore.sending.sendfile import SendfileCalls, SinkInfo

__all__ = ["SendfileCalls", "SentFile", "SinkInfo", "sent"]
