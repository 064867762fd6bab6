"""Compares the native decoder with the plain Python one: both must return the same records, or fail at the
same batch.
"""

from __future__ import annotations

from typing import NamedTuple

import message_sets
from oracle import Batch, Malformed, Record, decode_records, split_batch

from segstore._native import lib
from segstore.errors import CorruptRecordError
from segstore.records.codecs import DecompressError, decompress
from segstore.records.decode import decode, scan
from segstore.records.records import Records

LIMIT = 1 << 24
"""Bytes that a batch may become."""
_CONTROL = 0x20
_Batch = tuple[Batch, int, bytes]
_MOST_DELTA = (1 << 31) - 1


class Read(NamedTuple):
    """What one side makes of some bytes: records, where it stopped (-1: at the end), and at what stage."""

    records: list[Record]
    stopped: int
    stage: str


def native(data: bytes) -> Read:
    """By the C codec, as every read of a log goes."""
    batches, end = scan(data)
    stage = {lib.SEG_END: "", lib.SEG_SHORT: "short"}.get(end.status, "scan")
    try:
        records = decode(data, batches, "input", limit=LIMIT)
    except CorruptRecordError as error:
        good = batches[: int((batches["position"] < error.position).sum())]
        return Read(_listed(decode(data, good, "input", limit=LIMIT)), error.position, "decode")
    _look_at_all(records)
    return Read(_listed(records), end.position if stage else -1, stage)


def _listed(records: Records) -> list[Record]:
    rows = zip(
        records.offsets.tolist(), records.timestamps.tolist(), records.keys, records.values, records.headers,
        strict=True,
    )  # fmt: skip
    return [Record(*row) for row in rows]


def _look_at_all(records: Records) -> None:
    """Every other way to see them: none may fail, and slices are what they are slices of."""
    table = records.to_arrow()
    assert table.num_rows == len(records)
    assert records.batch_indexes().shape == (len(records),)
    half = records[len(records) // 2 :]
    assert half.offsets.tolist() == records.offsets.tolist()[len(records) // 2 :]
    assert list(half.values) == table["value"].to_pylist()[len(records) // 2 :]


def plain(data: bytes) -> Read:
    """By the oracles, one batch or message after the other; they decompress nothing themselves."""
    records: list[Record] = []
    at, previous = 0, -1
    found: list[tuple[int, _Batch | bytes]] = []
    stage = ""
    while at < len(data):
        try:
            if is_old(data[at:]):
                whole: _Batch | bytes = message_sets.split(data, at, previous)
                size, last = len(whole), int.from_bytes(whole[:8], "big")
            else:
                batch, count, payload, size = split_batch(data[at:])
                if batch.base_offset <= previous:
                    raise Malformed("offsets fall")
                whole, last = (batch, count, payload), batch.base_offset + batch.last_offset_delta
        except (Malformed, message_sets.Malformed):
            stage = "scan or short"
            break
        found.append((at, whole))
        at, previous = at + size, last
    previous = -1
    for where, whole in found:
        try:
            records += _records(whole, previous)
        except (Malformed, message_sets.Malformed, DecompressError):
            return Read(_named(records), where, "decode")
        previous = _last(whole)
    return Read(_named(records), at if stage else -1, stage)


def is_old(data: bytes) -> bool:
    """Return whether what begins here says that it is a message of magic 0 or 1."""
    return len(data) > 16 and data[16] < 2


def _records(whole: _Batch | bytes, previous: int) -> list[Record]:
    if isinstance(whole, bytes):
        said = message_sets.said(message_sets.parse(whole), previous, _nested)
        if _last(whole) - said[0].offset > _MOST_DELTA:  # which no batch may have
            raise Malformed("offsets too far apart")
        return [Record(m.offset, m.timestamp, m.key, m.value, []) for m in said]
    batch, count, payload = whole
    return decode_records(batch, count, _plain(batch.attributes & 7, payload))


def _last(whole: _Batch | bytes) -> int:
    if isinstance(whole, bytes):
        return int.from_bytes(whole[:8], "big")
    return whole[0].base_offset + whole[0].last_offset_delta


def _nested(codec: int, value: bytes, magic: int) -> bytes:
    if codec > 3:
        raise Malformed(f"codec {codec}")
    return _plain(codec, message_sets.mended_lz4(value) if (codec, magic) == (3, 0) else value)


def _plain(codec: int, payload: bytes) -> bytes:
    if codec > 4:
        raise Malformed(f"codec {codec}")
    return bytes(decompress(codec, payload, LIMIT)) if codec else payload


def _named(records: list[Record]) -> list[Record]:
    return [r._replace(headers=[(n.decode(errors="replace"), v) for n, v in r.headers]) for r in records]


def compare(data: bytes) -> str:
    """The outcome; AssertionError where the two differ."""
    ours, theirs = native(data), plain(data)
    assert ours.records == theirs.records, f"records differ: {ours} {theirs}"
    assert ours.stopped == theirs.stopped, f"they stop at different places: {ours} {theirs}"
    assert (ours.stage or "whole") in (theirs.stage or "whole"), f"{ours.stage!r}, {theirs.stage!r}"
    return f"{ours.stage or 'whole'}, {min(len(ours.records), 9)} records"
