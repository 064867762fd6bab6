"""Timestamps as C reads them: int64 ms since the epoch; nothing on disk.

Functions without state: safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from segstore.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALLOWED = "allowed is one int (ms since the epoch) or numpy datetime64 for each record"


def as_timestamps(timestamps: Any) -> NDArray[np.int64] | None:
    """int64 ms since the epoch from ints, numpy datetime64 or an Arrow timestamp or int column.

    InvalidTypeError for what is no integer or time; InvalidArgumentError names a negative one (-1, Kafka's
    NO_TIMESTAMP, is allowed) or a missing one.
    """
    if timestamps is None:
        return None
    if hasattr(timestamps, "__arrow_c_array__") or hasattr(timestamps, "__arrow_c_stream__"):
        from segstore.records.arrow import timestamps_from_arrow

        timestamps = timestamps_from_arrow(timestamps)
    array = _array(timestamps)
    if array.dtype.kind == "M":
        missing = np.isnat(array)
        array = array.astype("datetime64[ms]").astype(np.int64)
        _refuse(missing, array, "missing (NaT)")
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidTypeError(f"timestamps are {array.dtype}, {array.ndim}-dimensional: {_ALLOWED}")
    _refuse(array < -1, array, "negative")
    if array.dtype == np.uint64:
        _refuse(array > np.uint64(2**63 - 1), array, "above int64")
    return np.ascontiguousarray(array, np.int64)


def _array(timestamps: Any) -> NDArray[Any]:
    if isinstance(timestamps, (str, bytes)) or not isinstance(timestamps, Iterable):
        raise InvalidTypeError(f"timestamps is {type(timestamps).__name__}: {_ALLOWED}")
    try:
        return np.asarray(
            timestamps if isinstance(timestamps, (np.ndarray, list, tuple)) else list(timestamps)
        )
    except ValueError as e:
        raise InvalidTypeError(f"timestamps are no plain sequence: {_ALLOWED}") from e


def _refuse(wrong: NDArray[np.bool_], array: NDArray[Any], why: str) -> None:
    if wrong.any():
        i = int(wrong.argmax())
        raise InvalidArgumentError(f"timestamps[{i}] is {why}: {array[i]}; allowed is -1 to 2^63 - 1")
