"""What `export` writes: Parquet, Arrow IPC (the streaming form) and NDJSON.

On disk: through the stream that it is given. Threads: one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from segstore.cli import formats
from segstore.errors import InvalidArgumentError
from segstore.records import Records

if TYPE_CHECKING:
    from typing_extensions import Self


class Sink(Protocol):
    """A context manager; leaving it writes what closes the format."""

    def write(self, records: Records, partition: int) -> None:
        """Some records of one partition."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Ndjson:
    """An object a line, as `consume` prints them."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, records: Records, partition: int) -> None:
        self._stream.write(formats.ndjson(records, partition))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.flush()


class Tables:
    """Arrow tables through a pyarrow writer; no Python object per record."""

    def __init__(self, make: Callable[[Any, Any], Any], stream: BinaryIO) -> None:
        try:
            import pyarrow
            import pyarrow.ipc
            import pyarrow.parquet
        except ImportError:
            raise InvalidArgumentError(
                "Parquet and Arrow IPC need pyarrow: pip install 'segstore[arrow]'"
            ) from None
        from segstore.records.arrow import HEADER_TYPE

        self._pyarrow = pyarrow
        self._schema = pyarrow.schema(
            [
                pyarrow.field("partition", pyarrow.int32(), nullable=False),
                pyarrow.field("offset", pyarrow.int64(), nullable=False),
                pyarrow.field("timestamp", pyarrow.timestamp("ms", "UTC"), nullable=False),
                ("key", pyarrow.binary()),
                ("value", pyarrow.binary()),
                ("headers", HEADER_TYPE),
            ]
        )
        self._writer = make(stream, self._schema)

    def write(self, records: Records, partition: int) -> None:
        pa, table = self._pyarrow, records.to_arrow()
        numbers = pa.repeat(pa.scalar(partition, pa.int32()), len(records))
        self._writer.write_table(table.add_column(0, "partition", numbers).cast(self._schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()


def parquet(stream: BinaryIO) -> Tables:
    """zstd; a row group for each fetch."""

    def make(to: Any, schema: Any) -> Any:
        import pyarrow.parquet

        return pyarrow.parquet.ParquetWriter(to, schema, compression="zstd")

    return Tables(make, stream)


def arrow(stream: BinaryIO) -> Tables:
    """The streaming form, which a pipe can carry."""

    def make(to: Any, schema: Any) -> Any:
        import pyarrow.ipc

        return pyarrow.ipc.new_stream(to, schema)

    return Tables(make, stream)


SINKS: dict[str, Callable[[BinaryIO], Sink]] = {"parquet": parquet, "arrow": arrow, "ndjson": Ndjson}
