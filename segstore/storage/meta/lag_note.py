"""`LagNote`: the standby's lag, for other processes. The process that has the primary or the standby open
writes the lag into `.segstore/lags`, a `CheckedFile` that is never synced.

Threads: any, because a `LagNote` never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from segstore import names
from segstore.storage.meta.checked_file import CheckedFile

PRIMARY = "primary"
LONGEST_MS, FRESH_MS = 5_000, 15_000
"""A live process writes the note at least every LONGEST_MS, so the process that wrote a note older than
FRESH_MS has died.
"""
_INTS = (int, int, int, int)


class NotedLag(NamedTuple):
    """The standby's lag in one partition: `records`, `bytes` (-1 if not known), and the `ms` since the
    standby last had all records.
    """

    topic: str
    partition: int
    records: int
    bytes: int
    ms: int


@dataclass(frozen=True)
class LagNote:
    """The lag of a standby. `side` is PRIMARY or `role.STANDBY`, and says which of the two stores has written
    the note. `directory_id` is the standby's directory id. `at_ms` is the time of the note. `waits` is the
    reason why the standby does not fetch, "" if it fetches. A replica that has lagged for `lag_time_max_ms`
    is not in sync. `partitions` has the partitions that the standby has fetched.
    """

    side: str
    directory_id: str
    at_ms: int
    waits: str
    lag_time_max_ms: int
    partitions: tuple[NotedLag, ...]


def _made(held: dict[str, Any]) -> LagNote:
    rows = tuple(NotedLag(*row) for row in held["partitions"])
    note = LagNote(**{**held, "partitions": rows})
    if any((type(row.topic), *map(type, row[1:])) != (str, *_INTS) for row in rows):
        raise ValueError("a partition's lag has other types")
    if (type(note.at_ms), type(note.lag_time_max_ms), type(note.waits)) != (int, int, str):
        raise ValueError(f"at_ms {note.at_ms!r}, lag_time_max_ms {note.lag_time_max_ms!r}")
    return note


LAG_NOTE = CheckedFile(names.LAGS, "note of lags", _made, 1 << 26)
