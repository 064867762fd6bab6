"""`LagNote`: the standby's lag, noted for other processes by the process that has the primary or the standby
open. On disk: `.segstore/lags`, a `CheckedFile`, written anew while it changes, and never synced.

Threads: any; immutable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from segstore import names
from segstore.storage.meta.checked_file import CheckedFile

PRIMARY = "primary"
LONGEST_MS, FRESH_MS = 5_000, 15_000
"""A live process writes the note at least every LONGEST_MS: a note older than FRESH_MS is a
dead process's.
"""
_INTS = (int, int, int, int)


class NotedLag(NamedTuple):
    """A partition, and the standby's lag in it: records, bytes (-1 if they are not known), and the ms since
    the standby last had all records.
    """

    topic: str
    partition: int
    records: int
    bytes: int
    ms: int


@dataclass(frozen=True)
class LagNote:
    """The lag of a standby. `side` is PRIMARY or `role.STANDBY`, by the role of this directory;
    `directory_id` is that of the standby. `at_ms` is the time of the note; `waits` is the reason why the
    standby is silent or stopped, "" if it works. A replica that has lagged for `lag_time_max_ms` is not in
    sync. Partitions that the standby has not fetched are missing in `partitions`.
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
