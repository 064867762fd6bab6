"""MSG_ZEROCOPY: the network card reads from the page cache, the kernel copies nothing; to TCP only.

On disk: reads only. Threads: a sender is one transfer's; nobody else may read the socket's error queue
meanwhile. A window is let go of once the socket has told, by its error queue, that the kernel needs it no
more: when the peer has acknowledged it. After an error or an interrupt it goes at once, which harms nothing:
the kernel holds the pages, and a log's bytes don't change; notices that come later stay in the queue.
"""

from __future__ import annotations

import errno
import time

from segstore.files import Files, Handle
from segstore.storage.transfer.mapped import Mapped
from segstore.storage.transfer.sinks import Sink

_LAST_LOOKS, _PAUSE = 100, 0.01
"""How often, and after how many seconds each, a dead connection is asked for notices that may come yet."""


class ZeroCopy(Mapped):
    """Sets SO_ZEROCOPY of the caller's socket, and puts it back as it was."""

    def __init__(self, files: Files, sink: Sink) -> None:
        super().__init__(files, sink)
        self._pending = 0  # sends that have not been told of
        self._was_set = files.set_zerocopy(self.sink, True)

    def send(self, source: Handle, position: int, count: int) -> int:
        while True:
            there = min(self.reach(source, position, count), self.most)
            try:
                sent = self.files.send_zerocopy(self.sink, self.window, source, position, there)
                break
            except OSError as error:
                if not self._make_room(error):
                    raise
        self._pending += 1
        if sent == count or self.has_passed(position + sent):
            self._settle()
        return sent

    def _make_room(self, error: OSError) -> bool:
        """Whether to try again: pending sends took the room, or one was too large."""
        if isinstance(error, BlockingIOError):
            self._look()  # a socket that has notices to tell of is never waited for
            return False
        if error.errno == errno.ENOBUFS and self._pending:
            self._settle()
            return True
        return self.take_less(error)

    def _settle(self) -> None:
        """Wait until the kernel needs nothing of what was sent."""
        looks = 0
        while self._pending > 0 and looks < _LAST_LOOKS:
            if self._look():
                continue
            if self.files.wait_for(self.sink, 0) and not self._look():
                # An error of the connection itself, which stays: its last notices are on their way.
                looks += 1
                time.sleep(_PAUSE)
        self._pending = 0

    def _look(self) -> int:
        sends = self.files.read_notices(self.sink).sends
        self._pending -= sends
        return sends

    def close(self) -> None:
        try:
            if self._pending > 0:
                self._look()
            if not self._was_set:
                self.files.set_zerocopy(self.sink, False)
        except OSError:
            pass  # the sink was closed meanwhile: what is told is the first error
        finally:
            super().close()
