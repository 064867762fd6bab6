"""Which batches a transfer sends, and by which sender.

On disk: reads only. Threads: any, without locks, on an immutable view.
"""

from __future__ import annotations

import errno
import signal
from typing import Any

from segstore._native import ffi
from segstore.errors import InvalidArgumentError, SegstoreError
from segstore.files import Files, Handle
from segstore.storage.log.gaps import MayBeMissing
from segstore.storage.log.read import first_batch
from segstore.storage.segment.log_view import LogView
from segstore.storage.transfer import methods, sinks
from segstore.storage.transfer.choosing import choose
from segstore.storage.transfer.delivering import deliver, shorter, without_sigpipe
from segstore.storage.transfer.senders import SENDERS, Sender

_FOUND = ffi.typeof("seg_found *")
_NOT_HERE = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOPROTOOPT})
"""What making a sender raises where the system has not, or forbids, what its method needs."""


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
        raise shorter(handle)
    return handle


def _sender(method: str, fd: int, count: int, handle: Handle, files: Files) -> Sender:
    if method in sinks.UNSEEN:
        return SENDERS[method](files, sinks.unseen(fd))
    sink = sinks.look_at(files, fd)
    if method == methods.AUTO:
        method = choose(sink, count)
    sinks.check(method, sink)
    try:
        return SENDERS[method](files, sink)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        why = files.why_not(method)
        raise InvalidArgumentError(f"method={method!r} is not available here: {why}") from None
