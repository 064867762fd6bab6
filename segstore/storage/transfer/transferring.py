"""Which batches a transfer sends, and that all their bytes reach the sink.

On disk: reads only. Threads: any, without locks, on an immutable view.
"""

from __future__ import annotations

import errno
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from segstore._native import ffi
from segstore.errors import InvalidArgumentError, SegstoreError, StorageError
from segstore.files import Files, Handle
from segstore.storage.gaps import MayBeMissing
from segstore.storage.reader import first_batch
from segstore.storage.transfer import methods, sinks
from segstore.storage.transfer.choosing import choose
from segstore.storage.transfer.senders import SENDERS, Sender
from segstore.storage.transfer.sinks import Sink
from segstore.storage.view import LogView


def transfer(
    view: LogView, fd: int, offset: int, max_bytes: int, method: str, files: Files, gaps: MayBeMissing
) -> tuple[int, int]:
    """Send batches from the one that holds `offset` on, up to `max_bytes`, at least one where there is one.

    (bytes, next offset). A sink that takes no more for now is waited for, so that it always gets whole
    batches. InvalidArgumentError where the method can't serve the sink; SinkError; StorageError of a
    segment's file. OSError and CorruptRecordError: nothing was sent then.
    """
    sink = sinks.look_at(files, fd)
    sinks.check(method, sink)
    if not sink.sigpipe:
        return _transfer(view, sink, offset, max_bytes, method, files, gaps)
    with _without_sigpipe():
        return _transfer(view, sink, offset, max_bytes, method, files, gaps)


def _transfer(
    view: LogView, sink: Sink, offset: int, max_bytes: int, method: str, files: Files, gaps: MayBeMissing
) -> tuple[int, int]:
    done, sender = 0, None
    stretch = ffi.new("seg_stretch_found *")
    try:
        for slot in range(view.slot(offset), len(view.segments)):
            if offset >= view.end_offset:
                break
            try:
                handle = _find(view, slot, offset, max_bytes - done, files, gaps, stretch)
            except (OSError, SegstoreError):
                if done:
                    break
                raise
            if handle is None:
                continue
            position, count = stretch.position, stretch.stop - stretch.position
            if done and count > max_bytes - done:
                break
            if sender is None:
                sender = _sender(method, sink, count, handle, files)
            _send_all(sender, sink, files, handle, position, count)
            done, offset = done + count, min(stretch.next_offset, view.next_base(slot))
            if stretch.stop < view.end_of(slot) or done >= max_bytes:
                break
    finally:
        if sender is not None:
            sender.close()
    return done, offset


def _find(
    view: LogView, slot: int, offset: int, most: int, files: Files, gaps: MayBeMissing, stretch: Any
) -> Handle | None:
    """Put the batches of segment `slot` that are next into `stretch`; None where it has none."""
    segment = view.segments[slot]
    handle = segment.handle
    pointer, n, _memory = segment.indexes[0].view
    find = ffi.new("seg_find *", (pointer, n, segment.base_offset, view.end_of(slot), view.end_offset))
    if files.find_stretch(handle, find, -1, offset, most, stretch):
        return handle
    # A gap, an index that is wrong, damage: what is slower looks closely, and tells.
    first = first_batch(view, slot, offset, view.end_offset, gaps, handle)
    if first is None:
        return None
    if not files.find_stretch(handle, find, first.position, first.base_offset, most, stretch):
        raise _shorter(handle)
    return handle


def _sender(method: str, sink: Sink, count: int, handle: Handle, files: Files) -> Sender:
    if method == methods.AUTO:
        method = choose(sink, count, files.device(handle))
    return SENDERS[method](files, sink)


def _send_all(sender: Sender, sink: Sink, files: Files, handle: Handle, position: int, count: int) -> None:
    """Every byte, whatever a call takes: on after signals, whose handlers have run, and after waiting."""
    end = position + count
    while position < end:
        try:
            sent = sender.send(handle, position, end - position)
        except InterruptedError:
            continue
        except BlockingIOError:
            files.wait_for(sink.fd, select.POLLOUT)
            continue
        except OSError as error:
            raise _told(error, handle) from error
        if not sent:
            raise _shorter(handle)
        position += sent


def _told(error: OSError, handle: Handle) -> SegstoreError:
    if error.errno == errno.EFAULT and error.filename is not None:
        return _shorter(handle)
    if error.filename is not None:
        return StorageError(error.errno, error.strerror, error.filename)
    if error.errno in (errno.EINVAL, errno.EXDEV, errno.EOPNOTSUPP):
        return InvalidArgumentError(
            f"the sink can't be served by this method ({error.strerror}): read and mmap write to any sink"
        )
    return sinks.refusal(error)


def _shorter(handle: Handle) -> StorageError:
    return StorageError(errno.EIO, "the segment became shorter while it was sent", handle.path)


@contextmanager
def _without_sigpipe() -> Iterator[None]:
    """Keep the SIGPIPE of a sink without a reader from this thread: the error is told."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    pending = signal.SIGPIPE in signal.sigpending()
    try:
        yield
    finally:
        if not pending:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
