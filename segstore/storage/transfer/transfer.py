"""A transfer: which batches are sent, by which method, and that all their bytes arrive.

On disk files are only read. Threads: any, without locks, on an immutable view.
"""

from __future__ import annotations

import errno
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from segstore._native import ffi
from segstore.errors import InvalidArgumentError, SegstoreError, StorageError
from segstore.files import Files, Handle
from segstore.storage.log.read import MayBeMissing, first_batch
from segstore.storage.segment.log_view import LogView
from segstore.storage.transfer import sinks
from segstore.storage.transfer.senders import SENDERS, Sender
from segstore.storage.transfer.sinks import Sink

# --- delivering --------------------------------------------------------------------------------

_OF_METHOD = frozenset({errno.EINVAL, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors for a sink that is fine, but not for this call."""


def deliver(
    sender: Sender, fd: int, files: Files, handle: Handle, position: int, stop: int, method: str
) -> None:
    """Send every byte, however many one call takes: the loop goes on after signals, whose handlers have run,
    and after waiting.
    """
    while position < stop:
        try:
            sent = sender.send(handle, position, stop - position)
        except InterruptedError:
            continue
        except BlockingIOError:
            files.wait_for(fd, select.POLLOUT)
            continue
        except OSError as error:
            raise _told(error, handle, method, fd, files) from error
        if not sent:
            raise shorter(handle)
        position += sent


def _told(error: OSError, handle: Handle, method: str, fd: int, files: Files) -> SegstoreError:
    if error.filename is not None:
        cut = error.errno == errno.EFAULT  # a mapping behind the file's end gives this
        return shorter(handle) if cut else StorageError(error.errno, error.strerror, error.filename)
    if error.errno not in _OF_METHOD:
        return sinks.refusal(error)
    sinks.check(method, sinks.look_at(files, fd))
    return InvalidArgumentError(
        f"method={method!r} can't serve this sink ({error.strerror}): read serves any"
    )


def shorter(handle: Handle) -> StorageError:
    """The error for a file that is shorter than its log says."""
    return StorageError(errno.EIO, "the segment became shorter while it was sent", handle.path)


@contextmanager
def without_sigpipe() -> Iterator[None]:
    """A block in which this thread gets no SIGPIPE of a sink without a reader: the error is raised
    instead.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    pending = signal.SIGPIPE in signal.sigpending()
    try:
        yield
    finally:
        if not pending:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


# --- choosing ----------------------------------------------------------------------------------

# The method that "auto" takes, by the kind of the sink and the bytes to send.
#
# TABLE is what `segstore bench zero-copy` recommends (benchmarks/results/zero-copy.json, Linux 6.18, 2
# cores, warm): sendfile everywhere, which no other method beat without losing in the other measure. At 64
# KiB a transfer, in MB/s, and the sender's CPU as a part of `read`'s:
#
#     sink   sendfile     splice       mmap         read         copy_file_range
#     tcp    1,794 0.61   1,035 1.07   1,007 1.10   1,107 1.00   -
#     unix   3,667 0.32   1,899 0.67   1,247 1.00   1,253 1.00   -
#     pipe   2,746 0.32   2,106 0.41     985 1.08   1,016 1.00   -
#     file   1,790 0.89   1,200 1.24   1,277 1.21   1,590 1.00   1,875 0.85
#
# From 1 MiB on all methods are near one another. To a Unix socket 16 MiB at a time are faster by mmap
# (3,643 to 2,362 MB/s), for more of the sender's CPU.

Choice = tuple[float, str]

TABLE: dict[str, tuple[Choice, ...]] = {
    sinks.TCP: ((inf, sinks.SENDFILE),),
    sinks.UNIX: ((inf, sinks.SENDFILE),),
    sinks.PIPE: ((inf, sinks.SENDFILE),),
    sinks.FILE: ((inf, sinks.SENDFILE),),
    sinks.OTHER: ((inf, sinks.READ),),
}
"""For each kind, pairs of a limit in bytes and the method up to it; the last has no limit."""


def choose(sink: Sink, count: int) -> str:
    """The method for `count` bytes: never one that this sink would refuse."""
    method = next(method for most, method in TABLE[sink.kind] if count <= most)
    return sinks.READ if sink.appends and method in sinks.NO_APPEND else method


# --- transfer ------------------------------------------------------------

_FOUND = ffi.typeof("seg_found *")
_NOT_HERE = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOPROTOOPT})
"""Errors of making a sender where the system lacks, or forbids, what its method needs."""


def transfer(
    view: LogView, fd: int, offset: int, max_bytes: int, method: str, files: Files, gaps: MayBeMissing
) -> tuple[int, int]:
    """Send batches from the one that holds `offset` on, up to `max_bytes`, at least one where there is any;
    returns (bytes, next offset).

    A sink that takes no more for now is waited for, so that it always gets whole batches. Raises
    InvalidArgumentError where the method can't serve the sink; SinkError; StorageError of a segment's file.
    Raises OSError and CorruptRecordError; nothing was sent then.
    """
    if signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN:  # as Python begins
        return _transfer(view, fd, offset, max_bytes, method, files, gaps)
    with without_sigpipe():
        return _transfer(view, fd, offset, max_bytes, method, files, gaps)


def _transfer(
    view: LogView, fd: int, offset: int, max_bytes: int, method: str, files: Files, gaps: MayBeMissing
) -> tuple[int, int]:
    done, sender, found = 0, None, ffi.new(_FOUND)
    try:
        for slot in range(view.slot(offset), len(view.segments)):
            if offset >= view.end_offset:
                break
            end = view.end_of(slot)
            try:
                handle = _find(view, slot, end, offset, max_bytes - done, files, gaps, found)
            except (OSError, SegstoreError):
                if done:
                    break
                raise
            if handle is None:
                continue
            position, stop = found.position, found.stop
            if done and stop - position > max_bytes - done:
                break
            if sender is None:
                sender = _sender(method, fd, stop - position, handle, files)
            deliver(sender, fd, files, handle, position, stop, method)
            done, offset = done + stop - position, min(found.next_offset, view.next_base(slot))
            if stop < end or done >= max_bytes:
                break
    finally:
        if sender is not None:
            sender.close()
    return done, offset


def _find(
    view: LogView, slot: int, end: int, offset: int, most: int, files: Files, gaps: MayBeMissing, found: Any
) -> Handle | None:
    """Put the next batches of segment `slot` into `found`; returns its log, None where it has none."""
    segment = view.segments[slot]
    handle = segment.handle
    pointer, n, _memory = segment.indexes[0].view
    there = pointer, n, segment.base_offset, end, view.end_offset
    if files.find_stretch(handle, found, *there, -1, offset, most):
        return handle
    # There is a gap, a wrong index entry or damage: a slower search finds out which.
    first = first_batch(view, slot, offset, view.end_offset, gaps, handle)
    if first is None:
        return None
    if not files.find_stretch(handle, found, *there, first.position, first.base_offset, most):
        raise shorter(handle)
    return handle


def _sender(method: str, fd: int, count: int, handle: Handle, files: Files) -> Sender:
    if method in sinks.UNSEEN:
        return SENDERS[method](files, sinks.unseen(fd))
    sink = sinks.look_at(files, fd)
    if method == sinks.AUTO:
        method = choose(sink, count)
    sinks.check(method, sink)
    try:
        return SENDERS[method](files, sink)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        why = files.why_not(method)
        raise InvalidArgumentError(f"method={method!r} is not available here: {why}") from None
