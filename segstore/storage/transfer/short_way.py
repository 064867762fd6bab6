"""The fast path of a transfer: one native call finds the batches and calls sendfile(2) once.

The first transfer from a view is made by `send_at_once`, which stores a `Sendable` (the data about one
segment that C needs) in the view. Later transfers are made by the C function `seg_transfer`, which uses that
`Sendable`.

The slow path, `transfer`, is for these cases: a file that is not open, or an index that is not loaded; a log
that may have messages of magic 0 or 1, which are converted; a stretch that may continue in another segment; a
wrong index entry or batch header; a sink that would block; a SIGPIPE that would end the process. Both paths
send the same bytes.

Files on disk are only read. Threads: any, without locks, on an immutable view.
"""

from __future__ import annotations

# `_signal` is used, because `signal` converts the handlers to enums. The conversion takes as long as the
# search for the batches.
from _signal import SIG_IGN, getsignal  # type: ignore[import-not-found]
from signal import SIGPIPE
from typing import TYPE_CHECKING
from weakref import ref

from segstore._native import Sendable, address, ffi, lib
from segstore.files import Files, Handle
from segstore.sending import SendfileCalls, sent
from segstore.storage.segment.log_view import LogView
from segstore.storage.transfer.methods import METHODS, SENDFILE
from segstore.storage.transfer.senders import Straight
from segstore.storage.transfer.sinks import unseen
from segstore.storage.transfer.transfer import deliver, sending_error, shorter

if TYPE_CHECKING:
    from segstore.storage.context import StoreContext
    from segstore.storage.log.visibility import Visible

_BY = METHODS[SENDFILE]
_FOUND, _SENDABLE = ffi.typeof("seg_found *"), ffi.typeof("seg_sendable *")
_SLOW: int = lib.SEG_SLOW
_PART: int = lib.SEG_PART
_NEXT = (1 << 32) - 1


def send_at_once(
    view: LogView, fd: int, offset: int, max_bytes: int, context: StoreContext, views: Visible | None = None
) -> tuple[int, int] | None:
    """Send batches by sendfile, from an open store. Return (number of sent bytes, next offset). Return None
    if nothing was sent, and `transfer` must send the batches. In a forked child of the writer, None is always
    returned. `views` is the `Visible` whose current view is `view`; if `views` is given, `seg_transfer` can
    make the next transfer.

    Raises SinkError. Raises StorageError for an error of the segment's file, and InvalidArgumentError if
    sendfile can't serve the sink.
    """
    known: Sendable | None = view.sendable
    inside = known is not None and not known.spent and known.first <= offset < known.below
    if known is None or not inside or (views is not None and not known.offered):
        known = sendable(view, offset, context, views)
    handle = None if known is None else known.handle()
    if known is None or handle is None or getsignal(SIGPIPE) != SIG_IGN:
        view.sendable = None
        return None
    try:
        result = context.files.send_stretch(fd, handle, known.segment, offset, max_bytes)
    except OSError as error:
        _leave(error, handle, fd, context.files)
        return None
    return go_on(result, known, handle, fd, offset, max_bytes, context.files)


def go_on(
    result: int, known: Sendable, handle: Handle, fd: int, offset: int, max_bytes: int, files: Files
) -> tuple[int, int] | None:
    """Complete `send_at_once` after a `result` of `seg_send_stretch`: return the tuple or None that
    `send_at_once` returns, and raise its errors.
    """
    if result > 0:
        return result >> 32, offset + (result & _NEXT)
    if result == _SLOW:
        known.spent = True
        return None
    if result <= _PART:
        return _finish(fd, handle, known, offset, max_bytes, _PART - result, files)
    try:
        sent(result, handle)
    except OSError as error:
        _leave(error, handle, fd, files)
    return None


def _leave(error: OSError, handle: Handle, fd: int, files: Files) -> None:
    """Return if sendfile(2) failed because the sink would block, or because of a signal; the slow path then
    sends the batches. Raise other errors.
    """
    if not isinstance(error, InterruptedError | BlockingIOError):
        raise sending_error(error, handle, _BY, fd, files) from error


def sendable(
    view: LogView, offset: int, context: StoreContext, views: Visible | None = None
) -> Sendable | None:
    """Return a `Sendable` of the segment that holds `offset`, and store it in `view`; None if `offset` is not
    in the view, or if the segment must be opened first.
    """
    view.sendable = known = _sendable(view, offset, context, views)
    return known


def _sendable(view: LogView, offset: int, context: StoreContext, views: Visible | None) -> Sendable | None:
    if not view.start_offset <= offset < view.end_offset:
        return None
    slot = view.slot(offset)
    segment = view.segments[slot]
    ready = None if segment.may_be_old else segment.ready()
    here = context.here_for_c if context.writable else ffi.NULL
    if ready is None or here is None:
        return None
    handle, index = ready
    end, below = view.bounds(slot)
    first = max(segment.base_offset, view.start_offset)
    # C remembers positions of batches only in the writer's process. In another process a position could
    # become wrong, because after a power cut the writer may cut the log, and write other bytes there.
    remembers = context.writable
    c = ffi.new(_SENDABLE, (segment.fields(end, view.end_offset, index), below, -1, -1, here, remembers))
    current = views.current_if_same(view) if views is not None and _is_plain(context.files) else None
    tail = None if views is None else views.tail.c
    # `index` and `here` have the memory that `c` points to.
    where = address(tail or ffi.NULL)
    known = Sendable(ref(handle), c, address(c), (index, here), first, tail, where)
    known.offered = views is not None
    if current is not None:
        current.at_once = known
    return known


def _is_plain(files: Files) -> bool:
    """Return whether `files` has no `send_stretch` of its own, which a call by C would bypass."""
    return type(files).send_stretch is SendfileCalls.send_stretch


def _finish(
    fd: int, handle: Handle, known: Sendable, offset: int, max_bytes: int, done: int, files: Files
) -> tuple[int, int]:
    """Send the remaining bytes of a stretch, after its first `done` bytes were sent. Return the size in bytes
    of the whole stretch, and the offset after it.
    """
    found = ffi.new(_FOUND)
    if not files.find_stretch(handle, found, ffi.addressof(known.segment, "segment"), -1, offset, max_bytes):
        raise shorter(handle)
    sender = Straight(files.sendfile, unseen(fd))
    deliver(sender, fd, files, handle, found.position + done, found.stop, _BY)
    return found.stop - found.position, int(found.next_offset)
