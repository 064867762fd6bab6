"""The index builder makes a segment's index entries from its batch headers, for a segment that is written or
indexed as a whole. The entries of the active segment are made by C, when batches are appended
(`_native/active.c`).

The rules are those of org.apache.kafka.storage.internals.log.LogSegment.append. The entries depend only on
the batches and `index.interval.bytes`, so that a rebuilt index equals the original. Nothing is on disk.
Threads: one at a time.
"""

from __future__ import annotations

import os
from typing import Any

from segstore import names
from segstore._native import ffi, held, lib
from segstore.index.sparse import OffsetIndex, TimeIndex

State = tuple[int, int, int, int]
_FIELDS = ("bytes_since", "max_timestamp", "max_timestamp_offset", "last_time_entry")
_LEAST_ROOM = 64  # the buffers have room for the entries of at least this many batches
EMPTY = dict(zip(_FIELDS, (0, -1, -1, -1), strict=True))
"""The state of a segment without batches."""


def closing_entry(state: Any, base_offset: int) -> bytes:
    """Return the time index entry that is added when a segment is sealed or closed, or b"" if the last entry
    has the largest timestamp already. `state` is the segment's `seg_index_state`; the timestamp of the entry
    is stored in it.
    """
    if state.max_timestamp <= state.last_time_entry:
        return b""
    state.last_time_entry = state.max_timestamp
    return TimeIndex.ENTRY.pack(state.max_timestamp, state.max_timestamp_offset - base_offset)


class IndexBuilder:
    """Makes the index entries of one segment. `state` is the state of its indexes after the batches that were
    added.
    """

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        """Begin without entries."""
        self.base_offset, self.interval_bytes = base_offset, interval_bytes
        self._state = ffi.new("seg_index_state *", EMPTY)
        self._n_time = ffi.new("int64_t *")
        self._capacity = -1  # -1: there are no buffers for entries yet

    @property
    def state(self) -> State:
        """Return (bytes since the last entry, largest timestamp or -1, offset of that timestamp, timestamp of
        the last time index entry). Setting an earlier state undoes the later calls of `add`.
        """
        s = self._state
        return s.bytes_since, s.max_timestamp, s.max_timestamp_offset, s.last_time_entry

    @state.setter
    def state(self, state: State) -> None:
        for name, value in zip(_FIELDS, state, strict=True):
            setattr(self._state, name, value)

    def add(self, batches: Any) -> tuple[bytes, bytes]:
        """Return (entries for the offset index, entries for the time index) that these batches add.

        `batches` is memory with `seg_batch` structs, in the order of the log; each `position` is a byte of
        the segment's log file. Raises OSError (EOVERFLOW) if a relative offset or a position doesn't fit an
        int32; the state does not change then.
        """
        first = held("seg_batch[]", batches)
        n = len(first)
        if n > self._capacity:
            self._room(max(n, _LEAST_ROOM))
        made = lib.seg_index_entries(
            first,
            n,
            self.base_offset,
            self.interval_bytes,
            self._state,
            self._offset_out,
            self._time_out,
            self._n_time,
        )
        if made < 0:
            raise OSError(-made, os.strerror(-made), names.segment_file(self.base_offset, names.LOG))
        if not made:
            return b"", b""
        offsets = ffi.buffer(self._offset_out, made * OffsetIndex.ENTRY.size)[:]
        return offsets, ffi.buffer(self._time_out, self._n_time[0] * TimeIndex.ENTRY.size)[:]

    def last_time_entry(self) -> bytes:
        """Return the time index entry that sealing adds (`closing_entry`)."""
        return closing_entry(self._state, self.base_offset)

    def _room(self, n: int) -> None:
        offset_out = ffi.new("uint8_t[]", n * OffsetIndex.ENTRY.size)
        time_out = ffi.new("uint8_t[]", n * TimeIndex.ENTRY.size)
        # This is one statement, because an interrupt must not leave `_capacity` larger than the buffers.
        self._offset_out, self._time_out, self._capacity = offset_out, time_out, n
