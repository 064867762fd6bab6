"""seg_stamped compared with the oracle: batches that have a record in a time span, that have none, that are
damaged.
"""

from __future__ import annotations

import random

import native_batches as native
import numpy as np
import oracle
import pytest
from bad_records import BAD_RECORDS, LONG_VARINTS, PLAIN, SPANS, TEN
from native_batches import INT63, NativeError
from oracle import Batch, Record

from segstore._native import ffi, lib

LEAST = -INT63 - 1


def stamped(
    plain: bytes, batches: np.ndarray, at: list[int], lens: list[int], least: int, most: int
) -> list[bool]:
    """Nothing beside `found` may change, and no byte beside the arena is read."""
    arena, found = native.exact(plain), ffi.new("uint8_t[]", [7] * (len(batches) + 1))
    n = native.checked(
        lib.seg_stamped(
            arena, len(plain), ffi.from_buffer("seg_batch *", batches), native.int64s(at),
            native.int64s(lens), len(batches), least, most, found,
        )
    )  # fmt: skip
    held = list(found)
    assert held[-1] == 7
    assert n == sum(held[:-1])
    return [bool(each) for each in held[:-1]]


def one(header: Batch, count: int, plain: bytes, least: int, most: int, pad: int = 0) -> bool:
    data = b"\x80" * pad + plain + b"\xff" * pad
    return stamped(data, native.as_batch(header, count), [pad], [len(plain)], least, most)[0]


@pytest.mark.parametrize("pad", [0, 64])
@pytest.mark.parametrize("size", [0, 9, 70, 200])
def test_each_span_of_some_stamps(size: int, pad: int, rng: random.Random) -> None:
    base = 1_000_000
    for _ in range(200):
        deltas = [rng.choice([0, 1, -1, 63, 64, -65, 8191, 8192, 1 << 40, -(1 << 40)]) for _ in range(4)]
        records = [Record(i, base + d, None, b"v" * size, []) for i, d in enumerate(deltas)]
        header = Batch(base_timestamp=base, last_offset_delta=3, records=records)
        least = base + rng.choice(deltas) + rng.randrange(-1, 2)
        most = least + rng.randrange(3)
        want = any(least <= base + d <= most for d in deltas)
        assert one(header, 4, oracle.encode_records(header), least, most, pad) == want


def test_stamps_wrap_as_they_do_where_they_are_decoded() -> None:
    header = Batch(base_timestamp=INT63, last_offset_delta=0)
    plain = LONG_VARINTS["timestamp of ten bytes"]
    (record,) = native.decode(plain, native.as_batch(header, 1), [0], [len(plain)])
    assert one(header, 1, plain, record.timestamp, record.timestamp)
    assert not one(header, 1, plain, record.timestamp + 1, INT63)


@pytest.mark.parametrize("name", LONG_VARINTS)
@pytest.mark.parametrize("pad", [0, 64])
def test_varints_may_be_longer_than_need_be(name: str, pad: int) -> None:
    plain = LONG_VARINTS[name]
    (record,) = native.decode(plain, native.as_batch(TEN, 1), [0], [len(plain)])
    assert one(TEN, 1, plain, record.timestamp, record.timestamp, pad)
    assert not one(TEN, 1, plain, record.timestamp + 1, INT63, pad)


STAMPED = {
    "no bytes", "one record of two", "a byte behind", "records behind", "bytes of none", "length cut",
    "length of six bytes", "timestamp of eleven bytes", "length negative", "length 0",
    "length below the least", "length beyond the bytes", "length near 2^31",
}  # fmt: skip
"""What is wrong is seen without a look behind the timestamp."""


@pytest.mark.parametrize("name", BAD_RECORDS)
@pytest.mark.parametrize("pad", [0, 64])
def test_a_damaged_batch_is_left_to_be_decoded(name: str, pad: int) -> None:
    plain, count, _ = BAD_RECORDS[name]
    assert one(TEN, count, plain, 5, 6, pad) == (name in STAMPED)


def test_a_timestamp_does_not_reach_into_the_next_record() -> None:
    """Of nine bytes, in a record of six."""
    plain = oracle.encode_varint(6) + b"\0" + b"\x80" * 8 + b"\0" * 64
    assert one(TEN, 1, plain, 5, 6)


def test_append_time_is_that_of_the_batch() -> None:
    header = Batch(base_timestamp=5, max_timestamp=9, attributes=8, last_offset_delta=9)
    spans = [(5, 8), (9, 9), (10, INT63), (LEAST, INT63)]
    assert [one(header, 1, PLAIN, *span) for span in spans] == [False, True, False, True]


@pytest.mark.parametrize("name", SPANS)
def test_a_span_outside_the_arena(name: str) -> None:
    at, size = SPANS[name]
    with pytest.raises(NativeError, match="SEG_E_COLUMN"):
        stamped(PLAIN, native.as_batch(TEN, 1), [at], [size], 0, 1)


def test_of_several_batches_those_that_hold_one() -> None:
    headers = [Batch(base_timestamp=at, last_offset_delta=0) for at in (100, 200, 300)]
    batches = np.concatenate([native.as_batch(header, 1) for header in headers])
    at = [0, len(PLAIN), 2 * len(PLAIN)]
    assert stamped(PLAIN * 3, batches, at, [len(PLAIN)] * 3, 150, 250) == [False, True, False]
    assert stamped(PLAIN * 3, batches, at, [len(PLAIN)] * 3, 250, 150) == [False] * 3
