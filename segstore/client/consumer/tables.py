"""A fetch as one Arrow table. Nothing on disk. Functions without state: safe from any thread.

pyarrow is imported when a table is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from segstore.client.structs import TopicPartition
from segstore.records import Records

if TYPE_CHECKING:
    import pyarrow

_LEAST = 1 << 14


def table(parts: Sequence[tuple[TopicPartition, Records]]) -> pyarrow.Table:
    """The parts one after the other, with columns "topic" (dictionary of int32 to string) and "partition"
    (int32) before those of `Records.to_arrow`; without rows where there are no parts.
    """
    import pyarrow as pa

    whole = schema()
    # All chunks share one dictionary, so that none must be made to agree with another.
    topics = list(dict.fromkeys(tp.topic for tp, _ in parts))
    codes = {topic: code for code, topic in enumerate(topics)}
    names = pa.array(topics, pa.string())
    batches = []
    for tp, records in parts:
        for batch in records.to_arrow().to_batches():
            n = batch.num_rows
            topic = pa.DictionaryArray.from_arrays(_constant(codes[tp.topic], n), names, safe=False)
            arrays = [topic, _constant(tp.partition, n), *batch.columns]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=whole))
    return pa.Table.from_batches(batches, whole)


@lru_cache(maxsize=1)
def schema() -> pyarrow.Schema:
    """Of every table that `poll_arrow` gives."""
    import pyarrow as pa

    from segstore.records.arrow import SCHEMA

    topic = pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False)
    return pa.schema([topic, pa.field("partition", pa.int32(), nullable=False), *SCHEMA])


def _constant(value: int, n: int) -> Any:
    """An int32 array of `value` n times over: the beginning of one that serves many fetches."""
    return _repeated(value, max(_LEAST, 1 << (n - 1).bit_length()))[:n]


@lru_cache(maxsize=32)
def _repeated(value: int, n: int) -> Any:
    import pyarrow as pa

    return pa.array(np.full(n, value, np.int32))
