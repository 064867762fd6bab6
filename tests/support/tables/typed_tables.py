"""Topics whose values are decoded, and the rows that tables have of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

import segstore
from segstore.storage.scans.columns import TOPIC_SCHEMA
from segstore.tables.table import Table, table_of

Value = bytes | None


def written(store: segstore.Store, values: Sequence[Value], topic: str = "t") -> segstore.PartitionLog:
    """Return the log of a topic with these values."""
    store.ensure_topic(topic)
    log = store.partition(topic)
    log.append_batch(list(values))
    return log


def table(store: segstore.Store, values: Sequence[Value], kind: Any, **options: Any) -> Table:
    """Return the table of a new topic with these values."""
    written(store, values)
    return table_of(store, "t", kind, **options)


def read(made: Table, columns: Sequence[str] | None = None) -> pa.Table:
    """Return all of some columns, each as it should be by Arrow's own rules."""
    names = made.schema.names if columns is None else columns
    schema = pa.schema([made.schema.field(name) for name in names])
    found = pa.Table.from_batches(made.batches(columns), schema)
    found.validate(full=True)
    return found


def decoded_names(made: Table) -> list[str]:
    """Return the columns in place of the value."""
    others = set(TOPIC_SCHEMA.names) - {"value"}
    return [name for name in made.schema.names if name not in others]


def rows(made: Table) -> list[dict[str, Any]]:
    """Return the rows of the decoded columns."""
    return read(made, decoded_names(made)).to_pylist()


def spoilt(
    rng: random.Random, good: Callable[[int], bytes], bad: Callable[[], bytes], n: int
) -> tuple[list[Value], list[int]]:
    """Return values, some of which are null, and at which offsets they are bad, at least one."""
    values: list[Value] = [None if rng.random() < 0.1 else good(i) for i in range(n)]
    at = sorted(rng.sample(range(n), rng.choice([1, 2, n // 3, n])))
    for i in at:
        values[i] = bad()
    return values, at
