"""Checks appended records against the topic's settings (Kafka: LogValidator). Nothing is on disk. Threads:
any.
"""

from __future__ import annotations

from typing import Any

from segstore._native import ffi
from segstore.config import TopicConfig
from segstore.errors import InvalidArgumentError, InvalidRecordError, InvalidTypeError
from segstore.logger import Logger
from segstore.records import CODECS
from segstore.storage.segment.native_tail import NativeTail

log = Logger("segstore")

_COMPRESSIONS = {name: code for code, name in enumerate(CODECS)} | {"uncompressed": 0, "producer": 0}


class LogValidator:
    """The limits that one topic's settings set for appends.

    `codec` and `level` are those of the topic's `compression.type`, `largest_batch` the largest batch in
    bytes, `needs_keys` whether every record must have a key.
    """

    def __init__(self, config: TopicConfig) -> None:
        self._config = config
        self.codec, self.level = codec_for(config, None)
        self.largest_batch = min(config.max_message_bytes, config.segment_bytes)
        self.keeps_codec = config.compression_type == "producer"
        """Whether batches keep the codec that their producer chose."""
        self.needs_keys = "compact" in config.cleanup_policy
        self.rules: Any = ffi.new("seg_rules *")
        """The same limits for C, which checks batches in the bytes that a producer sent."""
        self.rules.largest_batch, self.rules.needs_key = self.largest_batch, self.needs_keys
        self.rules.before_ms = config.message_timestamp_before_max_ms
        self.rules.after_ms = config.message_timestamp_after_max_ms
        self.rules.create_time = config.message_timestamp_type == "CreateTime"

    def exceeds_message(self, size: int) -> bool:
        """Return whether a batch of `size` bytes is above `max.message.bytes`."""
        return size > self._config.max_message_bytes

    def codec_for(self, compression: str | None) -> tuple[int, int | None]:
        """Return the code and the level of a producer's codec if the topic's `compression.type` is
        "producer", else of the topic's codec. Raises the errors of the function `codec_for`.
        """
        return self.named_codec(compression if self.keeps_codec else None)

    def named_codec(self, compression: str | None) -> tuple[int, int | None]:
        """Return (code, level) of the codec with the name `compression`, or of the topic's codec if
        `compression` is None. Raises the errors of the function `codec_for`.
        """
        return (self.codec, self.level) if compression is None else codec_for(self._config, compression)

    def bind(self, tail: NativeTail) -> None:
        """Give a tail the limits for a record. The limits also make C refuse a record for which `check` must
        warn.
        """
        c, config = tail.c, self._config
        c.largest_batch, c.needs_key, c.plain = self.largest_batch, self.needs_keys, not self.codec
        c.stamps = not self.rules.create_time
        c.after_ms, c.before_ms = (
            config.message_timestamp_after_max_ms,
            config.message_timestamp_before_max_ms,
        )
        if config.retention_ms >= 0:
            c.before_ms = min(c.before_ms, config.retention_ms)

    def check(self, least: int, most: int, keys_missing: bool, now: int) -> None:
        """Raise InvalidArgumentError if timestamps, from `least` to `most` ms, differ from the clock by more
        than a CreateTime topic allows. Raise InvalidRecordError if a key is missing in a compacted topic.
        Warns once if the records are so old that retention would delete them.
        """
        config = self._config
        if config.message_timestamp_type == "CreateTime":
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
                _warn_expired(config, most)
        if keys_missing and self.needs_keys:
            self.check_keys(keys_missing)

    def check_keys(self, missing: bool) -> None:
        """Raise InvalidRecordError if a key is missing in a compacted topic."""
        if missing and self.needs_keys:
            raise InvalidRecordError(
                f"a record has no key: with cleanup.policy={self._config.cleanup_policy} every record must"
                " have one"
            )

    def too_large(self, size: int) -> str:
        """Return the message for a record that needs a batch of `size` bytes."""
        config = self._config
        by_message = config.max_message_bytes <= config.segment_bytes
        name = "max.message.bytes" if by_message else "segment.bytes"
        return f"the record needs a batch of {size:,} bytes: allowed are {self.largest_batch:,} ({name})"


def codec_for(config: TopicConfig, compression: str | None) -> tuple[int, int | None]:
    """Return the code and the level of the codec with the name `compression`, or of the topic's codec if
    `compression` is None. Raises InvalidArgumentError, InvalidTypeError.
    """
    if compression is not None and not isinstance(compression, str):
        raise InvalidTypeError(f"compression must be a str or None, not {type(compression).__name__}")
    name = config.compression_type if compression is None else compression
    if name not in _COMPRESSIONS or (compression == "producer"):
        raise InvalidArgumentError(f"compression={name!r}: must be one of {', '.join(CODECS)}")
    code = _COMPRESSIONS[name]
    level = getattr(config, f"compression_{CODECS[code]}_level", None)
    return code, level


SECONDS = "; a time in seconds is multiplied by 1000"
# As seconds, these numbers are times from 2001 to 2286. As ms, they are times in 1970.
_LIKE_SECONDS = range(10**9, 10**10)
_warned: set[tuple[int, str]] = set()


def _warn_expired(config: TopicConfig, stamp: int) -> None:
    """Warn that records are older than retention.ms when they are appended. A process warns once for each
    pair of retention.ms and cleanup.policy. The usual cause is that a timestamp or retention.ms was given in
    seconds.
    """
    settings = config.retention_ms, config.cleanup_policy
    if "delete" in config.cleanup_policy and settings not in _warned:
        _warned.add(settings)
        log.warning(
            "a record that is stamped %d (ms since the epoch) is older than its topic's retention.ms=%d: "
            "a sweep deletes it as soon as its segment has nothing younger%s",
            *(stamp, config.retention_ms, SECONDS if stamp in _LIKE_SECONDS else ""),
        )
