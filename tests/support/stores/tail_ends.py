"""Where readers see the end of a log to which C appends."""

from __future__ import annotations

from segstore._native import ffi, lib
from segstore.storage.segment.native_tail import NativeTail


def end_of(tail: NativeTail) -> tuple[int, int, int, int]:
    """The offset up to which the log was shown, its position there, the offset up to which readers see, and
    the last stable offset, -1 for that one. SEG_SLOW is the first where a child was forked within an append.
    """
    ends = ffi.new("int64_t[3]")
    shown: int = lib.seg_tail_end(tail.c, ends, ends + 1, ends + 2)
    return shown, ends[0], ends[1], ends[2]
