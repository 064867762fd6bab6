"""Makes `ConsumerRecord`s from columns. Threads: any; the functions have no state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import make_consumer_records
from segstore.client.consumer.config import Deserialize
from segstore.coordinator.structs import TopicPartition
from segstore.errors import RecordDeserializationError
from segstore.mutex import calls_out
from segstore.records import Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

Headers = list[tuple[str, "bytes | None"]]


class ConsumerRecord(NamedTuple):
    """A record with kafka-python's fields. `timestamp` is in ms since the epoch; `timestamp_type` is 0 for
    CreateTime, 1 for LogAppendTime. `checksum` is None, as for every batch of magic 2. Sizes are in bytes;
    the size of a null key or value is -1.
    """

    topic: str
    partition: int
    leader_epoch: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    headers: Headers
    checksum: int | None
    serialized_key_size: int
    serialized_value_size: int
    serialized_header_size: int

    @property
    def delivery_count(self) -> int | None:
        """Return None: only records of a share consumer have a delivery count."""
        return None


class DeliveredRecord(ConsumerRecord):
    """A record of a share consumer. Its additional field `delivery_count` is the number of times that the
    group has delivered the record, this time included (Kafka: ConsumerRecord.deliveryCount). Deliveries
    before a crash are not counted.
    """

    __slots__ = ()
    _fields = (*ConsumerRecord._fields, "delivery_count")  # type: ignore[assignment]
    delivery_count = property(itemgetter(len(ConsumerRecord._fields)))

    def __new__(cls, *fields: Any) -> DeliveredRecord:
        """Make a record from the values of all fields. `copy` and `pickle` call this."""
        if len(fields) != len(cls._fields):
            raise TypeError(f"a DeliveredRecord has {len(cls._fields)} fields, not {len(fields)}")
        return tuple.__new__(cls, fields)

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> DeliveredRecord:  # type: ignore[override]
        return cls(*iterable)

    def _replace(self, **changes: Any) -> DeliveredRecord:
        made = self._make(map(changes.pop, self._fields, self))
        if changes:
            raise ValueError(f"there are no fields {list(changes)}")
        return made

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        return f"DeliveredRecord({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"


# `_native/tailer.c` also makes ConsumerRecords, so it must be changed if the fields are changed.
_make: Callable[[Iterable[Any]], ConsumerRecord] = partial(tuple.__new__, ConsumerRecord)
_make_delivered: Callable[[Iterable[Any]], ConsumerRecord] = partial(tuple.__new__, DeliveredRecord)
_APPEND_TIME_BIT = 3

Counts = int | list[int]
"""One delivery count for all records, or a list with the count of each record."""


class Deserializers(NamedTuple):
    """The deserializers of keys and of values. Keys or values without a deserializer (None) stay bytes."""

    key: Deserialize | None
    value: Deserialize | None


NO_DESERIALIZERS = Deserializers(None, None)


def consumer_records(
    tp: TopicPartition, records: Records, deserializers: Deserializers, delivered: Counts | None = None
) -> tuple[list[ConsumerRecord], RecordDeserializationError | None]:
    """Convert `records` to ConsumerRecords, or to DeliveredRecords if `delivered` is not None. Return
    (converted records, None). If a record can't be deserialized, return (converted records before it, the
    error).
    """
    if deserializers == NO_DESERIALIZERS and not records.headers.present:
        return _plain(tp, records, delivered), None
    keys, values = records.keys, records.values
    offsets, headers = records.offsets.tolist(), records.headers.tolist()
    key_column: Sequence[Any] = keys.tolist()
    value_column: Sequence[Any] = values.tolist()
    error = None
    if deserializers.key is not None:
        key_column, error = _deserialized(deserializers.key, "key", tp, offsets, headers, key_column)
    if deserializers.value is not None:
        upto = value_column[: len(key_column)]
        before = error
        value_column, error = _deserialized(deserializers.value, "value", tp, offsets, headers, upto)
        error = error or before
        del before
    columns = zip(
        repeat(tp.topic), repeat(tp.partition), _each(_epochs(records)), offsets, records.timestamps.tolist(),
        _each(_timestamp_types(records)), key_column, value_column, headers, repeat(None),
        keys.lengths.tolist(), values.lengths.tolist(), _header_sizes(records, headers),
    )  # fmt: skip
    try:
        if delivered is None:
            return list(map(_make, columns)), error
        counted = ((*each, count) for each, count in zip(columns, _each(delivered)))  # noqa: B905
        return list(map(_make_delivered, counted)), error
    finally:
        # The traceback of the error refers to this frame, which refers to the error: `del` breaks this cycle.
        del error


def _plain(tp: TopicPartition, records: Records, delivered: Counts | None) -> list[ConsumerRecord]:
    """Make ConsumerRecords for records without headers, by one call of C code; keys and values stay bytes."""
    keys, values = records.keys, records.values
    kind = ConsumerRecord if delivered is None else DeliveredRecord
    return make_consumer_records(
        *(kind, tp.topic, tp.partition, _epochs(records), _timestamp_types(records)),
        *(records.offsets.tobytes(), records.timestamps.tobytes()),
        *(keys.arena, keys.at.tobytes(), keys.lengths.tobytes()),
        *(values.arena, values.at.tobytes(), values.lengths.tobytes()),
        delivered,
    )


@calls_out
def _deserialized(
    deserialize: Deserialize,
    origin: str,
    tp: TopicPartition,
    offsets: list[int],
    headers: list[Headers],
    column: Sequence[bytes | None],
) -> tuple[list[Any], RecordDeserializationError | None]:
    made: list[Any] = []
    try:
        for header, data in zip(headers, column):  # noqa: B905 - a column may end before a bad key
            made.append(deserialize(tp.topic, header, data))
    except Exception as reason:
        message = f"{type(reason).__name__}: {reason}"
        error = RecordDeserializationError(tp.topic, tp.partition, offsets[len(made)], origin, message)
        error.__cause__ = reason
        try:
            return made, error
        finally:
            # The traceback of the error refers to this frame, which refers to the error: `del` breaks this
            # cycle.
            del error
    return made, None


def _epochs(records: Records) -> int | list[int]:
    return _per_record(records.batches["leader_epoch"], records)


def _timestamp_types(records: Records) -> int | list[int]:
    return _per_record(records.batches["attributes"] >> _APPEND_TIME_BIT & 1, records)


def _per_record(of_batch: NDArray[Any], records: Records) -> int | list[int]:
    """Return the value that all batches have in common. If the values differ, return a list with each
    record's value.
    """
    first: int = of_batch.item(0)
    if len(of_batch) == 1 or (of_batch == first).all():
        return first
    values: list[int] = of_batch[records.batch_indexes()].tolist()
    return values


def _each(value: int | list[int]) -> Iterable[int]:
    return value if isinstance(value, list) else repeat(value)


def _header_sizes(records: Records, headers: list[Headers]) -> Iterable[int]:
    if not records.headers.present:
        return repeat(-1)
    return map(_header_size, headers)


def _header_size(pairs: Headers) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in pairs) if pairs else -1
