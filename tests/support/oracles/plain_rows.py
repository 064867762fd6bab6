"""The rows of a topic, read record by record in Python, and what queries make of them: the answers that
engines must give.

Each batch is read on its own by `PartitionLog.read`, uncommitted. Committed rows are found without the
engine's help: of them a drawn table knows which ones were aborted. On disk: only reads. Threads: one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from predicates import Predicate

import segstore
from segstore.storage.scans.bounds import Bounds

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
Headers = tuple[tuple[str, "bytes | None"], ...]
Answer = list[tuple[Any, ...]]


class Row(NamedTuple):
    """One record; `headers` None if there are none, as in a table."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None


def rows_of(log: segstore.PartitionLog) -> list[Row]:
    """Return all records of a partition that are there now."""
    found, at, end = [], log.start_offset, log.end_offset
    while at < end:
        read = log.read(at, max_bytes=1)
        found += [_row(log, read.batches, record) for record in read]
        if read.next_offset <= at:
            break
        at = read.next_offset
    return found


def _row(log: segstore.PartitionLog, batches: Any, record: segstore.Record) -> Row:
    for batch in batches:
        if batch["base_offset"] <= record.offset <= batch["last_offset"]:
            kind = int(batch["attributes"]) >> 3 & 1
            break
    else:
        raise AssertionError(f"{record} is in no batch")
    headers = tuple(map(tuple, record.headers)) or None
    return Row(
        log.topic, log.partition, record.offset, record.timestamp, kind, record.key, record.value, headers
    )


class Part(NamedTuple):
    """A partition: its rows, its ends, and the offsets of aborted records."""

    rows: Sequence[Row]
    start_offset: int
    end_offset: int
    last_stable_offset: int
    aborted: Collection[int]


Parts = Mapping[int, Part]


def parts_of(store: segstore.Store, topic: str, aborted: Collection[tuple[int, int]]) -> dict[int, Part]:
    """Read all partitions of a topic; `aborted` has partitions and offsets."""
    found = {}
    for number in store.topics()[topic].partition_ids:
        log = store.partition(topic, number)
        gone = {offset for partition, offset in aborted if partition == number}
        ends = log.start_offset, log.end_offset, log.last_stable_offset
        found[number] = Part(rows_of(log), *ends, gone)
    return found


class Terms(NamedTuple):
    """What is scanned, as `Store.scan` takes it; None is its default."""

    partitions: tuple[int, ...] | None = None
    start: int | None = None
    end: int | None = None
    from_time: int | None = None
    to_time: int | None = None
    isolation_level: str = "read_uncommitted"

    def given(self) -> dict[str, Any]:
        """Return those that are not None."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def rows_within(parts: Parts, terms: Terms) -> list[Row]:
    """Return the rows that a scan by these terms gives, in its order."""
    found: list[Row] = []
    for number in parts if terms.partitions is None else dict.fromkeys(terms.partitions):
        found += _within(parts[number], terms)
    return found


def _within(part: Part, terms: Terms) -> list[Row]:
    start, end = part.start_offset, part.end_offset
    if terms.start is not None:
        start = terms.start
    if terms.from_time is not None:
        start = _offset_for_time(part, terms.from_time)
    if terms.end is not None:
        end = min(end, terms.end)
    if terms.to_time is not None:
        end = min(end, _offset_for_time(part, terms.to_time))
    rows = [row for row in part.rows if start <= row.offset < end]
    if terms.isolation_level == "read_committed":
        rows = [r for r in rows if r.offset < part.last_stable_offset and r.offset not in part.aborted]
    return rows


def _offset_for_time(part: Part, time: int) -> int:
    return next((row.offset for row in part.rows if row.timestamp >= time), part.end_offset)


class Query(NamedTuple):
    """What is asked of the rows within `terms`. `kind`: "rows"; "head", any `limit` of the rows; "count";
    "groups": of each partition its number, its rows, first and last offset, and largest timestamp.
    """

    columns: tuple[str, ...] = COLUMNS
    predicate: Predicate | None = None
    kind: str = "rows"
    limit: int = 0
    terms: Terms = Terms()
    bounds: Bounds = Bounds()
    """For engines that take bounds in place of a predicate."""

    def __repr__(self) -> str:
        where = "" if self.predicate is None else f" where {self.predicate.sql()}"
        told = f"{self.kind} {self.limit} " if self.kind == "head" else f"{self.kind} "
        return f"{told}of {', '.join(self.columns)}{where}; {self.terms.given()}; {self.bounds}"


KINDS = ("rows", "rows", "rows", "head", "count", "groups")


def met(rows: Sequence[Row], query: Query) -> list[Row]:
    """Return the rows for which the query's predicate holds."""
    return [row for row in rows if query.predicate is None or query.predicate.holds(row) is True]


