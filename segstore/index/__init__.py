"""Sparse index files beside a segment's log: hints that are derived from the log, never evidence.

`sparse` states the thread contract of active and sealed indexes.
"""

from __future__ import annotations

from segstore.index.builder import IndexBuilder
from segstore.index.sparse import (
    ActiveOffsetIndex,
    ActiveTimeIndex,
    OffsetIndex,
    SealedOffsetIndex,
    SealedTimeIndex,
    TimeIndex,
    replace_index,
)

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
