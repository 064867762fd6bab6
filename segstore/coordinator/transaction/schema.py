"""The bytes of a record in `__transaction_state`: TransactionLogKey and TransactionLogValue of Kafka 4.1.

Key: int16 version 0, transactional id (int16 length, UTF-8). Value: int16 version; version 1 has compact
lengths (unsigned varint, one more than the length, 0 for null) and tagged fields, version 0 neither. All
integers big-endian. Version 1 is written, both are read.
Threads: any; functions without state.
"""

from __future__ import annotations

import struct
from typing import Any

from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.metadata import State, TransactionMetadata
from segstore.coordinator.unreadable import NEWEST_VERSION
from segstore.errors import CorruptRecordError, UnsupportedVersionError
from segstore.records.header import NO_PRODUCER_ID

_HEAD = struct.Struct(">hqhib")  # version, producer id, epoch, timeout, state
_TIMES = struct.Struct(">qq")
LAST_VERSION = 1
_PREVIOUS, _NEXT, _CLIENT = 0, 1, 2
_TAGS = {_PREVIOUS: ">q", _NEXT: ">q", _CLIENT: ">h"}
_MOST = 1 << 24  # elements of any list


def encode_key(transactional_id: str) -> bytes:
    """The key of a transactional id."""
    name = transactional_id.encode()
    return struct.pack(">hh", 0, len(name)) + name


def decode_key(key: bytes) -> str | None:
    """Return the transactional id; None for a record of another kind. Raises ValueError for bytes that are
    no key.
    """
    reader = _Reader(key)
    version = reader.take(">h")
    if not 0 <= version <= NEWEST_VERSION:
        raise ValueError(f"no record of a transaction has a key of version {version}")
    if version:
        return None
    return reader.raw(reader.take(">h")).decode()


def encode_value(m: TransactionMetadata) -> bytes:
    """Encode the state of a transactional id."""
    parts = [_HEAD.pack(1, m.producer_id, m.producer_epoch, m.timeout_ms, m.state)]
    if m.state is State.EMPTY:
        parts.append(b"\0")
    else:
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(m.partitions):
            topics.setdefault(topic, []).append(partition)
        parts.append(_varint(len(topics) + 1))
        for topic, ids in topics.items():
            name = topic.encode()
            parts += [_varint(len(name) + 1), name, _varint(len(ids) + 1)]
            parts += [struct.pack(f">{len(ids)}i", *ids), b"\0"]
    parts.append(_TIMES.pack(m.updated_ms, m.started_ms))
    tags = {_PREVIOUS: m.previous_producer_id, _NEXT: m.next_producer_id, _CLIENT: m.client_version}
    told = {tag: value for tag, value in tags.items() if value != (0 if tag == _CLIENT else NO_PRODUCER_ID)}
    parts.append(_varint(len(told)))
    for tag, value in told.items():
        data = struct.pack(_TAGS[tag], value)
        parts += [_varint(tag), _varint(len(data)), data]
    return b"".join(parts)


def decode_value(value: bytes) -> TransactionMetadata:
    """Decode what `encode_value`, or Kafka, wrote. Raises UnsupportedVersionError; ValueError, which says
    what is wrong.
    """
    reader = _Reader(value)
    version = reader.take(">h")
    if not 0 <= version <= NEWEST_VERSION:
        raise ValueError(f"there is no TransactionLogValue of version {version}")
    if version > LAST_VERSION:
        raise UnsupportedVersionError(
            f"TransactionLogValue of version {version}: versions 0 to {LAST_VERSION} are known"
        )
    producer_id, epoch, timeout = reader.take(">q"), reader.take(">h"), reader.take(">i")
    state = State(reader.take(">b"))
    partitions = frozenset(reader.partitions(flexible=version == 1))
    updated, started = reader.take(">q"), reader.take(">q")
    tags = reader.tags() if version == 1 else {}
    return TransactionMetadata(
        producer_id,
        epoch,
        timeout,
        state,
        partitions,
        started,
        updated,
        tags.get(_PREVIOUS, NO_PRODUCER_ID),
        tags.get(_NEXT, NO_PRODUCER_ID),
        tags.get(_CLIENT, 0),
    )


def decode(key: bytes | None, value: bytes | None, where: str, offset: int) -> Any:
    """Return (transactional id, metadata or None for a tombstone), None for a record of another kind.
    Raises CorruptRecordError, which names the given place; UnsupportedVersionError.
    """
    try:
        transactional_id = decode_key(key or b"")
        if transactional_id is None:
            return None
        return transactional_id, None if value is None else decode_value(value)
    except (ValueError, struct.error) as error:
        raise CorruptRecordError(where, 0, offset, f"no record of a transaction: {error}") from error


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Reader:
    """Reads from the front. Raises ValueError, struct.error where the data is too short."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, form: str) -> int:
        size, left = struct.calcsize(form), len(self._data) - self._at
        if size > left:
            raise ValueError(f"{size} bytes are expected at {self._at}, {left} are left")
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += size
        return int(value)

    def raw(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError(f"{size} bytes are announced, {len(self._data) - self._at} are there")
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        number = shift = 0
        while shift < 35:
            byte = self.take(">B")
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        raise ValueError("an unsigned varint of more than 5 bytes")

    def length(self, form: str | None) -> int:
        """Return the length of a list or str, -1 for null; `form` None: compact."""
        size = self.varint() - 1 if form is None else self.take(form)
        if size > _MOST:
            raise ValueError(f"a length of {size}")
        return size

    def partitions(self, flexible: bool) -> list[TopicPartition]:
        found = []
        for _ in range(self.length(None if flexible else ">i")):
            topic = self.raw(self.length(None if flexible else ">h")).decode()
            count = self.length(None if flexible else ">i")
            found += [TopicPartition(topic, self.take(">i")) for _ in range(count)]
            if flexible:
                self.tags()
        return found

    def tags(self) -> dict[int, int]:
        """Return the known tagged fields; others are skipped."""
        found = {}
        for _ in range(self.varint()):
            tag, data = self.varint(), self.raw(self.varint())
            if tag in _TAGS:
                (found[tag],) = struct.unpack(_TAGS[tag], data)
        return found
