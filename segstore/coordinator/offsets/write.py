"""What may be committed, and how it is written: all in one record batch. On disk: through the engine.

Threads: any; a `Writer` belongs to one, which holds the partition's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from segstore.config import arguments
from segstore.coordinator.kafka_schema import LONGEST_STRING
from segstore.coordinator.structs import UNKNOWN_EPOCH, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    InvalidArgumentError,
    InvalidGroupIdError,
    InvalidTypeError,
    OffsetMetadataTooLargeError,
    RecordTooLargeError,
)
from segstore.records import CODECS, HEADER_SIZE, Columns, Template
from segstore.records.encode import batch_cap
from segstore.records.encoded import PLAIN
from segstore.storage.log.append import append_batches
from segstore.storage.log.validator import largest_batch
from segstore.storage.store.partition_log import PartitionLog

_INT32 = (1 << 31) - 1
_NUMBERS = 36  # bytes of a record's varints and attributes, at most


class Writer:
    """Of one partition of the topic, at `now` (ms since the epoch)."""

    def __init__(self, log: PartitionLog, codec: int, now: int) -> None:
        self._log, self._codec, self.now = log, codec, now

    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None], template: Template = PLAIN) -> int:
        """Append all of it as one batch: the first offset. RecordTooLargeError, StorageError: nothing is."""
        size = HEADER_SIZE + sum(map(len, keys)) + sum(len(value or b"") + _NUMBERS for value in values)
        limit = largest_batch(self._log._writing().config)
        most = batch_cap(self._codec, limit, limit)
        if size > most:
            raise RecordTooLargeError(
                f"{len(keys):,} records of a group make a batch of {size:,} bytes: allowed are {most:,}, "
                "since they are written together or not at all"
            )
        columns = Columns(list(values), list(keys), timestamp=self.now)
        compression = CODECS[self._codec]
        return append_batches(self._log, columns, (), compression, template, sequenced=False).first


def check_group(group: Any) -> str:
    """InvalidGroupIdError."""
    if not isinstance(group, str) or not group:
        raise InvalidGroupIdError(f"group_id={group!r:.80}: must be a str that is not empty")
    try:
        size = len(group.encode())
    except UnicodeEncodeError as error:
        raise InvalidGroupIdError(f"group_id={group!r:.80}: no UTF-8: {error.reason}") from None
    if size > LONGEST_STRING:
        raise InvalidGroupIdError(f"group_id has {size:,} bytes: allowed are {LONGEST_STRING:,}")
    return group


def check_offsets(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], check_topic: Callable[[str, int], None], most: int
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What is to be committed, in order of the partitions. `most`: bytes of a note.

    InvalidTypeError, InvalidArgumentError, OffsetMetadataTooLargeError, and what `check_topic` raises.
    """
    if not isinstance(offsets, Mapping):
        raise InvalidTypeError(f"offsets must map TopicPartition to OffsetAndMetadata, not {offsets!r:.80}")
    found = {check_partition(key): _offset(key, value, most) for key, value in offsets.items()}
    for topic, partition in found:
        check_topic(topic, partition)
    return dict(sorted(found.items()))


def check_partition(key: Any) -> TopicPartition:
    """Of a TopicPartition, kafka-python's, or a plain tuple. InvalidTypeError, InvalidArgumentError."""
    if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str)):
        raise InvalidTypeError(f"{key!r:.80} is no TopicPartition(topic, partition)")
    return TopicPartition(key[0], arguments.whole("partition", key[1], 0, _INT32))


def _offset(key: Any, value: Any, most: int) -> OffsetAndMetadata:
    if not (isinstance(value, tuple) and 1 <= len(value) <= 3):
        raise InvalidTypeError(
            f"{value!r:.80} for {key} is no OffsetAndMetadata(offset, metadata, leader_epoch)"
        )
    given = OffsetAndMetadata(*value)
    offset = arguments.whole("offset", given.offset, 0)
    epoch = arguments.whole("leader_epoch", given.leader_epoch, UNKNOWN_EPOCH, _INT32)
    note = "" if given.metadata is None else given.metadata
    if not isinstance(note, str):
        raise InvalidTypeError(f"metadata of {key} must be a str, not {type(note).__name__}")
    try:
        size = len(note.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"metadata {note!r:.80} of {key} is no UTF-8: {error.reason}") from None
    if size > most:
        raise OffsetMetadataTooLargeError(
            f"metadata of {key} has {size:,} bytes: allowed are {most:,} (offset.metadata.max.bytes)"
        )
    return OffsetAndMetadata(offset, note, epoch)
