"""`LagKeeper`: writes the lags of an open primary or standby to a file, for other processes.

The file is `.segstore/lags` (`meta.lag_note`). Threads: one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from segstore.storage.context import StoreContext
from segstore.storage.meta.lag_note import LAG_NOTE, LONGEST_MS, LagNote, NotedLag

EVERY = 1.0
"""Seconds between two calls of `LagKeeper.note`."""


class Lagging(Protocol):
    """The lag of a log in records, bytes and ms; `records` is -1 if the lag is not known."""

    @property
    def records(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def ms(self) -> int: ...


class LagKeeper:
    """Writes `.segstore/lags` of one open store. An OSError of a write (a full disk) is ignored."""

    def __init__(self, context: StoreContext, side: str, lag_time_max_ms: int) -> None:
        self._context = context
        self._last = LagNote(side, "", 0, "", lag_time_max_ms, ())

    def note(self, directory_id: str, waits: str, lags: Mapping[tuple[str, int], Lagging]) -> None:
        """Write the present lags of the standby with this `directory_id`. `waits` is the reason why the
        standby does not fetch, "" if it fetches. Unchanged lags are written again only after LONGEST_MS.
        """
        rows = tuple(
            NotedLag(*key, lag.records, lag.bytes, lag.ms)
            for key, lag in sorted(lags.items())
            if lag.records >= 0
        )
        now, last = self._context.clock(), self._last
        made = replace(last, directory_id=directory_id, waits=waits, partitions=rows)
        if made == last and 0 <= now - last.at_ms < LONGEST_MS:
            return
        self._last = replace(made, at_ms=now)
        with suppress(OSError):
            LAG_NOTE.write(self._context.files, self._context.root, self._last, durably=False)
