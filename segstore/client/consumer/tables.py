"""A fetch as one Arrow table. Nothing on disk. Functions without state: safe from any thread.

pyarrow is imported when a table is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from segstore.client.structs import TopicPartition
from segstore.records import Records

if TYPE_CHECKING:
    import pyarrow


def table(parts: Sequence[tuple[TopicPartition, Records]]) -> pyarrow.Table:
    """The parts one after the other, with columns "topic" (dictionary of int32 to string) and "partition"
    (int32) before those of `Records.to_arrow`; without rows where there are no parts.
    """
    import pyarrow as pa

    from segstore.records.arrow import SCHEMA

    fields = [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *SCHEMA,
    ]
    schema = pa.schema(fields)
    # All chunks share one dictionary, so that none must be made to agree with another.
    topics = list(dict.fromkeys(tp.topic for tp, _ in parts))
    codes = {topic: code for code, topic in enumerate(topics)}
    names = pa.array(topics, pa.string())
    batches = []
    for tp, records in parts:
        for batch in records.to_arrow().to_batches():
            n = batch.num_rows
            code, partition = (pa.array(np.full(n, x, np.int32)) for x in (codes[tp.topic], tp.partition))
            topic = pa.DictionaryArray.from_arrays(code, names, safe=False)
            arrays = [topic, partition, *batch.columns]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema)
