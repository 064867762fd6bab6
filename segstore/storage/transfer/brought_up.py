"""Converts batches for transfers, which send only magic 2. If the bytes that a transfer would send have
messages of magic 0 or 1, the messages are converted to batches, which are sent from a file in memory. Other
bytes are sent from the log's file.

Files on disk are only read. Threads: any, without locks, because only segments of an immutable view are read.
"""

from __future__ import annotations

from typing import Any

from segstore._native import lib
from segstore.errors import CorruptRecordError
from segstore.files import Files, Handle
from segstore.files.given_files import in_memory
from segstore.records import bring_up, scan
from segstore.storage.segment.batch_scan import BAD
from segstore.storage.segment.segment import Segment


def as_sent(segment: Segment, handle: Handle, found: Any, most: int, files: Files) -> tuple[Handle, bool]:
    """Return the file from which a stretch (`found`, a `seg_found *`) of a segment's log is sent, and whether
    that file is the log. If batches must be converted, the file is in memory, and `found` is set to the
    position of the converted batches in that file. No batch is converted after the converted batches have
    `most` bytes. Raises OSError, and CorruptRecordError if the first batch is damaged.
    """
    if not segment.may_be_old or not files.attributes(handle, found.position, found.stop) & lib.SEG_OLD:
        return handle, True
    position = found.position
    data = files.pread(handle, found.stop - position, position)
    # `scan` checks the CRCs now, because the converted batches get new CRCs
    batches, stop = scan(data, position)
    if not len(batches):
        reason = BAD.get(stop.status, "the file was cut")
        raise CorruptRecordError(segment.path, position, found.next_offset - 1, reason)
    data, batches = bring_up(data, batches, segment.path, position, most=max(most, 1))
    size = int(batches["size"].sum())
    found.position, found.stop, found.next_offset = 0, size, int(batches["last_offset"][-1]) + 1
    return in_memory(memoryview(data)[:size]), False
