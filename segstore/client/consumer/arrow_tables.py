"""Converts the records of a fetch to one Arrow table, for `poll_arrow`. Threads: any; the functions have no
state.

pyarrow is imported when the first table is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from segstore.arrays import np
from segstore.coordinator.structs import TopicPartition
from segstore.errors import Needing
from segstore.records import Records

if TYPE_CHECKING:
    import pyarrow


def table(parts: Sequence[tuple[TopicPartition, Records]]) -> pyarrow.Table:
    """Return one table with the records of all parts, in the order of `parts`. Its columns are "topic"
    (dictionary of int32 to string), "partition" (int32) and the columns of `Records.to_arrow`. If there are
    no parts, the table has no rows. Raises MissingPackageError.
    """
    with Needing("pyarrow", "poll_arrow"):
        import pyarrow as pa

    from segstore.records.arrow import arrays, beginning

    whole = schema()
    # All chunks share one dictionary, because different dictionaries would have to be unified.
    topics = tuple(dict.fromkeys(tp.topic for tp, _ in parts))
    batches = []
    for tp, records in parts:
        for columns in arrays(records):
            n = len(columns[0])
            topic = beginning(_topic, n, topics, topics.index(tp.topic))
            partition = beginning(_constant, n, tp.partition)
            batches.append(pa.RecordBatch.from_arrays([topic, partition, *columns], schema=whole))
    return pa.Table.from_batches(batches, whole)


@lru_cache(maxsize=1)
def schema() -> pyarrow.Schema:
    """Return the schema of every table that `poll_arrow` returns."""
    import pyarrow as pa

    from segstore.records.arrow import SCHEMA

    topic = pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False)
    return pa.schema([topic, pa.field("partition", pa.int32(), nullable=False), *SCHEMA])


@lru_cache(maxsize=32)
def _constant(n: int, value: int) -> Any:
    import pyarrow as pa

    return pa.array(np.full(n, value, np.int32))


@lru_cache(maxsize=32)
def _topic(n: int, topics: tuple[str, ...], code: int) -> Any:
    import pyarrow as pa

    from segstore.records.arrow import beginning

    return pa.DictionaryArray.from_arrays(beginning(_constant, n, code), _dictionary(topics), safe=False)


@lru_cache(maxsize=32)
def _dictionary(topics: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.array(topics, pa.string())
