"""Two senders that `log.transfer` does not have: MSG_ZEROCOPY and io_uring's send_zc. Both can send only to
TCP sockets.

Both are exhibits: they are measured, but the engine does not use them. Over loopback the kernel copies the
bytes all the same, so a gain could be measured only with a network card. `send_log` makes a transfer by one
of these senders. It looks up batches as `PartitionLog.transfer` does. The system calls of the senders are in
C (uring.c, zerocopy.c). This C code is built in a clone of the repository; no wheel contains it. If it was
not built, the measurement leaves both senders out, and shows the reason (`ExhibitFiles.why_not`).

On disk: files are only read. Threads: a window, a ring or a sender is used by only one transfer at a time.
Errors of system calls are raised as `segstore.sending` raises them.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from typing import Any, NamedTuple

from segstore.bench.choices import WAYS_TO_SEND
from segstore.files import Files, Handle
from segstore.sending import SentFile, sent
from segstore.storage.segment.log_view import LogView
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.transfer import METHODS, Method, descriptor, transfer
from segstore.storage.transfer.senders import WINDOW, Mapped
from segstore.storage.transfer.sinks import TCP, Sink

try:
    from segstore.bench.zero_copy._exhibits import ffi, lib
except ModuleNotFoundError:
    ffi = lib = None

ZEROCOPY, IO_URING = "zerocopy", "io_uring"
NOT_BUILT = (
    "the part in C of zerocopy and io_uring is built in a clone of segstore alone (pip install -e .), and is "
    "in no wheel"
)

# --- calls -------------------------------------------------------------------------------------


class ErrorQueueNotices(NamedTuple):
    """Counts of the notices that were read from a socket's error queue (`seg_noticed` in exhibits.h). A
    notice says that the kernel no longer needs the pages of a send.
    """

    sends: int
    copied: int
    calls: int


_PROBES = {
    ZEROCOPY: ("SO_ZEROCOPY of a TCP socket", "seg_zerocopy_probe"),
    IO_URING: ("io_uring with its send_zc", "seg_ring_probe"),
}


class ExhibitFiles(Files):
    """`Files` with the system calls that the two senders make. A window (mapped pages of a file) is a
    `seg_window *` of contract/transfer.h, and a ring (of io_uring) is a `seg_ring *` of exhibits.h. EFAULT
    means that the source's bytes can't be read, because the file was truncated or the disk failed.
    """

    def why_not(self, method: str) -> str | None:
        """Return None if a method works on this system, else a text with the call that fails and its
        error, or NOT_BUILT.
        """
        if method not in _PROBES:
            return super().why_not(method)
        if lib is None:
            return NOT_BUILT
        called, probe = _PROBES[method]
        result = getattr(lib, probe)()
        return f"{called}: {os.strerror(-result)}" if result else None

    def set_zerocopy(self, sink: int, on: bool) -> bool:
        """Set SO_ZEROCOPY of a socket to `on`, and return whether the option was on before. Raises
        OSError.
        """
        return bool(sent(lib.seg_zerocopy(sink, on)))

    def send_zerocopy(self, sink: int, window: Any, source: SentFile, position: int, count: int) -> int:
        """Call send(2) with MSG_ZEROCOPY from a window, and return the number of sent bytes. The window must
        stay until `read_notices` has returned the notice of the send.

        Raises OSError. Its errno is ENOBUFS if too many sends have no notice yet, or if too much memory is
        locked.
        """
        return sent(lib.seg_send_zerocopy(sink, window, position, count), source, errno.EFAULT)

    def read_notices(self, sink: int) -> ErrorQueueNotices:
        """Return the notices that the error queue has now; do not wait. (poll(2) reports POLLERR if there are
        notices.) Raises OSError.
        """
        out = ffi.new("seg_noticed *")
        sent(lib.seg_notices(sink, out))
        return ErrorQueueNotices(out.sends, out.copied, out.calls)

    def open_ring(self, ring: Any) -> None:
        """Make a ring. Raises OSError (ENOSYS, EPERM, ENOMEM)."""
        sent(lib.seg_ring_open(ring))

    def close_ring(self, ring: Any) -> None:
        """Cancel the running request of a ring, and close the ring. Do nothing if the ring is not open."""
        lib.seg_ring_close(ring)

    def send_by_ring(
        self, ring: Any, sink: int, window: Any, source: SentFile, position: int, count: int
    ) -> int:
        """Send by send_zc from a window, and return the number of sent bytes. When this method has returned,
        the kernel no longer needs the window. Raises InterruptedError if the request is not complete when 100
        ms have passed or a signal has come. The caller then repeats the call, which continues the same
        request.
        """
        return sent(lib.seg_ring_send(ring, sink, window, position, count), source, errno.EFAULT)


# --- senders -----------------------------------------------------------------------------------

_NO_ROOM = frozenset({errno.ENOBUFS, errno.ENOMEM})
_LAST_LOOKS, _PAUSE = 100, 0.01
"""_LAST_LOOKS: how many times notices are read from a connection that has failed, because notices may still
come. _PAUSE: the time before each of these reads, in seconds.
"""


class _Locked(Mapped):
    """A sender whose window is locked in memory by the kernel while the window's bytes are sent."""

    files: ExhibitFiles

    def __init__(self, files: Files, sink: Sink) -> None:
        assert isinstance(files, ExhibitFiles)
        super().__init__(files, sink)
        self._most = WINDOW  # maximum number of bytes in one send

    def _take_less(self, error: OSError) -> bool:
        """If the error says that too much memory is locked, halve the maximum size of a send and return True.
        Return False for any other error, or if this size is already at most a page.
        """
        if error.errno not in _NO_ROOM or self._most <= mmap.PAGESIZE:
            return False
        self._most //= 2
        return True


