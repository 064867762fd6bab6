"""Sends whole batches as they lie on disk to a socket, pipe or file, without decoding them.

On disk: reads only. Threads: any, without locks; the pipe or buffer that a method needs is the call's own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from segstore._native import ffi
from segstore.errors import InvalidTypeError, SegstoreError, StorageError
from segstore.files import Files, Handle
from segstore.storage.gaps import MayBeMissing
from segstore.storage.reader import first_batch
from segstore.storage.segment import Segment
from segstore.storage.view import LogView

METHODS = ("sendfile", "splice", "mmap", "read")
_BUFFER = 1 << 16
Send = Callable[[Handle, int, int], int]


class SinkError(Exception):
    """What the sink said; `error` is the OSError, which names no file of ours."""

    def __init__(self, error: OSError) -> None:
        self.error = OSError(error.errno, error.strerror)


def transfer(
    view: LogView, sink: int, offset: int, max_bytes: int, method: str, files: Files, gaps: MayBeMissing
) -> tuple[int, int]:
    """Send batches from the one that holds `offset` on, up to `max_bytes`, at least one where there is one.

    (bytes, next offset). A sink that takes no more for now is waited for, so that it always gets
    whole batches. SinkError; OSError of a segment's file, CorruptRecordError: nothing was sent then.
    """
    done = 0
    with contextlib.ExitStack() as stack:
        send = _sender(files, sink, method, stack)
        for slot in range(view.slot(offset), len(view.segments)):
            if offset >= view.end_offset:
                break
            segment, end = view.segments[slot], view.end_of(slot)
            try:
                handle = segment.handle
                found = first_batch(view, slot, offset, view.end_offset, gaps, handle)
                if found is None:
                    continue
                if done and found.size > max_bytes - done:
                    break
                position, most = int(found.position), int(found.position) + max_bytes - done
                stop, behind = _boundary(segment, found, most, end, view.end_offset)
            except (OSError, SegstoreError):
                if done:
                    break
                raise
            _send_all(files, send, sink, handle, position, stop - position)
            done, offset = done + stop - position, min(behind, view.next_base(slot))
            if stop < end or done >= max_bytes:
                break
    return done, offset


def descriptor(sink: Any) -> int:
    """The file descriptor of a sink: an int, or what has fileno(). InvalidTypeError."""
    if isinstance(sink, int) and not isinstance(sink, bool):
        return sink
    try:
        return int(sink.fileno())
    except (AttributeError, TypeError):
        raise InvalidTypeError(
            f"sink must be a file descriptor or have fileno(), not be {type(sink).__name__}"
        ) from None


def _boundary(segment: Segment, first: Any, most: int, end: int, end_offset: int) -> tuple[int, int]:
    """Where the last whole batch ends at or below byte `most` (the first one at least), and the offset there.

    The index leads near; from there on it goes from header to header.
    """
    header = ffi.new("seg_batch *", first[0])
    index = segment.indexes[0]
    slot = bisect_right(range(index.entries), min(most, end), key=lambda i: index.entry(i)[1]) - 1
    hint = index.entry(slot) if slot >= 0 else (0, 0)
    if hint[1] > first.position and segment.header_at(hint[1], end, header) != segment.base_offset + hint[0]:
        header[0] = first[0]
    if header.position > first.position and header.position + header.size > most:
        return int(header.position), int(header.base_offset)
    position, offset = int(header.position) + int(header.size), int(header.last_offset) + 1
    while segment.header_at(position, end, header) is not None:
        if position + header.size > most or header.base_offset >= end_offset:
            break
        position, offset = position + int(header.size), int(header.last_offset) + 1
    return position, offset


def _send_all(files: Files, send: Send, sink: int, handle: Handle, position: int, count: int) -> None:
    done = 0
    while done < count:
        try:
            sent = send(handle, position + done, count - done)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            if error.errno == errno.EIO:
                raise StorageError(error.errno, error.strerror, handle.path) from error
            raise SinkError(error) from None
        else:
            if not sent and position + done >= files.size(handle):
                raise StorageError(5, "the segment became shorter while it was sent", handle.path)
        done += sent
        if done < count:
            waiting = select.poll()
            waiting.register(sink, select.POLLOUT)
            waiting.poll()


def _sender(files: Files, sink: int, method: str, stack: contextlib.ExitStack) -> Send:
    if method == "sendfile":
        return lambda handle, at, count: files.sendfile(sink, handle, at, count)
    if method == "splice":
        pipe = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, pipe[0])
        stack.callback(os.close, pipe[1])
        return lambda handle, at, count: files.splice(sink, handle, at, count, pipe)
    if method == "mmap":
        return lambda handle, at, count: _by_mmap(files, sink, handle, at, count)
    buffer = bytearray(_BUFFER)
    return lambda handle, at, count: files.copy(sink, handle, at, count, buffer)


def _by_mmap(files: Files, sink: int, handle: Handle, position: int, count: int) -> int:
    # A log below its visible end never becomes shorter, so that the mapping is safe to touch.
    try:
        memory = files.map(handle, position + count)
    except OSError as error:
        raise StorageError(error.errno, error.strerror, handle.path) from error
    with memoryview(memory) as mapped:
        try:
            return files.write(sink, mapped[position : position + count])
        except OSError as error:
            # Its traceback holds the mapping, which then could not be let go of.
            failed = OSError(error.errno, error.strerror)
    raise failed
