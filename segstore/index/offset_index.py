"""`<base offset>.index`: entries of relative offset int32 and position int32, big-endian
(org.apache.kafka.storage.internals.log.OffsetIndex).

An entry is the last offset of a batch, relative to the segment's base offset, and where that batch
begins in the log. Threads: see `sparse`.
"""

from __future__ import annotations

import struct

from segstore._native import lib
from segstore.index.sparse import ActiveIndex, SealedIndex, SparseIndex


class OffsetIndex(SparseIndex):
    """`lookup(relative_offset)` gives (relative offset, position)."""

    ENTRY = struct.Struct(">ii")
    OFFSET_FIELD = 0
    _slot = lib.seg_offset_slot
    _valid = lib.seg_offset_valid


class ActiveOffsetIndex(OffsetIndex, ActiveIndex):
    """The offset index of a partition's active segment."""


class SealedOffsetIndex(OffsetIndex, SealedIndex):
    """The offset index of a sealed segment, or as a reader in another process sees it."""
