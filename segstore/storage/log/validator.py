"""Checks an application's values by the topic's settings, encodes them, and appends the batches to the log.

Threads: any. Encoding and compression are done before an append takes its place in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from segstore.config import TopicConfig, arguments
from segstore.errors import InvalidArgumentError, InvalidRecordError, InvalidTypeError, RecordTooLargeError
from segstore.logger import Logger
from segstore.records import CODECS, Columns, Encoded, check_sizes, encode, single
from segstore.storage.log.append_queue import AHEAD_COMPRESSED, AHEAD_PLAIN
from segstore.storage.log.partition import Partition

log = Logger("segstore")

_COMPRESSIONS = {name: code for code, name in enumerate(CODECS)} | {"uncompressed": 0, "producer": 0}


def append_one(
    partition: Partition, value: bytes | None, key: bytes | None, headers: Any, timestamp: int | None
) -> int:
    """Append a record; returns its offset."""
    config, now = partition.config, partition.context.clock()
    stamp = now if timestamp is None else arguments.whole("timestamp", timestamp, -1)
    check_stamps(config, stamp, stamp, now)
    check_keys(config, key is None)
    codec, level = codec_for(config, None)
    encoded = single(value, key, headers, stamp, codec=codec, level=level)
    limit = largest_batch(config)
    if encoded.size > limit:
        raise RecordTooLargeError(too_large(partition.config, encoded.size))
    offset = partition.queue.append(iter((encoded,)), AHEAD_PLAIN)
    partition.flushing.settle(offset + 1)
    return offset


def append_columns(
    partition: Partition,
    values: Any,
    keys: Any,
    timestamps: Any,
    headers: Any,
    compression: str | None,
    batch_bytes: int,
) -> range:
    """Append columns of records; returns their offsets."""
    now = partition.context.clock()
    n, chunks = encode_columns(
        partition.config, now, values, keys, timestamps, headers, compression, batch_bytes
    )
    if not n:
        end = partition.view.end_offset
        return range(end, end)
    codec, _ = codec_for(partition.config, compression)
    first = partition.queue.append(chunks, AHEAD_COMPRESSED if codec else AHEAD_PLAIN)
    partition.flushing.settle(first + n)
    return range(first, first + n)


def encode_columns(
    config: TopicConfig,
    now: int,
    values: Any,
    keys: Any,
    timestamps: Any,
    headers: Any,
    compression: str | None,
    batch_bytes: int,
) -> tuple[int, Iterator[Encoded]]:
    """How many records these columns hold, and an iterator of their batches, each as large as the topic
    allows at most. All that can be wrong with the columns is raised before the first batch is made.
    """
    batch_bytes = arguments.whole("batch_bytes", batch_bytes, 1)
    codec, level = codec_for(config, compression)
    if isinstance(timestamps, int | np.integer):
        now_or_one, timestamps = arguments.whole("timestamps", timestamps, -1), None
    else:
        now_or_one = now
    columns = Columns(values, keys, timestamps, headers, now_or_one)
    if not columns.n:
        return 0, iter(())
    stamps = columns.timestamps
    if stamps is not None:
        check_stamps(config, int(stamps.min()), int(stamps.max()), now)
    else:
        check_stamps(config, now_or_one, now_or_one, now)
    check_keys(config, columns.keys.has_nulls)
    limit = largest_batch(config)
    check_sizes(columns, codec, level, limit)
    return columns.n, encode(columns, codec, level, batch_bytes, max_bytes=limit)


def codec_for(config: TopicConfig, compression: str | None) -> tuple[int, int | None]:
    """Code and level of a compression by name, by default the topic's. Raises InvalidArgumentError,
    InvalidTypeError.
    """
    if compression is not None and not isinstance(compression, str):
        raise InvalidTypeError(f"compression must be a str or None, not {type(compression).__name__}")
    name = config.compression_type if compression is None else compression
    if name not in _COMPRESSIONS or (compression == "producer"):
        raise InvalidArgumentError(f"compression={name!r}: must be one of {', '.join(CODECS)}")
    code = _COMPRESSIONS[name]
    level = getattr(config, f"compression_{CODECS[code]}_level", None)
    return code, level


def largest_batch(config: TopicConfig) -> int:
    """Bytes that a batch may have in this topic."""
    return min(config.max_message_bytes, config.segment_bytes)


def too_large(config: TopicConfig, size: int) -> str:
    """The message for a record that needs a batch of `size` bytes."""
    by_message = config.max_message_bytes <= config.segment_bytes
    name = "max.message.bytes" if by_message else "segment.bytes"
    return f"the record needs a batch of {size:,} bytes: allowed are {largest_batch(config):,} ({name})"


def check_keys(config: TopicConfig, some_missing: bool) -> None:
    """Raises InvalidRecordError for a record without a key in a compacted topic (Kafka: LogValidator)."""
    if some_missing and "compact" in config.cleanup_policy:
        raise InvalidRecordError(
            f"a record has no key: with cleanup.policy={config.cleanup_policy} every record must have one"
        )


def check_stamps(config: TopicConfig, least: int, most: int, now: int) -> None:
    """Raises InvalidArgumentError where timestamps are further off the clock than a CreateTime topic allows
    (Kafka: LogValidator). Warns once where retention is to delete what is appended.
    """
    if config.message_timestamp_type != "CreateTime":
        return
    if least < -1:
        raise InvalidArgumentError(f"timestamp {least}: must be -1 (none) or at least 0 ms")
    if most > now + config.message_timestamp_after_max_ms:
        raise InvalidArgumentError(
            f"timestamp {most} is more than message.timestamp.after.max.ms="
            f"{config.message_timestamp_after_max_ms} after the clock ({now})"
        )
    if 0 <= least < now - config.message_timestamp_before_max_ms:
        raise InvalidArgumentError(
            f"timestamp {least} is more than message.timestamp.before.max.ms="
            f"{config.message_timestamp_before_max_ms} before the clock ({now})"
        )
    if config.retention_ms >= 0 and 0 <= most < now - config.retention_ms:
        _tell_expired(config, most)


_told: set[tuple[int, str]] = set()


def _tell_expired(config: TopicConfig, stamp: int) -> None:
    """Warn once in a process for such settings: retention.ms given in seconds is a common mistake."""
    settings = config.retention_ms, config.cleanup_policy
    if "delete" in config.cleanup_policy and settings not in _told:
        _told.add(settings)
        log.warning(
            "a record that is stamped %d (ms since the epoch) is older than its topic's retention.ms=%d: "
            "a sweep deletes it as soon as its segment has nothing younger",
            *(stamp, config.retention_ms),
        )
