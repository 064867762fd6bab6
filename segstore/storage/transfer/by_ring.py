"""io_uring's send_zc: the network card reads from the page cache; to TCP only.

On disk: reads only. Threads: a sender, with its ring, is one transfer's.
A window is let go of once the ring has told that the kernel needs it no more; after an error or an interrupt,
once what was under way is cancelled.
"""

from __future__ import annotations

from segstore._native import ffi, lib
from segstore.files import Files, Handle
from segstore.storage.transfer.mapped import Mapped
from segstore.storage.transfer.sinks import Sink


class ByRing(Mapped):
    """One request at a time, of a whole window."""

    def __init__(self, files: Files, sink: Sink) -> None:
        super().__init__(files, sink)
        self._ring = ffi.gc(ffi.new("seg_ring *"), lib.seg_ring_close)
        files.open_ring(self._ring)

    def send(self, source: Handle, position: int, count: int) -> int:
        while True:
            there = min(self.reach(source, position, count), self.most)
            try:
                return self.files.send_by_ring(self._ring, self.sink, self.window, source, position, there)
            except OSError as error:
                if not self.take_less(error):
                    raise

    def close(self) -> None:
        self.files.close_ring(self._ring)
        super().close()
