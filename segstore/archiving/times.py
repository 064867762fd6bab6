"""`Cut`: the ends of the logs that `restore` makes, parsed from the argument `at` of `restore`.

Nothing is on disk. Threads: any; values and functions without state.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, NamedTuple

from segstore.config import arguments
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.storage.meta.root_checkpoints import TopicPartitionKey

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ALLOWED = "give ms since the epoch, a datetime with a time zone, or a mapping {TopicPartition: end offset}"


class Cut(NamedTuple):
    """The ends of restored logs. A log ends before its first record that is stamped later than `time` (ms),
    or at its end offset in `ends`. A log without any limit is restored whole.
    """

    time: int | None = None
    ends: Mapping[TopicPartitionKey, int] = MappingProxyType({})


def parse_at(at: Any) -> Cut:
    """Return the cut for an argument `at`. A datetime is rounded down to ms. Raises InvalidArgumentError,
    InvalidTypeError, which name the value and the allowed values.
    """
    if at is None:
        return Cut()
    if isinstance(at, Mapping):
        return Cut(ends=_ends(at))
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise InvalidArgumentError(f"at={at!r}: a datetime needs a time zone, such as timezone.utc")
        return Cut(arguments.whole("at", (at - _EPOCH) // timedelta(milliseconds=1), 0))
    if isinstance(at, bool | str | float) or not hasattr(at, "__index__"):
        raise InvalidTypeError(f"at is a {type(at).__name__}: {_ALLOWED}")
    return Cut(arguments.whole("at", at, 0))


def _ends(given: Mapping[Any, Any]) -> dict[TopicPartitionKey, int]:
    if not given:
        raise InvalidArgumentError("at={}: at least one partition is needed; " + _ALLOWED)
    found: dict[TopicPartitionKey, int] = {}
    for key, end in given.items():
        try:
            topic, number = key
        except (TypeError, ValueError):
            topic = number = None
        if not isinstance(topic, str) or isinstance(number, bool) or not hasattr(number, "__index__"):
            raise InvalidTypeError(f"at has the key {key!r}: a TopicPartition is needed; {_ALLOWED}")
        found[topic, int(number)] = arguments.whole(f"at[{key!r}]", end, 0)
    return found
