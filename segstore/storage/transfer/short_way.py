"""The short way of a transfer: the look-up and one sendfile(2) in one native call, where nothing is unusual.

Unusual is: a file that is not open, or an index that is not loaded; a log that may have messages of magic 0
or 1, which are not sent as they are; a stretch that may go on in another segment; an index or a header that
is not what it must be; a sink that takes nothing for now; a SIGPIPE that would end the process. `transfer` is
the long way, which handles all that. Both send the same bytes.

On disk files are only read. Threads: any, without locks, on an immutable view.
"""

from __future__ import annotations

# `signal` makes an enum of what these give, which takes as long as the look-up.
from _signal import SIG_IGN, getsignal  # type: ignore[import-not-found]
from signal import SIGPIPE
from typing import TYPE_CHECKING, Any
from weakref import ref

from segstore._native import ffi, lib
from segstore.files import Files, Handle
from segstore.index.sparse import View
from segstore.storage.segment.log_view import LogView
from segstore.storage.transfer.methods import METHODS, SENDFILE
from segstore.storage.transfer.senders import Straight
from segstore.storage.transfer.sinks import unseen
from segstore.storage.transfer.transfer import deliver, shorter, told

if TYPE_CHECKING:
    from segstore.storage.context import Context

_BY = METHODS[SENDFILE]
_FOUND, _SENDABLE = ffi.typeof("seg_found *"), ffi.typeof("seg_sendable *")
_SLOW: int = lib.SEG_SLOW
_PART: int = lib.SEG_PART
_NEXT = (1 << 32) - 1


def send_at_once(
    view: LogView, fd: int, offset: int, max_bytes: int, context: Context
) -> tuple[int, int] | None:
    """Do what `transfer` does by sendfile, from an open store. None where that is left to it, and nothing was
    sent; so it is in the child of a fork of the writer.

    Raises SinkError; InvalidArgumentError where sendfile can't serve the sink; StorageError of the segment's
    file.
    """
    known: Sendable | None = view.sendable
    if known is None or not known.first <= offset < known.below:
        known = sendable(view, offset, context)
    handle = None if known is None else known.handle()
    if known is None or handle is None or getsignal(SIGPIPE) != SIG_IGN:
        view.sendable = None
        return None
    try:
        result = context.files.send_stretch(fd, handle, known.segment, offset, max_bytes)
    except (InterruptedError, BlockingIOError):
        return None
    except OSError as error:
        raise told(error, handle, _BY, fd, context.files) from error
    if result > 0:
        return result >> 32, offset + (result & _NEXT)
    if result == _SLOW:
        view.sendable = None
        return None
    return _finish(fd, handle, known, offset, max_bytes, _PART - result, context.files)


class Sendable:
    """A segment of a view as `seg_send_stretch` takes it, for offsets from `first` on that are less than
    `below`. The log is not held open.
    """

    __slots__ = ("_memory", "below", "first", "handle", "segment")

    def __init__(self, view: LogView, slot: int, handle: Handle, index: View, here: Any) -> None:
        segment = view.segments[slot]
        end, self.below = view.bounds(slot)
        self.first = max(segment.base_offset, view.start_offset)
        self.handle = ref(handle)
        self._memory = index, here  # which are there for as long as `segment` refers to them
        fields = index.pointer, index.n, segment.base_offset, end, view.end_offset, self.below, -1, -1, here
        self.segment = ffi.new(_SENDABLE, fields)


def sendable(view: LogView, offset: int, context: Context) -> Sendable | None:
    """Have `view` remember the segment that holds `offset`, and return it; None where it is not in the view,
    or has to be opened first.
    """
    view.sendable = known = _sendable(view, offset, context)
    return known


def _sendable(view: LogView, offset: int, context: Context) -> Sendable | None:
    if not view.start_offset <= offset < view.end_offset:
        return None
    slot = view.slot(offset)
    segment = view.segments[slot]
    ready = None if segment.may_be_old else segment.ready()
    here = context.here_for_c if context.writable else ffi.NULL
    return None if ready is None or here is None else Sendable(view, slot, *ready, here)


def _finish(
    fd: int, handle: Handle, known: Sendable, offset: int, max_bytes: int, done: int, files: Files
) -> tuple[int, int]:
    """Send the rest of a stretch of which `done` bytes were sent; returns its bytes, and the offset behind
    it.
    """
    found, of = ffi.new(_FOUND), known.segment
    where = of.index, of.n, of.base_offset, of.end, of.end_offset
    if not files.find_stretch(handle, found, *where, -1, offset, max_bytes):
        raise shorter(handle)
    sender = Straight(files.sendfile, unseen(fd))
    deliver(sender, fd, files, handle, found.position + done, found.stop, _BY)
    return found.stop - found.position, min(found.next_offset, known.below)
