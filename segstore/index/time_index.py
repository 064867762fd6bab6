"""`<base offset>.timeindex`: entries of timestamp int64 and relative offset int32, big-endian
(org.apache.kafka.storage.internals.log.TimeIndex).

An entry is the largest timestamp (ms) of its segment so far and the last offset, relative to the base
offset, of the batch that has it: no record below that offset is later. Threads: see `sparse`.
"""

from __future__ import annotations

import struct
from typing import Any

from segstore._native import lib
from segstore.index.sparse import ActiveIndex, SealedIndex, SparseIndex


class TimeIndex(SparseIndex):
    """`lookup(timestamp)` gives (timestamp, relative offset)."""

    ENTRY = struct.Struct(">qi")
    OFFSET_FIELD = 1
    SPARE = 1  # for the entry that sealing adds (`IndexBuilder.last_time_entry`)
    _slot = lib.seg_time_slot

    @staticmethod
    def _valid(data: Any, n: int, end_relative: int, _log_size: int) -> int:
        return int(lib.seg_time_valid(data, n, end_relative))


class ActiveTimeIndex(TimeIndex, ActiveIndex):
    """The time index of a partition's active segment."""


class SealedTimeIndex(TimeIndex, SealedIndex):
    """The time index of a sealed segment, or as a reader in another process sees it."""
