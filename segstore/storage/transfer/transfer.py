"""Makes a transfer: picks the batches and the sender, and sends all bytes of the batches.

Files on disk are only read. Threads: any, without locks, on an immutable view.
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
from segstore.storage.log.read import MayBeMissing, first_batch
from segstore.storage.segment.log_view import LogView
from segstore.storage.transfer.brought_up import as_sent
from segstore.storage.transfer.methods import METHODS, READ, Method, check
from segstore.storage.transfer.senders import TransferSender
from segstore.storage.transfer.sinks import look_at, refusal, unseen

# --- delivering --------------------------------------------------------------------------------

_OF_METHOD = frozenset({errno.EINVAL, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors for a valid sink that the method's system call can't serve."""


def deliver(
    sender: TransferSender, fd: int, files: Files, handle: Handle, position: int, stop: int, method: Method
) -> None:
    """Send the bytes from `position` to `stop`, by as many calls of `sender` as necessary. After a signal the
    handler runs, and the sending continues. If the sink is full, the call waits.
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
            raise sending_error(error, handle, method, fd, files) from error
        if not sent:
            raise shorter(handle)
        position += sent


def sending_error(error: OSError, handle: Handle, method: Method, fd: int, files: Files) -> SegstoreError:
    """Return segstore's error for a system error while bytes of a segment were sent."""
    if error.filename is not None:
        # EFAULT: the mapping reaches beyond the file's end, because the file was cut.
        cut = error.errno == errno.EFAULT
        return shorter(handle) if cut else StorageError(error.errno, error.strerror, error.filename)
    if error.errno not in _OF_METHOD:
        return refusal(error)
    check(method, look_at(files, fd))
    return InvalidArgumentError(
        f"method={method.name!r} can't serve this sink ({error.strerror}): read serves any"
    )


def shorter(handle: Handle) -> StorageError:
    """Return the error for a file that is shorter than its segment."""
    return StorageError(errno.EIO, "the segment became shorter while it was sent", handle.path)


@contextmanager
def without_sigpipe() -> Iterator[None]:
    """Context manager: block SIGPIPE in this thread, so that a sink without a reader raises an error
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


# --- transfer ------------------------------------------------------------

_FOUND, _SEGMENT = ffi.typeof("seg_found *"), ffi.typeof("seg_segment *")
_NOT_HERE = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOPROTOOPT})
"""Errors that making a sender raises if the system lacks, or forbids, a call of its method."""


def transfer(
    view: LogView, fd: int, offset: int, max_bytes: int, method: Method, files: Files, gaps: MayBeMissing
) -> tuple[int, int]:
    """Send batches, beginning with the batch that holds `offset`: up to `max_bytes`, but at least one batch
    if there is any. Return (number of sent bytes, next offset).

    If the sink is full, the call waits, so that the sink always gets whole batches. Raises SinkError. Raises
    StorageError for an error of a segment's file, and InvalidArgumentError if the method can't serve the
    sink. Raises OSError and CorruptRecordError; nothing was sent then.
    """
    # By default Python ignores SIGPIPE. Then the signal need not be blocked.
    if signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN:
        return _transfer(view, fd, offset, max_bytes, method, files, gaps)
    with without_sigpipe():
        return _transfer(view, fd, offset, max_bytes, method, files, gaps)


def _transfer(
    view: LogView, fd: int, offset: int, max_bytes: int, method: Method, files: Files, gaps: MayBeMissing
) -> tuple[int, int]:
    done, sender, found = 0, None, ffi.new(_FOUND)
    try:
        for slot in range(view.slot(offset), len(view.segments)):
            if offset >= view.end_offset:
                break
            end = view.end_of(slot)
            try:
                # The visible offsets of a segment end below the base offset of the next segment.
                limit = view.next_base(slot)
                source = find(view, slot, limit, offset, max_bytes - done, files, gaps, found)
            except (OSError, SegstoreError):
                if done:
                    break
                raise
            if source is None:
                continue
            handle, as_it_is = source
            position, stop = found.position, found.stop
            if done and stop - position > max_bytes - done:
                break
            if sender is None:
                sender = _sender(method, fd, files)
            if as_it_is:
                deliver(sender, fd, files, handle, position, stop, method)
            else:
                _deliver_from_memory(fd, files, handle, position, stop, method)
            done, offset = done + stop - position, int(found.next_offset)
            if stop < end or done >= max_bytes or not as_it_is:
                break
    finally:
        if sender is not None:
            sender.close()
    return done, offset


def _deliver_from_memory(
    fd: int, files: Files, handle: Handle, position: int, stop: int, method: Method
) -> None:
    """Send converted batches by reads, because some methods can't send from a file in memory."""
    sender = METHODS[READ].make(files, unseen(fd))
    try:
        deliver(sender, fd, files, handle, position, stop, method)
    finally:
        sender.close()


def find(
    view: LogView, slot: int, limit: int, offset: int, most: int, files: Files, gaps: MayBeMissing, found: Any
) -> tuple[Handle, bool] | None:
    """Find the batches of segment `slot` from `offset` on, below offset `limit`, and set `found` (`seg_found
    *`) to their place. Return the file that has these batches, and whether that file is the segment's log
    (`brought_up.as_sent`); None if the segment has no such batches. Raises OSError, CorruptRecordError.
    """
    segment, end = view.segments[slot], view.end_of(slot)
    handle = segment.handle
    fields = segment.fields(end, limit)  # `fields` keeps the memory of the index alive
    of = ffi.new(_SEGMENT, fields)
    if files.find_stretch(handle, found, of, -1, offset, most):
        return as_sent(segment, handle, found, most, files)
    # C has met a gap, a wrong index entry or damage. The slower search `first_batch` finds the batch, or
    # raises the error.
    first = first_batch(view, slot, end, offset, limit, gaps, handle)
    if first is None:
        return None
    if not files.find_stretch(handle, found, of, first.position, first.base_offset, most):
        raise shorter(handle)
    return as_sent(segment, handle, found, most, files)


def _sender(method: Method, fd: int, files: Files) -> TransferSender:
    if not method.looks:
        return method.make(files, unseen(fd))
    sink = look_at(files, fd)
    check(method, sink)
    try:
        return method.make(files, sink)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        why = files.why_not(method.name)
        raise InvalidArgumentError(f"method={method.name!r} is not available here: {why}") from None
