"""Defects of tables, each planted at one seam: a game that does not find one is no judge.

Each is a function that patches, by a `pytest.MonkeyPatch`. Nothing is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from plain_rows import rows_of

from segstore.records import CONTROL_FLAG
from segstore.storage.scans import piece_reader
from segstore.storage.scans.bounds import ALL, INT64_MIN, Bounds
from segstore.storage.scans.topic_scan import TopicScan
from segstore.tables import topic_scanner

Batches = Iterator[pa.RecordBatch]
Read = Callable[[TopicScan, "Sequence[str] | None", Bounds], Batches]


Mutation = Callable[[pytest.MonkeyPatch], None]


def _reads(change: Callable[[Read, TopicScan, Sequence[str] | None, Bounds], Batches]) -> Mutation:
    """Return the mutation that puts `change`, which gets the original first, in place of
    `TopicScan.batches`.
    """

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        original = TopicScan.batches

        def batches(
            self: TopicScan, columns: Any = None, bounds: Bounds = ALL, finish: Any = None
        ) -> Batches:
            for batch in change(original, self, columns, bounds):
                yield batch if finish is None else finish(batch)

        monkeypatch.setattr(TopicScan, "batches", batches)

    return plant


# --- defects -------------------------------------------------------------------------------------


def _last_offset_left_out(read: Read, scan: TopicScan, columns: Any, bounds: Bounds) -> Batches:
    return read(scan, columns, bounds._replace(last_offset=bounds.last_offset - 1))


def _times_taken_to_rise(read: Read, scan: TopicScan, columns: Any, bounds: Bounds) -> Batches:
    """From the first time on, rows are read behind the last one that is earlier."""
    if bounds.first_time == INT64_MIN:
        yield from read(scan, columns, bounds)
        return
    for log, _, _ in scan.ranges:
        early = [row.offset for row in rows_of(log) if row.timestamp < bounds.first_time]
        own = Bounds(frozenset({log.partition}), first_offset=max(early, default=-1) + 1)
        yield from read(scan, columns, bounds.meet(own))


def _headers_shifted(read: Read, scan: TopicScan, columns: Any, bounds: Bounds) -> Batches:
    for batch in read(scan, columns, bounds):
        if "headers" not in batch.schema.names or not batch.num_rows:
            yield batch
            continue
        at = batch.schema.names.index("headers")
        column = batch.column(at)
        shifted = pa.concat_arrays([column.slice(1), column.slice(0, 1)])
        yield batch.set_column(at, batch.schema.field(at), shifted)


def _kinds_of_the_first(read: Read, scan: TopicScan, columns: Any, bounds: Bounds) -> Batches:
    """All rows of a batch have the timestamp type of its first row."""
    for batch in read(scan, columns, bounds):
        if "timestamp_type" not in batch.schema.names or not batch.num_rows:
            yield batch
            continue
        at = batch.schema.names.index("timestamp_type")
        kinds = pc.add(pc.multiply(batch.column(at), 0), batch.column(at)[0]).cast(pa.int8())
        yield batch.set_column(at, batch.schema.field(at), kinds)


def _empty_is_null(read: Read, scan: TopicScan, columns: Any, bounds: Bounds) -> Batches:
    for batch in read(scan, columns, bounds):
        for at, name in enumerate(batch.schema.names):
            if name in ("key", "value"):
                column = batch.column(at)
                there = pc.not_equal(pc.binary_length(column), 0)
                nulls = pa.nulls(len(column), pa.binary())
                batch = batch.set_column(at, batch.schema.field(at), pc.if_else(there, column, nulls))
        yield batch


# --- defects of pieces ----------------------------------------------------------------------------


def _gaps_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers are taken to tell of batches with gaps, too."""
    original = piece_reader._runs

    def runs(*of: Any) -> Iterator[tuple[int, int, int]]:
        for kind, first, last in original(*of):
            for each in range(first, last):
                yield piece_reader._DENSE if kind == piece_reader._READ else kind, each, each + 1

    monkeypatch.setattr(piece_reader, "_runs", runs)


def _aborted_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing asks which batches were aborted."""

    def wanted(self: Any, batches: Any) -> Any:
        return (batches["attributes"] & CONTROL_FLAG) == 0, batches

    monkeypatch.setattr(piece_reader._Making, "_wanted", wanted)


def _stamped_by_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is left out if its largest timestamp is not within the bounds."""

    def stamped(data: Any, batches: Any, position: int, first: int, last: int) -> Any:
        return (batches["max_timestamp"] >= first) & (batches["max_timestamp"] <= last)

    monkeypatch.setattr(piece_reader, "stamped", stamped)


# --- defects of engines ---------------------------------------------------------------------------


def _bounds_of_dataset(change: Callable[[Bounds], Bounds]) -> Mutation:
    """Return the mutation of what a dataset's filter says of bounds."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        original = topic_scanner.bounds_of
        monkeypatch.setattr(topic_scanner, "bounds_of", lambda *of: change(original(*of)))

    return plant


def _exclusive(bounds: Bounds) -> Bounds:
    return bounds._replace(last_time=bounds.last_time - 1)


def _not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """polars' predicate is taken to be met by all that is within its bounds."""
    monkeypatch.setattr(pl.DataFrame, "filter", lambda self, *_, **__: self)


def _wrong_or(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is within one of two bounds is taken to be within both."""
    monkeypatch.setattr(Bounds, "join", Bounds.meet)


MUTATIONS: dict[str, Mutation] = {
    "the last offset is left out": _reads(_last_offset_left_out),
    "times are taken to rise": _reads(_times_taken_to_rise),
    "gaps are counted": _gaps_counted,
    "aborted records are counted": _aborted_counted,
    "a batch's largest timestamp is that of all": _stamped_by_the_largest,
    "headers are shifted by a row": _reads(_headers_shifted),
    "timestamp types are those of the first row": _reads(_kinds_of_the_first),
    "what is empty is null": _reads(_empty_is_null),
    "a dataset's last time is left out": _bounds_of_dataset(_exclusive),
    "a predicate is not applied within its bounds": _not_applied,
    "one or the other is both": _wrong_or,
}
