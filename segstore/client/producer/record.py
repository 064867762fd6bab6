"""A producer's records: their checks, their metadata, and calls of the application's serializers and
interceptors.

Threads: any; the functions have no state, and the tuples are immutable. Serializers and `on_send` run in the
thread that calls `send`. `on_acknowledgement` runs in the sender's thread; if `send` fails, in the thread
that called `send`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidTypeError, SerializationError
from segstore.logger import Logger
from segstore.mutex import calls_out
from segstore.records.columns import ENCODE, OF_A_DICT, header_name

Bytes = bytes | bytearray | memoryview
Headers = tuple[tuple[str, bytes | None], ...]

RECORD_OVERHEAD = 12
"""The bytes that a record's length, attributes, deltas and counts usually take (Kafka: DefaultRecord)."""
MAX_RECORD_OVERHEAD = 21
"""The largest number of bytes that a record's length, attributes, deltas and counts take."""


class ProducerRecord(NamedTuple):
    """A record before serialization. Interceptors get it, and make a changed copy by `_replace`."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None


class RecordMetadata(NamedTuple):
    """The metadata of a written record, with kafka-python's fields.

    `offset` is -1 with acks=0. `timestamp` (ms) is the record's timestamp; in a LogAppendTime topic it is the
    time of the append. Sizes count serialized bytes; the size of a null key, of a null value or of missing
    headers is -1. `checksum` is always None.
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


Headed = tuple["bytes | None", Headers]
"""Value and headers of a record with headers. For a record without headers only the value is stored, without
a tuple: a tuple for each record would double the work of the garbage collector.
"""


def check_headers(headers: Any) -> Headers:
    """Return headers as a tuple; None becomes (). Raises InvalidTypeError unless `headers` is None, or a list
    or tuple of (str, bytes or None).
    """
    if headers is None:
        return ()
    if not isinstance(headers, list | tuple):
        hint = OF_A_DICT if isinstance(headers, Mapping) else ""
        raise InvalidTypeError(
            f"headers is {type(headers).__name__}: allowed is a list of (str, bytes or None){hint}"
        )
    return tuple(_pair(i, pair) for i, pair in enumerate(headers))


def _pair(i: int, pair: Any) -> tuple[str, bytes | None]:
    good = isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
    if not good or not isinstance(pair[1], bytes | bytearray | memoryview | None):
        hint = ENCODE if good and isinstance(pair[1], str) else ""
        raise InvalidTypeError(f"headers[{i}] is {pair!r:.80}: allowed is (str, bytes or None){hint}")
    name, value = pair
    header_name(name, f"headers[{i}]")
    return name, None if value is None else bytes(value)


def size_of(value: bytes | None, key: bytes | None, headers: Headers) -> int:
    """Return how many bytes a record takes in a batch, without `RECORD_OVERHEAD`."""
    size = len(value or b"") + len(key or b"")
    return size + headers_size(headers) + 2 * len(headers) if headers else size


def headers_size(headers: Headers) -> int:
    """Return how many bytes the headers' names and values take."""
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)


# --- serializers -------------------------------------------------------------------------------

# `serializer` wraps the application's functions that make bytes from keys and values.

Serialize = Callable[[str, Any, Any], "bytes | None"]


def serializer(what: str, given: Any) -> Serialize:
    """Return a function that serializes by `given`, which is a callable f(data), or an object with
    serialize(topic, headers, data). If `given` is None, the function returns the data unchanged. Serialized
    data must be bytes, bytearray, memoryview or None; mutable data are copied. The returned function raises
    SerializationError for data of any other type, and if `given` raises an exception.
    """
    call: Callable[[str, Any, Any], Any] | None = None
    if given is not None:
        call = getattr(given, "serialize", None) or (lambda topic, headers, data: given(data))

    @calls_out
    def serialize(topic: str, headers: Any, data: Any) -> bytes | None:
        made = data
        if call is not None:
            try:
                made = call(topic, headers, data)
            except Exception as error:
                raise SerializationError(f"the {what} {data!r:.80} can't be serialized: {error}") from error
        if made is None or type(made) is bytes:
            return made
        if isinstance(made, bytes | bytearray | memoryview):
            return bytes(made)
        allowed = "allowed are bytes, bytearray, memoryview or None"
        if call is None:
            raise SerializationError(
                f"the {what} is {type(made).__name__}: {allowed}; give a {what}_serializer"
            )
        hint = "; encode it, by str.encode()" if isinstance(made, str) else ""
        raise SerializationError(
            f"the {what} is {type(made).__name__}, as {what}_serializer returned it: {allowed}{hint}"
        )

    return serialize


def close(given: Any) -> None:
    """Close a serializer, if it has a `close` method (kafka-python)."""
    closing = getattr(given, "close", None)
    if callable(closing):
        closing()


# --- interceptors ------------------------------------------------------------------------------

# `ProducerInterceptors` calls the application's interceptors before a record is serialized, and after the
# record's outcome is known.

log = Logger("segstore")


class ProducerInterceptors:
    """The interceptors of a producer. If an interceptor raises an exception, the exception is logged, and the
    next interceptor gets the record that the failed interceptor got (Kafka: ProducerInterceptors).
    """

    def __init__(self, hooks: Sequence[Any]) -> None:
        self._hooks = hooks

    def __bool__(self) -> bool:
        return bool(self._hooks)

    @calls_out
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Pass the record through all interceptors, and return the last result."""
        for hook in self._hooks:
            if not hasattr(hook, "on_send"):
                continue
            try:
                made = hook.on_send(record)
            except Exception:
                log.exception("an interceptor's on_send failed")
                continue
            if isinstance(made, ProducerRecord):
                record = made
            else:
                log.error("an interceptor's on_send gave %s, not a ProducerRecord", type(made).__name__)
        return record

    def acknowledged(self, metadata: RecordMetadata) -> None:
        """Call on_acknowledgement with the metadata of a written record."""
        self._call("on_acknowledgement", metadata, None)

    def failed(self, error: BaseException) -> None:
        """Call on_acknowledgement with the error of a failed record."""
        self._call("on_acknowledgement", None, error)

    def close(self) -> None:
        """Close the interceptors."""
        self._call("close")

    @calls_out
    def _call(self, name: str, *args: Any) -> None:
        for hook in self._hooks:
            if hasattr(hook, name):
                try:
                    getattr(hook, name)(*args)
                except Exception:
                    log.exception("an interceptor's %s failed", name)
