"""Segments as brokers of all ages have left them, drawn from a seed: bytes that no append of ours makes.

Messages of magic 0 and 1, plain and in wrappers; record batches of magic 2 with gaps, without records, with
times of the log, larger than any `segment.bytes`; written by the oracles. Nothing is on disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import oracle
from drawn_sets import entry
from message_sets import Message
from stores import START_MS

from segstore.records.codecs import compress

Bytes = tuple[bytes, int]
"""Bytes of a log, and the offset behind them."""
_VALUES = (None, b"", b"\0\xff", b"old value", b"x" * 90)
_HEADERS: tuple[oracle.Headers, ...] = ([], [], [(b"h", b"v"), (b"h", None)], [(b"", b"")])


def segment_of(rng: random.Random, base: int) -> Bytes:
    """Draw a segment of some entries from offset `base` on, with gaps between them."""
    data, at = b"", base
    for _ in range(rng.choice((1, 3, 6))):
        more, at = rng.choice(_ENTRIES)(rng, at)
        data, at = data + more, at + rng.choice((0, 0, 0, 1, 30))
    return data, at


def _offsets(rng: random.Random, at: int) -> list[int]:
    """Draw rising offsets from `at` on, with gaps among them."""
    found = []
    for _ in range(rng.choice((1, 2, 5, 9))):
        at += rng.choice((0, 0, 0, 0, 1, 7))
        found.append(at)
        at += 1
    return found


def _time(rng: random.Random) -> int:
    return rng.choice((-1, 0, START_MS, START_MS - 5_000 + rng.randrange(10_000)))


def _old(rng: random.Random, at: int) -> Bytes:
    magic, codec = rng.choice((0, 1, 1)), rng.randrange(4)
    appended, stamp = magic == 1 and rng.random() < 0.3, _time(rng)
    messages = [
        Message(
            offset,
            stamp if appended else _time(rng),
            rng.choice((None, b"k%d" % rng.randrange(12))),
            rng.choice(_VALUES),
            appended,
        )
        for offset in _offsets(rng, at)
    ]
    return entry(magic, codec, messages, rng.random() < 0.3).data, messages[-1].offset + 1


def _batch(rng: random.Random, at: int) -> Bytes:
    offsets, appended = _offsets(rng, at), rng.random() < 0.2
    records = [
        oracle.Record(
            offset,
            _time(rng),
            rng.choice((None, b"k%d" % rng.randrange(12))),
            rng.choice(_VALUES),
            rng.choice(_HEADERS),
        )
        for offset in offsets
    ]
    behind = offsets[-1] + rng.choice((0, 0, 3))
    return _written(rng, at, behind, records, oracle.APPEND_TIME if appended else 0), behind + 1


def _large_batch(rng: random.Random, at: int) -> Bytes:
    records = [oracle.Record(at + i, START_MS + i, b"k%d" % i, b"large" * 200, []) for i in range(80)]
    return _written(rng, at, at + 79, records, 0), at + 80


def _empty_batch(rng: random.Random, at: int) -> Bytes:
    """A batch that compaction has left because a producer's last sequence is there."""
    batch = oracle.Batch(at, 0, 0, 4, START_MS, START_MS, 77, 0, 0)
    return oracle.encode_batch(batch, b""), at + 5


def _written(rng: random.Random, at: int, last: int, records: list[oracle.Record], attributes: int) -> bytes:
    codec, times = rng.randrange(5), [record.timestamp for record in records]
    batch = oracle.Batch(at, 0, attributes | codec, last - at, times[0], max(times), records=records)
    payload = oracle.encode_records(batch)
    return oracle.encode_batch(batch, bytes(compress(codec, payload)) if codec else payload)


_ENTRIES: tuple[Callable[[random.Random, int], Bytes], ...] = (
    *[_old] * 4,
    *[_batch] * 3,
    _large_batch,
    _empty_batch,
)
