"""Batches as producers send them: with base offset 0, by the oracle, with what a case changes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oracle import Batch, Record, encode_batch, encode_records

from segstore.records.codecs import compress

NOW = 1_700_000_000_000
RECORDS = [
    Record(0, NOW, b"key", b"value", []),
    Record(1, NOW + 5, b"", b"", [(b"h", None), (b"n", b"x")]),
    Record(2, NOW - 5, b"k", None, []),
]
PLAIN = Batch(0, -1, 0, 2, NOW, NOW + 5, -1, -1, -1, RECORDS)


def batch(codec: int = 0, payload: bytes | None = None, count: int | None = None, **fields: Any) -> bytearray:
    """Return the bytes of PLAIN with these fields, its records compressed by `codec`; `payload` are plain
    records in place of its own.
    """
    made = replace(PLAIN, **fields)
    made = replace(made, attributes=made.attributes | codec)
    plain = encode_records(made) if payload is None else payload
    packed = bytes(compress(codec, plain))
    return bytearray(encode_batch(made, packed, len(made.records) if count is None else count))


def of_producer(seq: int = 0, n: int = 1, pid: int = 7, epoch: int = 0, **fields: Any) -> bytearray:
    """Return a batch of `n` records of a producer with an id."""
    records = [Record(i, NOW, b"k", b"%d/%d" % (pid, seq + i), []) for i in range(n)]
    ids = {"producer_id": pid, "producer_epoch": epoch, "base_sequence": seq}
    return batch(records=records, last_offset_delta=n - 1, max_timestamp=NOW, **ids, **fields)


def of_values(values: list[bytes], codec: int = 0, seq: int = -1) -> bytearray:
    """Return a batch of these values, without timestamps; with a `seq` of producer 7."""
    records = [Record(i, -1, None, value, []) for i, value in enumerate(values)]
    ids = {"producer_id": 7, "producer_epoch": 0, "base_sequence": seq} if seq >= 0 else {}
    stamps = {"base_timestamp": -1, "max_timestamp": -1}
    return batch(codec, records=records, last_offset_delta=len(values) - 1, **stamps, **ids)
