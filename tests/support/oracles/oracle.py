"""The oracle of the C codec: a slow codec of record batches (magic 2), written from a description of Kafka's
format alone.

The oracle imports nothing of segstore, so that the two can't share a mistake. All functions are pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_AT = 17
CRC_FROM = 21
INT64 = 1 << 64
APPEND_TIME = 0x08

Headers = list[tuple[bytes, "bytes | None"]]


class Malformed(Exception):
    """The bytes are not a record batch."""


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True)
class Batch:
    """The fields of a header, without lengths, count and CRC; and the records."""

    base_offset: int = 0
    leader_epoch: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = 0
    max_timestamp: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    records: list[Record] = field(default_factory=list)


# --- varints ------------------------------------------------------------------


def encode_varint(value: int) -> bytes:
    """Encode in zigzag, 7 bits a byte, the least significant first; the high bit says that more bytes
    follow.
    """
    raw = 2 * value if value >= 0 else -2 * value - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


class Reader:
    """Takes values from the front of some bytes; raises Malformed where there are too few."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise Malformed(f"{size} bytes wanted, {self.left} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, bits: int = 32) -> int:
        raw = 0
        for shift in range(0, bits, 7):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                raw %= 1 << bits
                return raw // 2 if raw % 2 == 0 else -(raw + 1) // 2
        raise Malformed(f"a varint of more than {bits} bits")

    def bytes_or_null(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.take(size)


def encode_bytes(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


# --- records ------------------------------------------------------------------


def wrapped(value: int) -> int:
    """Return a value wrapped to int64, as its arithmetic does."""
    return (value + INT64 // 2) % INT64 - INT64 // 2


def encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    body = b"\0" + encode_varint(wrapped(record.timestamp - base_timestamp))
    body += encode_varint(record.offset - base_offset)
    body += encode_bytes(record.key) + encode_bytes(record.value)
    body += encode_varint(len(record.headers))
    body += b"".join(encode_bytes(name) + encode_bytes(value) for name, value in record.headers)
    return encode_varint(len(body)) + body


def encode_records(batch: Batch) -> bytes:
    return b"".join(encode_record(r, batch.base_offset, batch.base_timestamp) for r in batch.records)


def decode_record(reader: Reader, batch: Batch) -> Record:
    body = Reader(reader.take(reader.varint()))
    body.take(1)
    delta = body.varint(64)
    append_time = batch.attributes & APPEND_TIME
    timestamp = batch.max_timestamp if append_time else wrapped(batch.base_timestamp + delta)
    offset = batch.base_offset + body.varint()
    key, value = body.bytes_or_null(), body.bytes_or_null()
    headers: Headers = []
    count = body.varint()
    if not 0 <= count <= body.left:
        raise Malformed(f"{count} headers")
    for _ in range(count):
        name = body.bytes_or_null()
        if name is None:
            raise Malformed("a header without a name")
        headers.append((name, body.bytes_or_null()))
    if body.left:
        raise Malformed("the record is longer than its content")
    return Record(offset, timestamp, key, value, headers)


def decode_records(batch: Batch, count: int, plain: bytes) -> list[Record]:
    """Return the records of a batch whose header is `batch`; their offsets must rise and stay within the
    batch.
    """
    reader, records, previous = Reader(plain), [], batch.base_offset - 1
    for _ in range(count):
        record = decode_record(reader, batch)
        if not previous < record.offset <= batch.base_offset + batch.last_offset_delta:
            raise Malformed(f"offset {record.offset} after {previous}")
        records.append(record)
        previous = record.offset
    if reader.left:
        raise Malformed("bytes after the last record")
    return records


# --- batches ------------------------------------------------------------------


def encode_header(batch: Batch, payload: bytes, count: int, crc: int) -> bytes:
    return HEADER.pack(
        batch.base_offset, HEADER.size - 12 + len(payload), batch.leader_epoch, 2, crc, batch.attributes,
        batch.last_offset_delta, batch.base_timestamp, batch.max_timestamp,
        batch.producer_id, batch.producer_epoch, batch.base_sequence, count,
    )  # fmt: skip


def encode_batch(batch: Batch, payload: bytes | None = None, count: int | None = None) -> bytes:
    """Return all bytes of a batch. `payload` and `count` replace its records where they are given."""
    payload = encode_records(batch) if payload is None else payload
    count = len(batch.records) if count is None else count
    return with_crc(encode_header(batch, payload, count, 0) + payload)


def with_crc(data: bytes) -> bytes:
    """Return the bytes of a batch with the right CRC."""
    return data[:CRC_AT] + struct.pack(">I", crc32c(data[CRC_FROM:])) + data[CRC_FROM:]


def split_batch(data: bytes) -> tuple[Batch, int, bytes, int]:
    """Return (header, record count, payload, size) of the first batch in `data`. Raises Malformed where there
    is none.
    """
    if len(data) < HEADER.size:
        raise Malformed("the header is cut")
    (base, length, epoch, magic, crc, attributes, delta, base_timestamp, max_timestamp,
     producer_id, producer_epoch, base_sequence, count) = HEADER.unpack_from(data)  # fmt: skip
    size = 12 + length
    if magic != 2 or not HEADER.size <= size <= len(data):
        raise Malformed(f"magic {magic}, {size} bytes of {len(data)}")
    if base < 0 or delta < 0 or base + delta >= 2**63 - 1 or not 0 <= count <= delta + 1:
        raise Malformed(f"{count} records from {base} to {base} + {delta}")
    if attributes & 7 == 0 and 7 * count > size - HEADER.size:
        raise Malformed(f"{count} records in {size - HEADER.size} bytes")
    if crc != crc32c(data[CRC_FROM:size]):
        raise Malformed("the CRC does not hold")
    batch = Batch(
        base,
        epoch,
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
    )
    return batch, count, data[HEADER.size : size], size


def decode_batches(data: bytes) -> list[Batch]:
    """Return all batches of `data`, one after the other, which must be whole, plain and in order."""
    batches, previous = [], -1
    while data:
        batch, count, payload, size = split_batch(data)
        if batch.base_offset <= previous:
            raise Malformed(f"base offset {batch.base_offset} after {previous}")
        batches.append(replace(batch, records=decode_records(batch, count, payload)))
        previous = batch.base_offset + batch.last_offset_delta
        data = data[size:]
    return batches
