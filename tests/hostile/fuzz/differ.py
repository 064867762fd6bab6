"""Compares the native decoder with the plain Python one: both must return the same records, or fail at the
same batch.
"""

from __future__ import annotations

from typing import NamedTuple

from oracle import Batch, Malformed, Record, decode_records, split_batch

from segstore._native import lib
from segstore.errors import CorruptRecordError
from segstore.records.codecs import DecompressError, decompress
from segstore.records.decode import decode, scan
from segstore.records.records import Records

LIMIT = 1 << 24
"""Bytes that a batch may become."""
_CONTROL = 0x20


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
    """By the oracle, one batch after the other; it decompresses nothing itself."""
    records: list[Record] = []
    at, previous = 0, -1
    headers: list[tuple[int, Batch, int, bytes]] = []
    stage = ""
    while at < len(data):
        try:
            batch, count, payload, size = split_batch(data[at:])
            if batch.base_offset <= previous:
                raise Malformed("offsets fall")
        except Malformed:
            stage = "scan or short"
            break
        headers.append((at, batch, count, payload))
        at, previous = at + size, batch.base_offset + batch.last_offset_delta
    for where, batch, count, payload in headers:
        try:
            records += decode_records(batch, count, _plain(batch.attributes & 7, payload))
        except (Malformed, DecompressError):
            return Read(_named(records), where, "decode")
    return Read(_named(records), at if stage else -1, stage)


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
