"""Sparse index files beside a segment's log: hints that are derived from it, never evidence.

Nothing on disk of its own; see `sparse` for the thread contract of active and sealed indexes.
"""

from __future__ import annotations

from segstore.index.builder import IndexBuilder
from segstore.index.offset_index import ActiveOffsetIndex, OffsetIndex, SealedOffsetIndex
from segstore.index.sparse import replace_index
from segstore.index.time_index import ActiveTimeIndex, SealedTimeIndex, TimeIndex

__all__ = [
    "ActiveOffsetIndex",
    "ActiveTimeIndex",
    "IndexBuilder",
    "OffsetIndex",
    "SealedOffsetIndex",
    "SealedTimeIndex",
    "TimeIndex",
    "replace_index",
]
