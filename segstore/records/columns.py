"""`Columns`: the columns of records that are to be encoded: values, keys, headers, timestamps, offsets;
nothing is on disk.

A `Columns` never changes after its constructor, so that any thread may encode from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import seg_stamps
from segstore.arrays import is_array, np
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.integers import INT64_MAX
from segstore.records.column import (
    ALLOWED_ITEMS,
    TEXT,
    Column,
    HeaderColumns,
    from_list,
    from_numpy,
    no_headers,
    null_column,
    offsets_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


# --- times -------------------------------------------------------------------------------------

# C reads timestamps as int64 ms since the epoch.

_ALLOWED = "allowed is one int (ms since the epoch) or numpy datetime64 for each record"


def as_timestamps(timestamps: Any, name: str = "timestamps") -> NDArray[np.int64] | None:
    """Return int64 ms since the epoch from ints, numpy datetime64 or an Arrow timestamp, date or int column;
    None if `timestamps` is None. `name` is the argument's name in errors.

    Raises InvalidTypeError for other types, and InvalidArgumentError for a missing or negative timestamp,
    which the error names. -1, Kafka's NO_TIMESTAMP, is allowed.
    """
    if timestamps is None:
        return None
    if hasattr(timestamps, "__arrow_c_array__") or hasattr(timestamps, "__arrow_c_stream__"):
        from segstore.records.arrow_columns import timestamps_from_arrow

        timestamps = timestamps_from_arrow(timestamps, name)
    array = _array(timestamps)
    if array.dtype.kind == "M":
        missing = np.isnat(array)
        array = array.astype("datetime64[ms]").astype(np.int64)
        _refuse(missing, array, name, "missing (NaT)")
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidTypeError(f"{name} are {array.dtype}, {array.ndim}-dimensional: {_ALLOWED}")
    _refuse(array < -1, array, name, "negative")
    if array.dtype == np.uint64:
        _refuse(array > np.uint64(INT64_MAX), array, name, "above int64")
    return np.ascontiguousarray(array, np.int64)


class ValidTimestamps(NamedTuple):
    """Valid timestamps, int64 ms, with the least and the largest timestamp."""

    ms: NDArray[np.int64]
    least: int
    most: int


def valid_stamps(ms: bytes) -> ValidTimestamps:
    """Return the timestamps in `ms`, which has int64 values one after the other. The result also has the
    least and the largest timestamp.
    """
    return ValidTimestamps(np.frombuffer(ms, np.int64), *seg_stamps(ms))


def _array(timestamps: Any) -> NDArray[Any]:
    if isinstance(timestamps, (str, bytes)) or not isinstance(timestamps, Iterable):
        raise InvalidTypeError(f"timestamps is {type(timestamps).__name__}: {_ALLOWED}")
    try:
        is_whole = isinstance(timestamps, (list, tuple)) or is_array(timestamps)
        return np.asarray(timestamps if is_whole else list(timestamps))
    except ValueError as e:
        raise InvalidTypeError(f"timestamps are no plain sequence: {_ALLOWED}") from e


def _refuse(wrong: NDArray[np.bool_], array: NDArray[Any], name: str, why: str) -> None:
    if wrong.any():
        i = int(wrong.argmax())
        raise InvalidArgumentError(f"{name}[{i}] is {why}: {array[i]}; allowed is -1 to 2^63 - 1")


# --- columns ------------------------------------------------------------

Header = tuple[str, bytes | None]


def as_headers(headers: Any, name: str = "headers") -> HeaderColumns | None:
    """Return HeaderColumns made from one sequence of (str, bytes or None) pairs for each record, or from an
    Arrow column of lists of pairs, as `Records.to_arrow` has it. Return None if `headers` is None. `name` is
    the argument's name in errors. Raises InvalidTypeError, InvalidArgumentError.
    """
    if headers is None:
        return None
    if hasattr(headers, "__arrow_c_array__") or hasattr(headers, "__arrow_c_stream__"):
        from segstore.records.arrow_columns import headers_from_arrow

        return headers_from_arrow(headers, name)
    if isinstance(headers, (*TEXT, Mapping)) or not isinstance(headers, Iterable):
        raise InvalidTypeError(f"headers is {type(headers).__name__}: {_HEADERS_ALLOWED}")
    return _flat(
        [list(_pairs(of_one, f"headers[{i}]", _HEADERS_ALLOWED)) for i, of_one in enumerate(headers)]
    )


def _flat(lists: list[list[tuple[bytes, Any]]]) -> HeaderColumns:
    if not any(lists):
        return no_headers(len(lists))
    names = [name for of_one in lists for name, _ in of_one]
    values = [value for of_one in lists for _, value in of_one]
    offsets = offsets_of(lists)
    return HeaderColumns(offsets, from_list(names, "header names"), from_list(values, "header values"))


def headers_of_one(headers: Any) -> HeaderColumns:
    """Return the HeaderColumns of one record. Raises InvalidTypeError."""
    if isinstance(headers, Mapping):
        raise InvalidTypeError(f"headers is {type(headers).__name__}: {_ONES_ALLOWED}{OF_A_DICT}")
    lists = [list(_pairs(headers, "headers", _ONES_ALLOWED))]
    return _flat(lists)


_ONES_ALLOWED = "allowed is a list of (str, bytes or None)"
ENCODE = "; encode it first"
OF_A_DICT = "; of a dict these are list(headers.items())"
_HEADERS_ALLOWED = "allowed is, for each record, a sequence of (str, bytes or None)"


def _pairs(of_one: Any, where: str, allowed: str) -> Iterable[tuple[bytes, Any]]:
    if of_one is None:
        return
    if isinstance(of_one, (*TEXT, Mapping)) or not isinstance(of_one, Iterable):
        hint = OF_A_DICT if isinstance(of_one, Mapping) else ""
        raise InvalidTypeError(f"{where} is {type(of_one).__name__}: {allowed}{hint}")
    for j, pair in enumerate(of_one):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidTypeError(f"{where}[{j}] is {pair!r:.80}: {allowed}")
        name, value = pair
        good = isinstance(name, str) and isinstance(value, (bytes, bytearray, memoryview, type(None)))
        if not good:
            what = f"({type(name).__name__}, {type(value).__name__})"
            hint = ENCODE if isinstance(value, str) else ""
            raise InvalidTypeError(f"{where}[{j}] is {what}: {allowed}{hint}")
        yield header_name(name, f"{where}[{j}]"), value


def header_name(name: str, where: str) -> bytes:
    """Return the name of a header, encoded in UTF-8. `where` stands for the header in an error. Raises
    InvalidArgumentError.
    """
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{where} has the key {name!r:.80}, which UTF-8 can't encode") from None


def as_column(values: Any, name: str = "values") -> Column:
    """Return a Column of `values`. `name` is the argument's name in errors.

    `values` is a list, tuple or iterable of bytes, bytearray, memoryview or None; or a numpy array of dtype S
    (without trailing NULs, as in numpy), V, object, or uint8 of shape (n, width); or a binary or string
    column of pyarrow, or of any object that exports Arrow's C interface. Arrays are not copied if C can read
    their layout. Raises InvalidTypeError, which names the wrong element.
    """
    if isinstance(values, (list, tuple)):
        return from_list(values, name)
    if is_array(values):
        return from_numpy(values, name)
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
        from segstore.records.arrow_columns import column_from_arrow

        return column_from_arrow(values, name)
    if isinstance(values, TEXT) or not isinstance(values, Iterable):
        raise InvalidTypeError(
            f"{name} is {type(values).__name__}: allowed are a sequence of {ALLOWED_ITEMS}, "
            "a numpy array or an Arrow array"
        )
    return from_list(list(values), name)


class Columns:
    """The columns of `n` records to encode: values, keys, headers, timestamps (ms) and offsets.

    If `timestamps` is None, all records get `timestamp`. If `offsets` is None, the offsets are consecutive;
    offsets that are given are absolute and rising, and may have gaps. `headers` may be None. Raises
    InvalidArgumentError if the lengths differ.
    """

    __slots__ = ("_span", "headers", "keys", "n", "offsets", "timestamp", "timestamps", "values")

    def __init__(
        self,
        values: Any,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
        timestamp: int = -1,
        offsets: NDArray[np.int64] | None = None,
    ) -> None:
        self.values = values if isinstance(values, Column) else as_column(values)
        self.n = n = self.values.n
        if keys is None:
            self.keys = null_column(n)
        else:
            self.keys = keys if isinstance(keys, Column) else as_column(keys, "keys")
        flat = headers if isinstance(headers, HeaderColumns) else as_headers(headers)
        # Without header columns C encodes faster.
        self.headers = None if flat is None or flat.is_empty else flat
        self.timestamp = timestamp
        self._span: tuple[int, int] | None = None
        self.timestamps: NDArray[np.int64] | None
        if isinstance(timestamps, ValidTimestamps):
            self.timestamps, self._span = timestamps.ms, (timestamps.least, timestamps.most)
        else:
            self.timestamps = as_timestamps(timestamps)
        self.offsets = None if offsets is None else np.ascontiguousarray(offsets, np.int64)
        lengths = {"keys": self.keys.n, "headers": n if flat is None else flat.n}
        lengths["timestamps"] = n if self.timestamps is None else len(self.timestamps)
        lengths["offsets"] = n if self.offsets is None else len(self.offsets)
        for name, length in lengths.items():
            if length != n:
                raise InvalidArgumentError(f"{length:,} {name} for {n:,} values: one for each is allowed")

    @property
    def span(self) -> tuple[int, int]:
        """Return (least timestamp, largest timestamp); there must be at least one record."""
        if self._span is None:
            stamps, one = self.timestamps, self.timestamp
            self._span = (one, one) if stamps is None else (int(stamps.min()), int(stamps.max()))
        return self._span
