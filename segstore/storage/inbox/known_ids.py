"""`KnownIds`: the ids of adopted manifests in memory, and their expiry. `check_again` compares records that
are sealed under an adopted id with the adopted records.

Nothing here is on disk; `adopted_ids` writes the ids of one directory to a file. Threads: one at a time.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import NamedTuple

from segstore.errors import IdempotencyConflictError

GUESTS = "segstore.guests"
"""The series (the part before "/") of the ids of long appends by guests of a shared store (the processes that
share the store, except the one that holds `.lock`). Nobody looks up such an id after its append.
"""
_MOST_OF_GUESTS = 1000


class Adoption(NamedTuple):
    """An adopted manifest: its id, the time of its adoption (ms), and `offsets`. For each (topic, partition),
    `offsets` has the offset of the first record and the offset after the last record.

    `others` is the number of offsets in these ranges that belong to other records: 0, except in a replicated
    store, where appends may come between the batches. `source` is the sealer's description of the records'
    origin.
    """

    id: str
    adopted_ms: int
    offsets: dict[tuple[str, int], tuple[int, int]]
    others: int = 0
    source: str = ""

    @property
    def records(self) -> int:
        """Return the number of adopted records."""
        return sum(end - first for first, end in self.offsets.values()) - self.others

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.adopted_ms / 1000, timezone.utc).isoformat()
        return f"{self.id!r} is in the log since {since} with {_counted(self.records, self.source)}"


def check_again(known: Adoption, records: int, source: str) -> None:
    """Compare `records` records of `source`, which were sealed again under the id of `known`, with the
    adopted records. Raises IdempotencyConflictError if they can't be the same.

    If both the new and the adopted records have a source, the sources must be equal. The numbers of records
    may then differ, because a second run of a job may make other rows (random columns, a changed query). If
    either source is empty, the numbers must be equal. 0 new records are never a conflict, because no record
    would be lost.
    """
    by_source = known.source and source
    same = known.source == source if by_source else known.records == records
    if records and not same:
        raise IdempotencyConflictError(
            f"{known}; {_counted(records, source)} came under this id now, and were not appended: an id is "
            "for one piece of work, which is the same each time"
        )


def _counted(records: int, source: str) -> str:
    return f"{records} records" + (f" of {source}" if source else "")


class KnownIds:
    """The ids of adopted manifests, the newest last. `retention_ms` limits their age, and `count` limits
    their number.
    """

    def __init__(self, retention_ms: int, count: int) -> None:
        self._retention_ms, self._count = retention_ms, count
        self._held: dict[str, Adoption] = {}
        self._last: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._held)

    def find(self, id_: str) -> Adoption | None:
        return self._held.get(id_)

    def all(self) -> list[Adoption]:
        """Return the adoptions of all kept ids, the newest last."""
        return list(self._held.values())

    def keep(self, adoption: Adoption) -> None:
        """Add the id of an adoption."""
        self._held[adoption.id] = adoption
        self._last[_series(adoption.id)] = adoption.id

    def forget(self, id_: str) -> None:
        """Remove an id whose adoption failed."""
        self._held.pop(id_, None)
        self._last = {_series(each): each for each in self._held}

    def expire(self, now_ms: int) -> list[str]:
        """Drop the ids that are too old, the ids in the series `GUESTS` except the last `_MOST_OF_GUESTS`,
        and the oldest ids if there are still too many. Return the dropped ids. The newest id is never
        dropped.

        If there are too many ids, the newest id of each series (the part of an id before its last "/") is
        dropped last, because a Spark query that restarts after a crash sends its last id again, however many
        ids other jobs have added.
        """
        newest, least = next(reversed(self._held), None), now_ms - self._retention_ms
        old = [id_ for id_, held in self._held.items() if id_ != newest and held.adopted_ms < least]
        guests = [id_ for id_ in self._held if _series(id_) == GUESTS]
        old += [id_ for id_ in guests[:-_MOST_OF_GUESTS] if id_ not in old]
        dropped = [self._drop(id_) for id_ in old]
        for spare_newest in (True, False):
            for id_ in list(self._held) if len(self._held) > self._count else ():
                if id_ != newest and not (spare_newest and self._last.get(_series(id_)) == id_):
                    dropped.append(self._drop(id_))
                if len(self._held) <= self._count:
                    break
        return dropped

    def _drop(self, id_: str) -> str:
        del self._held[id_]
        if self._last.get(_series(id_)) == id_:
            del self._last[_series(id_)]
        return id_


def _series(id_: str) -> str:
    """Return the part of an id before its last "/". The successive ids of one job share this part."""
    return id_.rpartition("/")[0]
