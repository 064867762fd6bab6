"""Divides ranges of offsets among Spark's tasks, at the edges of record batches where that can be.

Nothing on disk. Threads: any; values and functions without state. The number of parts is that of Spark's
KafkaOffsetRangeCalculator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from segstore.coordinator.structs import TopicPartition

Edge = Callable[["Range", int], int]
"""(range, offset) -> the base offset of the batch that holds the offset."""


class Range(NamedTuple):
    """Offsets of a partition, `end` exclusive."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


def divide(ranges: list[Range], least_parts: int | None, most_records: int | None, edge: Edge) -> list[Range]:
    """Ranges that together are `ranges`: none of more than `most_records` offsets, about `least_parts` or
    more of them; without empty ones.
    """
    parts = [each for each in ranges if each.size]
    if most_records is not None:
        parts = [part for each in parts for part in _capped(each, most_records, edge)]
    if least_parts is not None and len(parts) < least_parts:
        parts = [part for each, n in _shares(parts, least_parts) for part in _evenly(each, n, edge)]
    return parts


def _capped(whole: Range, most: int, edge: Edge) -> Iterator[Range]:
    """A batch larger than `most` is cut within: the number of records is what was asked for."""
    start = whole.start
    while whole.end - start > most:
        cut = edge(whole, start + most)
        cut = cut if cut > start else start + most
        yield whole._replace(start=start, end=cut)
        start = cut
    yield whole._replace(start=start)


def _evenly(whole: Range, n: int, edge: Edge) -> Iterator[Range]:
    start = whole.start
    for i in range(1, n):
        cut = edge(whole, whole.start + whole.size * i // n)
        if cut > start:
            yield whole._replace(start=start, end=cut)
            start = cut
    yield whole._replace(start=start)


def _shares(parts: list[Range], least: int) -> Iterator[tuple[Range, int]]:
    """How many parts each gets: small ones stay whole, and the others share what is left by size."""
    total = sum(each.size for each in parts)
    small = {each for each in parts if _count(each.size, total, least) == 1}
    total -= sum(each.size for each in small)
    left = max(least - len(small), 1)
    for each in parts:
        yield each, 1 if each in small else _count(each.size, total, left)


def _count(size: int, total: int, parts: int) -> int:
    return max(round(size / total * parts), 1) if total else 1
