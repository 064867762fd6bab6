"""Sparse index files beside a segment's log. They are only hints, because they are derived from the log.

The docstring of `sparse` tells which threads may use active and sealed indexes.
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