def projected(rows: Sequence[Row], columns: Sequence[str]) -> Answer:
    return [tuple(getattr(row, name) for name in columns) for row in rows]


def groups_of(rows: Sequence[Row]) -> Answer:
    """Return partition, rows, least and largest offset, and largest timestamp of each partition."""
    found = []
    for number in sorted({row.partition for row in rows}):
        of = [row for row in rows if row.partition == number]
        offsets = [row.offset for row in of]
        found.append((number, len(of), min(offsets), max(offsets), max(row.timestamp for row in of)))
    return found


def is_within(row: Row, bounds: Bounds) -> bool:
    return (
        (bounds.partitions is None or row.partition in bounds.partitions)
        and bounds.first_offset <= row.offset <= bounds.last_offset
        and bounds.first_time <= row.timestamp <= bounds.last_time
    )


# --- judging -------------------------------------------------------------------------------------


def wrong_with(answer: Answer, rows: Sequence[Row], query: Query, ordered: bool) -> str | None:
    """Return what is wrong with an answer to a query of all `rows` within its terms, or None."""
    wanted = met(rows, query)
    if query.kind == "groups":
        return _difference(groups_of(wanted), sorted(answer), True)
    if query.kind == "count":
        return None if answer == [(len(wanted),)] else f"counted {answer}, not {len(wanted)}"
    expected = projected(wanted, query.columns)
    if query.kind == "head":
        if len(answer) != min(query.limit, len(expected)):
            return f"{len(answer)} rows, not {min(query.limit, len(expected))}"
        extra = Counter(answer) - Counter(expected)
        return f"not there: {_some(extra)}" if extra else None
    return _difference(expected, answer, ordered)


def wrong_with_bounded(answer: Answer, rows: Sequence[Row], query: Query) -> str | None:
    """Return what is wrong with an answer in order that has the rows within the query's bounds, and may have
    others.
    """
    left = iter(projected(rows, query.columns))
    for each in answer:
        if each not in left:  # it takes them up to this one
            return f"not there, there twice or out of order: {each}"
    inside = projected([row for row in rows if is_within(row, query.bounds)], query.columns)
    missing = Counter(inside) - Counter(answer)
    return f"missing: {_some(missing)}" if missing else None


def _difference(expected: Answer, answer: Answer, ordered: bool) -> str | None:
    missing, extra = Counter(expected) - Counter(answer), Counter(answer) - Counter(expected)
    if missing or extra:
        told = f"{len(answer)} rows, {len(expected)} expected"
        return f"{told}; missing: {_some(missing)}; not there: {_some(extra)}"
    if ordered and expected != answer:
        at = next(i for i, pair in enumerate(zip(expected, answer, strict=True)) if pair[0] != pair[1])
        return f"out of order from row {at} on: {answer[at]}, not {expected[at]}"
    return None


def _some(rows: Counter[tuple[Any, ...]]) -> str:
    told = [repr(row)[:300] for row in list(rows)[:3]]
    return f"{len(rows)} ({'; '.join(told)})" if rows else "none"
