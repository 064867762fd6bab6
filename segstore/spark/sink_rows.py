"""`Divider`: divides Arrow rows among the partitions of topics, without a Python object for each row.

A row's partition is the value of its column `partition`. If this is null or missing, Kafka's hash of the
row's key chooses the partition. Rows without a key go to one partition until it has got about a MiB, and then
to the next partition (BuiltInPartitioner, KIP-794). Threads: one, a task's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segstore.client.producer.partitioner import key_hashes
from segstore.errors import InvalidArgumentError, InvalidRecordError, UnknownTopicOrPartitionError
from segstore.records.column import HeaderColumns
from segstore.records.columns import as_column
from segstore.storage.meta.topics import TopicInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STICKY_BYTES = 1 << 20


class SinkRows(NamedTuple):
    """Rows for one partition, in the order in which they came."""

    topic: str
    partition: int
    rows: pa.RecordBatch


class Divider:
    """Divides rows among partitions. `find(topic)` returns the topic's TopicInfo; it raises an error if there
    is no such topic. If `topic` is not None, all rows are for this topic; else the column `topic` names it.
    """

    def __init__(self, find: Callable[[str], TopicInfo], topic: str | None) -> None:
        self._find, self._topic = find, topic
        self._sticky: dict[str, int] = {}

    def groups(self, rows: pa.RecordBatch) -> Iterator[SinkRows]:
        """Divide rows, and yield the rows of each partition. Raises InvalidRecordError,
        UnknownTopicOrPartitionError.
        """
        for topic, part in self._by_topic(rows):
            info = self._find(topic)
            slots = self._slots(info, part)
            for slot, group in _grouped_by_slot(part, slots):
                yield SinkRows(topic, info.partition_ids[slot], group)

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            yield self._topic, rows
            return
        column = rows.column("topic")
        if column.null_count:
            raise InvalidRecordError(
                "column topic is null in a row: each must name its topic, or option topic one for all"
            )
        named = column.dictionary_encode()
        topics = named.dictionary.to_pylist()
        for slot, part in _grouped_by_slot(rows, named.indices.to_numpy()):
            yield topics[slot], part

    # --- partitions -----------------------------------------------------------------------

    def _slots(self, info: TopicInfo, rows: pa.RecordBatch) -> NDArray[np.integer[Any]]:
        """Choose a partition for each row. Return the indexes of these partitions in `info.partition_ids`."""
        given = _column(rows, "partition")
        if given is not None and not given.null_count:
            return _slots_of(info, given.to_numpy())
        slots = self._by_key(info, rows)
        if given is not None and given.null_count < len(given):
            said = np.asarray(given.is_valid())
            slots[said] = _slots_of(info, given.drop_null().to_numpy())
        return slots

    def _by_key(self, info: TopicInfo, rows: pa.RecordBatch) -> NDArray[np.integer[Any]]:
        n, keys = rows.num_rows, _column(rows, "key")
        if info.partitions == 1:
            return np.zeros(n, np.int32)
        if keys is None or keys.null_count == n:
            return self._stick(info, n, rows.nbytes)
        hashes = key_hashes(as_column(keys, "key"))
        slots = hashes % np.int32(info.partitions)
        if keys.null_count:
            missing = hashes < 0
            count = int(missing.sum())
            slots[missing] = self._stick(info, count, rows.nbytes * count // n)
        return slots

    def _stick(self, info: TopicInfo, n: int, size: int) -> NDArray[np.int32]:
        """Choose partitions for `n` rows without a key, which have `size` bytes. Return an index for each
        row. Each chosen partition gets about the same number of rows, which follow each other.
        """
        runs = min(max(size // _STICKY_BYTES, 1), info.partitions)
        # A task begins at a random partition, so that small tasks do not all write to the same partition.
        first = self._sticky.get(info.name, -1)
        first = random.randrange(info.partitions) if first < 0 else first
        self._sticky[info.name] = (first + runs) % info.partitions
        return ((first + np.arange(n, dtype=np.int64) * runs // n) % info.partitions).astype(np.int32)


def _slots_of(info: TopicInfo, given: NDArray[np.int32]) -> NDArray[np.integer[Any]]:
    ids = np.array(info.partition_ids)
    slots = np.minimum(ids.searchsorted(given), len(ids) - 1)
    wrong = ids[slots] != given
    if wrong.any():
        raise UnknownTopicOrPartitionError(
            f"column partition is {given[wrong.argmax()]} in a row: topic {info.name!r} has partitions "
            f"{ids[0]} to {ids[-1]}"
        )
    return slots


def _grouped_by_slot(
    rows: pa.RecordBatch, slots: NDArray[np.integer[Any]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (slot, rows of the slot) for each slot; `slots` has the slot of each row. The rows of a slot keep
    their order. Rows are copied only if those of a slot do not follow each other.
    """
    counts = np.bincount(slots)
    held: NDArray[np.integer[Any]] = np.flatnonzero(counts)
    changes = slots[1:] != slots[:-1]
    if np.count_nonzero(changes) >= len(held):
        # NumPy sorts 16-bit integers by a radix sort, which is faster.
        order = np.argsort(slots.astype(np.int16) if len(counts) <= 1 << 15 else slots, kind="stable")
        rows = rows.take(pa.array(order))
    else:
        held = slots[np.concatenate(([0], np.flatnonzero(changes) + 1))]
    start = 0
    for slot in held.tolist():
        n = int(counts[slot])
        yield slot, rows if n == rows.num_rows else rows.slice(start, n)
        start += n


# --- columns --------------------------------------------------------------------------------


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    at = rows.schema.get_field_index(name)
    return None if at < 0 else rows.column(at)


def columns_of(rows: pa.RecordBatch, now_ms: int) -> dict[str, Any]:
    """Return the keyword arguments of `Stager.append_batch` for rows of one partition. A row without a
    timestamp gets the timestamp `now_ms`.
    """
    headers, stamps = _column(rows, "headers"), _column(rows, "timestamp")
    return {
        "values": rows.column("value"),
        "keys": _column(rows, "key"),
        "timestamps": now_ms if stamps is None else _stamps(stamps, now_ms),
        "headers": None if headers is None else header_columns(headers),
    }


def _stamps(column: pa.Array, now_ms: int) -> NDArray[np.int64]:
    """Convert Spark's timestamps in µs to ms, rounded down. A null becomes `now_ms`."""
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if micros.null_count:
        micros = micros.fill_null(now_ms * 1000)
    stamps: NDArray[np.int64] = micros.to_numpy() // 1000
    if len(stamps) and int(stamps.min()) < -1:
        raise InvalidArgumentError(
            f"column timestamp is {stamps.min()} ms before 1970 in a row: Kafka has no such times; "
            "null stands for the time of the write"
        )
    return stamps


def header_columns(column: pa.Array) -> HeaderColumns | None:
    """Convert a column of type list<struct<key, value>> to HeaderColumns; None if no row has a header. A null
    list means that the row has no headers. Raises InvalidRecordError if a header, or its key, is null.
    """
    if column.null_count == len(column):
        return None
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy(), out=offsets[1:])
    if not offsets[-1]:
        return None
    names, values = column.flatten().flatten()
    if names.null_count:
        raise InvalidRecordError("column headers has a header without a key in a row: each must have one")
    return HeaderColumns(offsets, as_column(names, "header names"), as_column(values, "header values"))
