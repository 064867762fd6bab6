"""Checks the arguments of public calls: each error names the value and the allowed values. This module
touches no files.
"""

from __future__ import annotations

import numbers
import operator
import os
from collections.abc import Collection
from typing import Any

from segstore.arrays import is_numpy_bool
from segstore.config.options import shown
from segstore.config.paths import settled
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.integers import INT64_MAX as INT64_MAX

MOST_MS = 10**12


def whole(name: str, value: Any, least: int | None, most: int = INT64_MAX) -> int:
    """Check that `value` is an int from `least` to `most`, and return it as an int. NumPy integers are
    accepted, too. Raises InvalidTypeError, InvalidArgumentError, as all functions of this module do.
    """
    if type(value) is int and (least is None or value >= least) and value <= most:
        return value
    if isinstance(value, bool):
        raise InvalidTypeError(f"{name} must be an int, not bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidTypeError(f"{name} must be an int, not {type(value).__name__}") from None
    if (least is not None and number < least) or number > most:
        least_said = "" if least is None else f"at least {least} and "
        raise InvalidArgumentError(f"{name}={shown(number)}: must be {least_said}at most {most}")
    return number


def span(name: str, value: Any) -> tuple[int, int]:
    """Check that `value` is a pair (first, last) of int64 numbers, the bounds of a range, and return it. The
    first must not be above the last.
    """
    try:
        first, last = value
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{name}={value!r}: must be a pair, the first and the last") from None
    least = -INT64_MAX - 1
    first, last = whole(f"{name}[0]", first, least), whole(f"{name}[1]", last, least)
    if first > last:
        raise InvalidArgumentError(f"{name}={(first, last)}: the first must be at most the last")
    return first, last


def moment(name: str, value: Any) -> int:
    """Convert an int (ms since the epoch) or a datetime to ms since the epoch. A datetime without a time zone
    is in UTC. Fractions of a ms are rounded up, so that exactly the same records are at or after the result
    as are at or after the datetime.
    """
    # `datetime` is imported here, because most calls get an int and don't need it.
    from datetime import datetime, timedelta, timezone

    if isinstance(value, datetime) and value == value:
        # pandas.NaT, which is a datetime but no time, is not equal to itself.
        zoned = value.replace(tzinfo=timezone.utc) if value.utcoffset() is None else value
        return -((datetime(1970, 1, 1, tzinfo=timezone.utc) - zoned) // timedelta(milliseconds=1))
    try:
        return whole(name, value, None)
    except InvalidTypeError:
        raise InvalidTypeError(
            f"{name} must be ms since the epoch, an int, or a datetime, not {type(value).__name__}"
        ) from None


def milliseconds(name: str, value: Any) -> float:
    """Check a time span in ms, and return it as a float from 0 to MOST_MS. A value outside of this range,
    also an infinite one, is replaced by the nearest bound.
    """
    if type(value) is int and 0 <= value <= MOST_MS:
        return float(value)
    if isinstance(value, bool) or not _is_real(value):
        raise InvalidTypeError(f"{name} must be a number, not {type(value).__name__}")
    if value != value:
        raise InvalidArgumentError(f"{name}={value}: must be a number of milliseconds")
    return float(MOST_MS) if value > MOST_MS else max(float(value), 0.0)


def seconds(name: str, value: Any, default: float) -> float:
    """Check a time span in seconds, at least 0 or infinite, and return it; if `value` is None, return
    `default`.
    """
    if value is None:
        return default
    if isinstance(value, bool) or not _is_real(value):
        raise InvalidTypeError(f"{name} must be a number of seconds or None, not {type(value).__name__}")
    if not value >= 0:
        raise InvalidArgumentError(f"{name}={shown(value)}: must be None or at least 0 seconds")
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgumentError(f"{name}={shown(value)}: must be None, infinite, or fit a float") from None


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real)


def switch(name: str, value: Any) -> bool:
    """Convert `value` to a bool. It may be a bool, a NumPy boolean, 0 or 1."""
    if not isinstance(value, numbers.Integral) and not is_numpy_bool(value):
        raise InvalidTypeError(f"{name} must be True or False, not {type(value).__name__}")
    if value not in (0, 1):
        raise InvalidArgumentError(f"{name}={shown(value)}: must be True or False")
    return bool(value)


def path(name: str, value: Any) -> str:
    """Convert `value`, a str, bytes or os.PathLike, to the absolute path of a directory. Raises StorageError,
    too, if the path is relative and the current directory was deleted.
    """
    try:
        text = os.fsdecode(value)
        os.fsencode(text)
    except TypeError:
        raise InvalidTypeError(f"{name} must be a str or os.PathLike, not {type(value).__name__}") from None
    except UnicodeError:
        raise InvalidArgumentError(
            f"{name}={shown(value)}: must be the path of a directory, in characters that file names can have"
        ) from None
    if not text or "\0" in text:
        raise InvalidArgumentError(f"{name}={shown(text)}: must be the path of a directory")
    return settled(text)


def one_of(name: str, value: Any, allowed: Collection[str]) -> str:
    """Check that `value` is a str in `allowed`, and return it."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidArgumentError(f"{name}={shown(value)}: must be one of {', '.join(allowed)}")
    return str(value)
