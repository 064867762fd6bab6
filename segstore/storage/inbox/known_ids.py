"""`KnownIds`: the ids of adopted manifests in memory, and which of them are dropped when there are too many;
`check_again` compares records that come under an adopted id.

Nothing is on disk: `adopted_ids` has the file of one directory. Threads: one at a time.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import NamedTuple

from segstore.errors import IdempotencyConflictError

GUESTS = "segstore.guests"
"""The series of the ids under which guests of a shared store append what is long: nobody asks for one behind
its append."""
_MOST_OF_GUESTS = 1000


class Adoption(NamedTuple):
    """A manifest that was adopted: its id, when (ms), and first and end offset by partition.

    `others` counts the offsets in these spans that are none of its records: 0, but in a replicated store,
    where others may append between its batches. `source` is what its sealer said the records were made of.
    """

    id: str
    adopted_ms: int
    offsets: dict[tuple[str, int], tuple[int, int]]
    others: int = 0
    source: str = ""

    @property
    def records(self) -> int:
        """Return how many records were adopted."""
        return sum(end - first for first, end in self.offsets.values()) - self.others

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.adopted_ms / 1000, timezone.utc).isoformat()
        return f"{self.id!r} is in the log since {since} with {_counted(self.records, self.source)}"


def check_again(known: Adoption, records: int, source: str) -> None:
    """Raise IdempotencyConflictError unless `records` that come under an adopted id are the same work again.

    The source decides if both have one: of the same source a second run may make other rows, in another
    order (random columns, a query that was changed), and they were written once all the same. Without it the
    numbers of records must agree. No records are no conflict: nothing is dropped.
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
    """Adopted ids, the newest last; `retention_ms` and `count` bound how long they are kept, and how many."""

    def __init__(self, retention_ms: int, count: int) -> None:
        self._retention_ms, self._count = retention_ms, count
        self._held: dict[str, Adoption] = {}
        self._last: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._held)

    def find(self, id_: str) -> Adoption | None:
        return self._held.get(id_)

    def all(self) -> list[Adoption]:
        """Return all that are kept, the newest last."""
        return list(self._held.values())

    def keep(self, adoption: Adoption) -> None:
        """Add an id."""
        self._held[adoption.id] = adoption
        self._last[_series(adoption.id)] = adoption.id

    def forget(self, id_: str) -> None:
        """Remove an id that was not adopted after all."""
        self._held.pop(id_, None)
        self._last = {_series(each): each for each in self._held}

    def expire(self, now_ms: int) -> list[str]:
        """Drop ids by age, and the oldest where there are too many; return those that were dropped. The
        newest stays. Ids that are not the newest of their series are dropped first: a Spark query that is
        started again after a crash comes with its last id, however many ids others have added.
        """
        newest, least = next(reversed(self._held), None), now_ms - self._retention_ms
        old = [id_ for id_, held in self._held.items() if id_ != newest and held.adopted_ms < least]
        guests = [id_ for id_ in self._held if _series(id_) == GUESTS]
        old += [id_ for id_ in guests[:-_MOST_OF_GUESTS] if id_ not in old]
        dropped = [self._drop(id_) for id_ in old]
        for spared in (True, False):
            for id_ in list(self._held) if len(self._held) > self._count else ():
                if id_ != newest and not (spared and self._last.get(_series(id_)) == id_):
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
    """Return the part that ids which follow one another share: all before the last "/"."""
    return id_.rpartition("/")[0]
