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
from segstore.storage.view import LogView

_OF_METHOD = frozenset({errno.EINVAL, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS})
"""The sink is fine, but not for this call."""
_FOUND = ffi.typeof("seg_found *")
_NOT_HERE = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOPROTOOPT})


def transfer(
    view: LogView, fd: int, offset: int, max_bytes: int, method: str, files: Files, gaps: MayBeMissing
) -> tuple[int, int]:
    """Send batches from the one that holds `offset` on, up to `max_bytes`, at least one where there is one.

    (bytes, next offset). A sink that takes no more for now is waited for, so that it always gets whole
    batches. InvalidArgumentError where the method can't serve the sink; SinkError; StorageError of a
    segment's file. OSError and CorruptRecordError: nothing was sent then.
    """
    if signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN:  # as Python begins
        return _transfer(view, fd, offset, max_bytes, method, files, gaps)
    with _without_sigpipe():
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
            _send_all(sender, fd, files, handle, position, stop, method)
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
    """Put the batches of segment `slot` that are next into `found`; None where it has none."""
    segment = view.segments[slot]
    handle = segment.handle
    pointer, n, _memory = segment.indexes[0].view
    there = pointer, n, segment.base_offset, end, view.end_offset
    if files.find_stretch(handle, found, *there, -1, offset, most):
        return handle
    # A gap, an index that is wrong, damage: what is slower looks closely, and tells.
    first = first_batch(view, slot, offset, view.end_offset, gaps, handle)
    if first is None:
        return None
    if not files.find_stretch(handle, found, *there, first.position, first.base_offset, most):
        raise _shorter(handle)
    return handle


def _sender(method: str, fd: int, count: int, handle: Handle, files: Files) -> Sender:
    if method in sinks.KNOWS_BEST:
        return SENDERS[method](files, sinks.unseen(fd))
    sink = sinks.look_at(files, fd)
    if method == methods.AUTO:
        method = choose(sink, count, files.device(handle))
    sinks.check(method, sink)
    try:
        return SENDERS[method](files, sink)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        why = files.why_not(method)
        raise InvalidArgumentError(f"method={method!r} is not available here: {why}") from None


def _send_all(
    sender: Sender, fd: int, files: Files, handle: Handle, position: int, stop: int, method: str
) -> None:
    """Every byte, whatever a call takes: on after signals, whose handlers have run, and after waiting."""
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
            raise _shorter(handle)
        position += sent


def _told(error: OSError, handle: Handle, method: str, fd: int, files: Files) -> SegstoreError:
    if error.filename is not None:
        cut = error.errno == errno.EFAULT  # what a mapping gives that has nothing behind it
        return _shorter(handle) if cut else StorageError(error.errno, error.strerror, error.filename)
    if error.errno not in _OF_METHOD:
        return sinks.refusal(error)
    sinks.check(method, sinks.look_at(files, fd))
    return InvalidArgumentError(
        f"method={method!r} can't serve this sink ({error.strerror}): read serves any"
    )


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
