"""How large the space is that is searched, and which fault is planted."""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """`appends` of each guest; the first `strangers` have not opened the log's files yet. `of_host`: appends
    of the host, by its Python, after `there` that the log begins with; `room` of all fit a segment. So many
    kills of members, fences of living guests, and writes of guests that break off. `seats` of the log.
    `reads` of a reader. `gives_up`: a guest that waits for the host may raise.
    """

    appends: tuple[int, ...] = (1, 1)
    strangers: int = 0
    of_host: int = 0
    there: int = 0
    room: int = 9
    kills: int = 0
    fences: int = 0
    failures: int = 0
    seats: int = 4
    reads: int = 0
    gives_up: bool = False
    bug: str = ""
