"""How large the space is that is searched, and which fault is planted."""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """`appenders` append `records` batches each, `room` of which fit a segment; `holder`: a thread writes a
    marker with the token; `pool`: the descriptor is closed once; `follower`: what its directory's thread
    does. `old`: the first segment is too old for the first appender. So many interrupts come, and so many
    writes break off.
    """

    appenders: int = 2
    records: int = 1
    room: int = 3
    old: bool = False
    combining: bool = True
    holder: bool = False
    pool: bool = False
    follower: tuple[str, ...] | None = None
    interrupts: int = 0
    failures: int = 0
    bug: str = ""
