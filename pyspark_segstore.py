"""Found by PySpark itself: `format("segstore")` works in every session, without registration.

PySpark imports each top-level module `pyspark_*` and fails for all sources if one of them raises: so this one
imports nothing but PySpark, and that with care. What does the work is `segstore.spark`, when it is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.datasource import DataSource
    except Exception:  # none, or one that is too old: then nobody looks for a source here
        DataSource = object


class DefaultSource(DataSource):
    """The source and the sink "segstore": see docs/spark.md for their columns and options."""

    options: Any

    @classmethod
    def name(cls) -> str:
        return "segstore"

    def schema(self) -> StructType:
        from segstore.spark import source

        return source.schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from segstore.spark import source

        return source.reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from segstore.spark import source

        return source.stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from segstore.spark import sink

        return sink.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from segstore.spark import sink

        return sink.stream_writer(self.options, schema)
