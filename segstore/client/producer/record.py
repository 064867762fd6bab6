"""What goes into a producer and what comes back: records, their checks, their metadata. Nothing on disk.

Threads: any; functions without state and immutable tuples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidTypeError
from segstore.records.columns import header_name

Bytes = bytes | bytearray | memoryview
Headers = tuple[tuple[str, bytes | None], ...]

RECORD_OVERHEAD = 12
"""Bytes of a record's length, attributes, deltas and counts, as they mostly are (Kafka: DefaultRecord)."""
MAX_RECORD_OVERHEAD = 21
"""The same at most."""


class ProducerRecord(NamedTuple):
    """A record on its way in, as interceptors see it; `_replace` makes a changed one."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None


class RecordMetadata(NamedTuple):
    """Where a record went, with kafka-python's fields.

    `offset` is -1 with acks=0. `timestamp` (ms) is the record's, or the log's for a LogAppendTime topic.
    Sizes are bytes when serialized, -1 for what is null or not there; `checksum` is always None.
    """

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    checksum: None
    serialized_key_size: int
    serialized_value_size: int
    serialized_header_size: int


Row = tuple["bytes | None", "bytes | None", Headers]
"""Value, key and headers of a record that is more than a value."""


def check_headers(headers: Any) -> Headers:
    """InvalidTypeError for what is no sequence of (str, bytes or None)."""
    if headers is None:
        return ()
    if not isinstance(headers, list | tuple):
        raise InvalidTypeError(
            f"headers is {type(headers).__name__}: allowed is a list of (str, bytes or None)"
        )
    return tuple(_pair(i, pair) for i, pair in enumerate(headers))


def _pair(i: int, pair: Any) -> tuple[str, bytes | None]:
    good = isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
    if not good or not isinstance(pair[1], bytes | bytearray | memoryview | None):
        raise InvalidTypeError(f"headers[{i}] is {pair!r:.80}: allowed is (str, bytes or None)")
    name, value = pair
    header_name(name, f"headers[{i}]")
    return name, None if value is None else bytes(value)


def size_of(value: bytes | None, key: bytes | None, headers: Headers) -> int:
    """Bytes that a record takes in a batch, but for `RECORD_OVERHEAD`."""
    size = len(value or b"") + len(key or b"")
    return size + headers_size(headers) + 2 * len(headers) if headers else size


def headers_size(headers: Headers) -> int:
    """Bytes of names and values."""
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)
