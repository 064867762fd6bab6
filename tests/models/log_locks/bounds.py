"""How large the space is that is searched, and which fault is planted."""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """`appenders` append `records` batches each, `room` of which fit a segment; the first `slotless` of them
    find no free slot. `python_writes`: C writes by a function of Python's; else the first `keeping` appenders
    keep the interpreter's lock. `pool`: how the pool lets the tail go of the descriptor, "pause" or "quit";
    `syncs`: one thread syncs by C; `fence`: one thread fences the log; `hangs`: C's writes end when the pool
    has quit, and nobody waits any more who could go elsewhere. So many signals come whose handlers raise, and
    so many writes break off.
    """

    appenders: int = 2
    records: int = 1
    room: int = 3
    slotless: int = 0
    python_writes: bool = False
    keeping: int = 0
    is_open: bool = True
    pool: str = ""
    syncs: bool = False
    fence: bool = False
    hangs: bool = False
    interrupts: int = 0
    failures: int = 0
    bug: str = ""