class ZeroCopy(_Locked):
    """Sends by MSG_ZEROCOPY: the network card reads from the page cache, and the kernel copies nothing.
    SO_ZEROCOPY of the caller's socket is switched on, and at the end gets its previous value.

    Nobody else may read the socket's error queue during a transfer. A window is unmapped when a notice in the
    error queue says that the peer has acknowledged the window's bytes. After an error or an interrupt the
    window is unmapped at once. This is safe, because the kernel keeps the pages, and a log's bytes don't
    change. Notices that come after the transfer stay in the queue.
    """

    def __init__(self, files: Files, sink: Sink) -> None:
        super().__init__(files, sink)
        self._pending = 0  # number of sends whose notices were not received yet
        self._was_set = self.files.set_zerocopy(self.sink, True)

    def send(self, source: Handle, position: int, count: int) -> int:
        while True:
            there = min(self.reach(source, position, count), self._most)
            try:
                done = self.files.send_zerocopy(self.sink, self.window, source, position, there)
                break
            except OSError as error:
                if not self._make_room(error):
                    raise
        self._pending += 1
        if done == count or position + done >= self.end:
            self._await_notices()
        return done

    def _make_room(self, error: OSError) -> bool:
        """Handle the error of a send. Return True if the caller must repeat the send, False if the caller
        must raise the error.
        """
        if isinstance(error, BlockingIOError):
            # Notices are read here, because unread notices would make poll(2) return at once.
            self._read_notices()
            return False
        if error.errno == errno.ENOBUFS and self._pending:
            self._await_notices()
            return True
        return self._take_less(error)

    def _await_notices(self) -> None:
        """Wait until the kernel needs no page of a pending send."""
        looks = 0
        while self._pending > 0 and looks < _LAST_LOOKS:
            if self._read_notices():
                continue
            if self.files.wait_for(self.sink, 0) and not self._read_notices():
                # POLLERR without notices means that the connection has failed. Its last notices may still
                # come.
                looks += 1
                time.sleep(_PAUSE)
        self._pending = 0

    def _read_notices(self) -> int:
        sends = self.files.read_notices(self.sink).sends
        self._pending -= sends
        return sends

    def close(self) -> None:
        try:
            if self._pending > 0:
                self._read_notices()
            if not self._was_set:
                self.files.set_zerocopy(self.sink, False)
        except OSError:
            # The sink is closed. The error of the transfer itself is raised, not this error.
            pass
        finally:
            super().close()


class ByRing(_Locked):
    """Sends by io_uring's send_zc: the network card reads from the page cache. There is one request at a
    time, for a whole window. The window is unmapped when the ring reports that the kernel no longer needs the
    window. After an error or an interrupt the running request is cancelled before the window is unmapped.
    """

    def __init__(self, files: Files, sink: Sink) -> None:
        super().__init__(files, sink)
        self._ring = ffi.gc(ffi.new("seg_ring *"), lib.seg_ring_close)
        self.files.open_ring(self._ring)

    def send(self, source: Handle, position: int, count: int) -> int:
        while True:
            there = min(self.reach(source, position, count), self._most)
            try:
                return self.files.send_by_ring(self._ring, self.sink, self.window, source, position, there)
            except OSError as error:
                if not self._take_less(error):
                    raise

    def close(self) -> None:
        self.files.close_ring(self._ring)
        super().close()


# --- methods -----------------------------------------------------------------------------------

EXHIBITS = {
    name: Method(name, make, frozenset({TCP})) for name, make in ((ZEROCOPY, ZeroCopy), (IO_URING, ByRing))
}
ALL_METHODS = {name: (METHODS | EXHIBITS)[name] for name in WAYS_TO_SEND}
"""Name -> method, for all methods that are measured: those of `PartitionLog.transfer`, and the exhibits."""


def send_log(
    log: PartitionLog, files: ExhibitFiles, sink: Any, offset: int, max_bytes: int, method: str
) -> tuple[int, int]:
    """Send batches from `offset` on, at most `max_bytes`, to a sink by `method`, which is a name in EXHIBITS.
    Return (number of sent bytes, next offset), as `PartitionLog.transfer` does.

    `files` makes the system calls. The log must never have been compacted, because a missing offset is taken
    for damage.
    """
    target, by = descriptor(sink), EXHIBITS[method]

    def send(view: LogView) -> tuple[int, int]:
        view.check(offset, f"{log.topic}-{log.partition}")
        return transfer(view, target, offset, max_bytes, by, files, lambda _: False)

    return log.with_view(send)
