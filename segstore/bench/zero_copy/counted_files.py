"""`CountedFiles`: makes the system calls of transfers, and counts them. On disk: reads and writes what
`Files` does. Threads: any; the calls of concurrent transfers are counted together.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from segstore._native import ffi, lib
from segstore.bench.zero_copy.contenders import ErrorQueueNotices, ExhibitFiles
from segstore.files import Handle
from segstore.sending import SentFile, SinkInfo, sent

if TYPE_CHECKING:
    from typing_extensions import Buffer


class CountedFiles(ExhibitFiles):
    """`Files` that count their system calls. `calls` is: strace's name of a system call -> number of calls,
    including failed calls. (For fstat some C libraries make the call newfstatat.) `notices` counts the
    notices of MSG_ZEROCOPY and io_uring. `copied` counts those notices that report a copy by the kernel.

    The counts are exact if the logs are undamaged. They include the calls that send, and the calls that look
    up sinks and logs. They do not include calls for memory or locks, or calls that open files.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.notices = self.copied = 0

    def clear(self) -> None:
        """Set all counts to zero."""
        self.calls.clear()
        self.notices = self.copied = 0

    def _count(self, name: str, calls: int) -> None:
        if calls:
            self.calls[name] += calls

    # --- what is looked at ------------------------------------------------------------------

    def find_stretch(self, source: SentFile, out: Any, segment: Any, *where: int) -> bool:
        found = super().find_stretch(source, out, segment, *where)
        self._count("pread64", out.reads)
        return found

    def send_stretch(self, sink: int, source: SentFile, segment: Any, offset: int, max_bytes: int) -> int:
        found = ffi.new("seg_found *")
        result = int(lib.seg_send_stretch(sink, source.fd, segment, offset, max_bytes, found))
        self._count("pread64", found.reads)
        self._count("sendfile", result != lib.SEG_SLOW)
        return result if result > 0 or result <= lib.SEG_SLOW else sent(result, source)

    def look_at(self, sink: int) -> SinkInfo:
        self.calls["fstat"] += 1
        info = super().look_at(sink)
        self._count("fcntl", info.kind == lib.SEG_SINK_FILE)
        self._count("getsockopt", info.options)
        return info

    def wait_for(self, sink: int, events: int, timeout_ms: int | None = None) -> int:
        self.calls["poll"] += 1
        return super().wait_for(sink, events, timeout_ms)

    # --- what sends -------------------------------------------------------------------------

    def sendfile(self, sink: int, source: SentFile, position: int, count: int) -> int:
        self.calls["sendfile"] += 1
        return super().sendfile(sink, source, position, count)

    def append_range(self, sink: int, source: SentFile, position: int, count: int) -> int:
        self.calls["copy_file_range"] += 1
        return super().append_range(sink, source, position, count)

    def pread_into(self, handle: Handle, buffer: Buffer, position: int) -> int:
        self.calls["pread64"] += 1
        return super().pread_into(handle, buffer, position)

    def write(self, sink: int, data: Buffer) -> int:
        self.calls["write"] += 1
        return super().write(sink, data)

    def make_pipe(self, pipe: Any) -> None:
        self.calls.update(("pipe2", "fcntl"))
        super().make_pipe(pipe)

    def close_pipe(self, pipe: Any) -> None:
        self.calls["close"] += 2
        super().close_pipe(pipe)

    def splice(self, pipe: int, source: SentFile, position: int, count: int) -> int:
        self.calls["splice"] += 1
        return super().splice(pipe, source, position, count)

    def splice_on(self, pipe: int, sink: int, count: int, more: bool) -> int:
        self.calls["splice"] += 1
        return super().splice_on(pipe, sink, count, more)

    # --- windows ----------------------------------------------------------------------------

    def map_window(self, window: Any, source: SentFile, position: int, count: int) -> None:
        self.calls["mmap"] += 1
        super().map_window(window, source, position, count)

    def unmap_window(self, window: Any) -> None:
        self._count("munmap", window.memory != ffi.NULL)
        super().unmap_window(window)

    def write_window(self, sink: int, window: Any, source: SentFile, position: int, count: int) -> int:
        self.calls["write"] += 1
        return super().write_window(sink, window, source, position, count)

    def set_zerocopy(self, sink: int, on: bool) -> bool:
        self.calls.update(("getsockopt", "setsockopt"))
        return super().set_zerocopy(sink, on)

    def send_zerocopy(self, sink: int, window: Any, source: SentFile, position: int, count: int) -> int:
        self.calls["sendto"] += 1
        return super().send_zerocopy(sink, window, source, position, count)

    def read_notices(self, sink: int) -> ErrorQueueNotices:
        read = super().read_notices(sink)
        self.calls["recvmsg"] += read.calls
        self.notices += read.sends
        self.copied += read.copied
        return read

    # --- rings ------------------------------------------------------------------------------

    def open_ring(self, ring: Any) -> None:
        self.calls["io_uring_setup"] += 1
        super().open_ring(ring)
        self.calls["mmap"] += 2

    def close_ring(self, ring: Any) -> None:
        held, registers = bool(ring.open), ring.registers
        super().close_ring(ring)
        self._count("munmap", 2 * held)
        self._count("close", held)
        self._count("io_uring_register", ring.registers - registers)

    def send_by_ring(
        self, ring: Any, sink: int, window: Any, source: SentFile, position: int, count: int
    ) -> int:
        before = ring.enters, ring.notices, ring.copied
        try:
            return super().send_by_ring(ring, sink, window, source, position, count)
        finally:
            self._count("io_uring_enter", ring.enters - before[0])
            self.notices += ring.notices - before[1]
            self.copied += ring.copied - before[2]
