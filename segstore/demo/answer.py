"""What the stream must have counted: the same from the package's own file, by pyarrow alone; and what is in
the log. On disk: reads only. Threads: any.
"""

from __future__ import annotations

import json
from typing import Any

import segstore
from segstore.demo.flights import hours, raw
from segstore.demo.look import batches
from segstore.errors import StorageError

COLUMNS = ("carrier", "hour", "flights", "left", "delay", "most")
"""Airline, ms since the epoch, flights, how many of them left, minutes of delay of these: in all, at most."""


def batch_answer(records: int) -> Any:
    """An arrow table of COLUMNS, a row for each airline and hour that had flights, in order of both."""
    import pyarrow as pa

    table = raw(records)
    held = pa.table(
        [table["carrier"], pa.array(hours(table)), table["dep_delay"]], ["carrier", "hour", "delay"]
    )
    counts = [([], "count_all"), ("delay", "count"), ("delay", "sum"), ("delay", "max")]
    return _in_order(held.group_by(["carrier", "hour"]).aggregate(counts).rename_columns(COLUMNS))


def streamed_answer(logs: list[segstore.PartitionLog]) -> Any:
    """The same of what is in the log, as often as it is there."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for log in logs:
        for records in batches(log):
            columns["carrier"] += [(key or b"").decode() for key in records.keys.tolist()]
            columns["hour"] += records.timestamps.tolist()
            for value in records.values.tolist():
                counted = json.loads(value or b"{}")
                for name in COLUMNS[2:]:
                    columns[name].append(counted[name])
    kinds = [pa.string(), *[pa.int64()] * (len(COLUMNS) - 1)]
    return _in_order(
        pa.table([pa.array(columns[n], t) for n, t in zip(COLUMNS, kinds, strict=True)], COLUMNS)
    )


def _in_order(table: Any) -> Any:
    return table.sort_by([(name, "ascending") for name in COLUMNS]).combine_chunks()


def compare(streamed: Any, answer: Any) -> None:
    """StorageError where the one is not the other, with what is missing, doubled or wrong."""
    if streamed.equals(answer):
        return
    found, expected = _windows(streamed), _windows(answer)
    doubled = streamed.num_rows - len(found)
    missing, other = len(expected.keys() - found.keys()), len(found.keys() - expected.keys())
    wrong = sum(found[window] != counts for window, counts in expected.items() if window in found)
    raise StorageError(
        f"the stream's result is not the batch answer: of {len(expected):,} windows {missing:,} are missing, "
        f"{doubled:,} doubled, {wrong:,} wrong, and {other:,} are of no flights"
    )


def _windows(table: Any) -> dict[tuple[str, int], tuple[int, ...]]:
    rows = zip(*(table[name].to_pylist() for name in COLUMNS), strict=True)
    return {(row[0], row[1]): row[2:] for row in rows}


def worst(answer: Any, least: int, count: int) -> list[tuple[str, int, int, float]]:
    """Airline, hour, flights and mean delay (minutes) of those `count` windows that waited longest, among
    those in which at least `least` flights left.
    """
    rows = zip(*(answer[name].to_pylist() for name in COLUMNS[:5]), strict=True)
    means = [(*row[:3], row[4] / row[3]) for row in rows if row[3] >= least]
    return sorted(means, key=lambda row: -row[3])[:count]
