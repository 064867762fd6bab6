"""How fast a consumer reads: `poll` and iteration into Python records, `poll_arrow` into tables.

Every CRC is checked. The table's baseline is the engine's own columnar read into Arrow, of the same log in
reads of the same size; the note tells of columns that are left in memory as they were read, as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness import Results, best_of, by_turns, new_log, random_values, reads, stamps

import segstore

RECORDS = 500_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: Any) -> Iterator[segstore.Store]:
    """Topic "t", one partition."""
    with segstore.open(tmp_path_factory.mktemp("consumer") / "store") as store:
        new_log(store, "t").append_batch(random_values(RECORDS), timestamps=stamps(RECORDS))
        yield store


def consumer(store: segstore.Store, **settings: Any) -> segstore.Consumer:
    return segstore.Consumer(store, "t", auto_offset_reset="earliest", **settings)


def polled(store: segstore.Store) -> int:
    """Records, and a look at each, by `poll` of 500."""
    count = 0
    with consumer(store) as c:
        while found := c.poll():
            for records in found.values():
                for record in records:
                    count += record.value is not None
    return count


def iterated(store: segstore.Store) -> int:
    """The same, by iteration."""
    with consumer(store, consumer_timeout_ms=0) as c:
        return sum(record.value is not None for record in c)


def tables(store: segstore.Store) -> int:
    """Records of tables with all their columns."""
    count = 0
    with consumer(store) as c:
        while rows := c.poll_arrow().num_rows:
            count += rows
    return count


def engine_tables(store: segstore.Store) -> int:
    return sum(records.to_arrow().num_rows for records in reads(store.partition("t", 0)))


def engine_columns(store: segstore.Store) -> int:
    return sum(len(records) for records in reads(store.partition("t", 0)))


@pytest.mark.parametrize(
    ("name", "reader", "target"),
    [("poll", polled, 0.6), ("iteration", iterated, 0.3)],
    ids=["poll", "iteration"],
)
def test_records(
    benchmark: Any, results: Results, filled: segstore.Store, name: str, reader: Any, target: float
) -> None:
    assert reader(filled) == RECORDS
    _, _, best = by_turns(benchmark, lambda: reader(filled), lambda: engine_tables(filled), rounds=5)
    rate = RECORDS / best / 1e6
    results.add(benchmark, f"consumer, {name}", rate, target, "M/s", True, "Python records of 100 bytes")


def test_poll_arrow(benchmark: Any, results: Results, filled: segstore.Store) -> None:
    assert tables(filled) == engine_tables(filled) == engine_columns(filled) == RECORDS
    ratio, theirs, best = by_turns(benchmark, lambda: tables(filled), lambda: engine_tables(filled))
    bare = best / best_of(5, lambda: engine_columns(filled))
    rates = f"{RECORDS / best / 1e6:.1f} to {RECORDS / theirs / 1e6:.1f} M/s"
    note = f"the time of the engine's read into Arrow; {rates}; of columns left as read {bare:.2f}"
    results.add(benchmark, "consumer, poll_arrow", 1 / ratio, 1.5, "x", False, note)
