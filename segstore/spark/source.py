"""The source "segstore" as PySpark asks for it: a schema, a reader of a batch, a reader of a stream.

On disk: reads only. Threads: PySpark makes each object in the process that plans, and sends it to the tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition

from segstore.coordinator.structs import TopicPartition
from segstore.errors import CorruptRecordError
from segstore.spark.columns import arrow_schema, ddl
from segstore.spark.filters import Bounds, Pushed, push
from segstore.spark.lookup import Lookup
from segstore.spark.options import SourceOptions, parse_options
from segstore.spark.plan import Range, divide
from segstore.spark.slices import Slice, SliceReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCANS_APART = hasattr(DataSourceReader, "pushLimit")
"""Whether each scan of a DataFrame keeps what was planned for it. In PySpark 4.3 they share it: after
`df.where(a)` a plain `df.count()` would count what `a` left, and so would the other side of a self-join.
"""
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def schema(given: Mapping[str, str]) -> str:
    """The columns of Spark's Kafka source. ConfigError: the options are looked at here first."""
    options = parse_options(given)
    with Lookup(options) as lookup:
        lookup.partitions()
    return ddl(options.include_headers)


def reader(given: Mapping[str, str], columns: StructType) -> DataSourceReader:
    """Of a batch query. ConfigError."""
    options = parse_options(given)
    wanted = SCANS_APART if options.filter_pushdown is None else options.filter_pushdown
    # PySpark refuses a reader that could take filters where its setting is off, which only its worker knows.
    kind = FilteringReader if wanted and _PUSHDOWN_WORKER in sys.modules else BatchReader
    return kind(options, arrow_schema(columns))


def stream_reader(given: Mapping[str, str], columns: StructType) -> DataSourceStreamReader:
    """Of a streaming query; what is wrong is told when it is first asked something."""
    from segstore.spark.source_stream import StreamReader

    return StreamReader(dict(given.items()), columns)


class BatchReader(DataSourceReader):
    """All ends are fixed when the query is planned."""

    def __init__(self, options: SourceOptions, columns: pa.Schema) -> None:
        self.options, self.columns = options, columns
        self.pushed = Pushed()
        options.begin(streaming=False)
        options.end()

    def partitions(self) -> list[InputPartition]:
        """ConfigError, DataLossError."""
        with Lookup(self.options) as lookup:
            return list(slices(lookup, self._ranges(lookup)))

    def _ranges(self, lookup: Lookup) -> list[Range]:
        every = lookup.partitions()
        begins = lookup.resolve(self.options.begin(streaming=False), every, begin=True)
        ends = lookup.resolve(self.options.end(), every, begin=False)
        wanted = [each for each in every if self.pushed.wants(*each)]
        return [_narrowed(lookup, self.pushed, Range(each, begins[each], ends[each])) for each in wanted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, PySpark makes a partition of its own.
        if not isinstance(partition, Slice):
            return iter(())
        return slice_reader(self.options, self.columns, self.pushed.times).read(partition)


class FilteringReader(BatchReader):
    """A BatchReader that takes filters, before anything else is asked of it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.pushed, left = push(filters)
        return left


def slice_reader(options: SourceOptions, columns: pa.Schema, times: Bounds | None = None) -> SliceReader:
    """How the tasks of a query read."""
    level, fail = options.isolation_level, options.fail_on_data_loss
    return SliceReader(options.path, columns, level, fail, times or Bounds())


def slices(lookup: Lookup, ranges: list[Range]) -> Iterator[Slice]:
    """The tasks of a query, as many as its options want."""
    options = lookup.options

    def edge(whole: Range, offset: int) -> int:
        return batch_edge(lookup, whole.partition, offset)

    for part in divide(ranges, options.min_partitions, options.max_records_per_partition, edge):
        yield Slice(*part.partition, part.start, part.end)


def batch_edge(lookup: Lookup, partition: TopicPartition, offset: int) -> int:
    """The base offset of the batch that holds an offset; the offset itself where none does."""
    try:
        headers = lookup.log(partition).read(offset, 0, check_crcs=False).batches
    except CorruptRecordError:
        return offset  # the task that comes to it tells
    return min(int(headers["base_offset"][0]), offset) if len(headers) else offset


def _narrowed(lookup: Lookup, pushed: Pushed, whole: Range) -> Range:
    """What filters on offset and time leave of a range: before the first record that is late enough there is
    none, but there may be early ones anywhere behind it.
    """
    start, end = max(whole.start, pushed.offsets.low), min(whole.end, pushed.offsets.high)
    if start < end and pushed.times.limited:
        if pushed.times.low >= pushed.times.high:
            return whole._replace(end=whole.start)
        late = lookup.log(whole.partition).offset_for_time(pushed.times.low)
        start = end if late is None else max(start, late)
    return whole._replace(start=start, end=max(start, end))
