"""The C codec against the oracle, both ways, on generated batches and on a broker's that were changed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import native_batches as native
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_batches import (
    INT31,
    INT63,
    KINDS,
    STATUS,
    Column,
    Input,
    NativeError,
    decode_both,
    template,
)
from oracle import Batch, Malformed, Record

from segstore.records.header import HEADER_SIZE, batch_type

int64 = st.integers(-(1 << 63), INT63)
stamps = st.integers(-100, 100_000) | st.sampled_from([0, -1, INT63, -(1 << 63)]) | int64
bytestrings = st.binary(max_size=70) | st.integers(0, 600).map(lambda n: b"x" * n)
contents = st.none() | bytestrings
headers = st.just([]) | st.lists(st.tuples(st.binary(max_size=8), contents), max_size=4)
gaps = st.just(1) | st.integers(1, 200) | st.sampled_from([1 << 16, INT31, 1 << 31, 1 << 40])
flags = st.integers(0, 127).map(lambda bits: bits & ~0x07)


@st.composite
def records(draw: st.DrawFn, base: int | None = None, widest: int = 1 << 41) -> list[Record]:
    offset = draw(st.integers(0, 1 << 50)) if base is None else base
    found = []
    for gap in draw(st.lists(gaps.filter(lambda gap: gap <= widest), min_size=1, max_size=25)):
        found.append(Record(offset, draw(stamps), draw(contents), draw(contents), draw(headers)))
        offset += gap
    return found


@st.composite
def batches(draw: st.DrawFn, base: int = 0) -> Batch:
    base += draw(st.integers(0, 1 << 40))
    attributes = draw(flags)
    some = draw(st.just([]) | records(base, widest=1 << 16))
    if attributes & oracle.APPEND_TIME:
        stamp = draw(stamps)
        some = [r._replace(timestamp=stamp) for r in some]
    last = some[-1].offset if some else base
    return Batch(
        base,
        draw(st.integers(-1, INT31)),
        attributes,
        last - base + draw(st.integers(0, 1000)),
        draw(stamps),
        some[0].timestamp if some and attributes & oracle.APPEND_TIME else draw(stamps),
        draw(int64),
        draw(st.integers(-(1 << 15), (1 << 15) - 1)),
        draw(st.integers(-1, INT31)),
        some,
    )


@given(
    some=records(),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    batch_bytes=st.sampled_from([1, 100, 500, 4096, 1 << 40]),
    capacity=st.sampled_from([2000, 10_000, 1 << 18]),
    attributes=flags,
    sequence=st.sampled_from([-1, 0, 5, INT31 - 3, INT31]),
    horizon=stamps,
)
def test_oracle_reads_what_c_encodes(
    some: list[Record],
    kinds: tuple[str, str],
    batch_bytes: int,
    capacity: int,
    attributes: int,
    sequence: int,
    horizon: int,
) -> None:
    columns = Input(some, *kinds)
    some = [
        r._replace(
            key=as_kind(kinds[0], r.key, columns.keys), value=as_kind(kinds[1], r.value, columns.values)
        )
        for r in some
    ]
    first = 0
    while first < len(some):
        t = template(
            attributes=attributes, producer_id=77, producer_epoch=3, leader_epoch=9, delete_horizon=horizon,
            base_sequence=sequence if sequence < 0 else (sequence + first) % (1 << 31),
        )  # fmt: skip
        try:
            data, rows, taken = columns.encode(t, first, batch_bytes, capacity)
        except NativeError as refused:
            if str(refused) != "SEG_E_ROOM":
                raise
            assert one_record_bytes(some[first]) > capacity or batch_bytes > capacity
            capacity = 1 << 18
            continue
        found = oracle.decode_batches(data)
        assert taken == sum(len(b.records) for b in found) > 0
        for batch, row in zip(found, rows, strict=True):
            check_batch(batch, row, some[first:], t, sequence, first, batch_bytes)
            first += len(batch.records)


def as_kind(kind: str, item: bytes | None, column: Column) -> bytes | None:
    """What a column of that kind makes of an item."""
    if item is None or kind == "nulls":
        return None
    return item.ljust(column.c.width, b"\0") if kind == "fixed" else item


def one_record_bytes(record: Record) -> int:
    return HEADER_SIZE + len(oracle.encode_record(record, record.offset, 0)) + 9


def check_batch(
    batch: Batch, row: Any, rest: list[Record], t: Any, sequence: int, before: int, batch_bytes: int
) -> None:
    mine, after = rest[: len(batch.records)], rest[len(batch.records) :]
    stamp_of_all = batch.max_timestamp if batch.attributes & oracle.APPEND_TIME else None
    want = [r if stamp_of_all is None else r._replace(timestamp=stamp_of_all) for r in mine]
    assert batch.records == want
    assert batch.max_timestamp == max(r.timestamp for r in mine)
    assert batch.base_timestamp == (t.delete_horizon if t.attributes & 0x40 else mine[0].timestamp)
    assert batch.base_offset == mine[0].offset
    assert batch.base_offset + batch.last_offset_delta == mine[-1].offset == row["last_offset"]
    assert batch.base_sequence == (-1 if sequence < 0 else (sequence + before) % (1 << 31))
    assert (batch.producer_id, batch.producer_epoch, batch.leader_epoch) == (77, 3, 9)
    for name in (
        "base_offset",
        "leader_epoch",
        "attributes",
        "base_timestamp",
        "max_timestamp",
        "base_sequence",
    ):
        assert row[name] == getattr(batch, name)
    assert row["count"] == len(mine)
    assert row["size"] <= batch_bytes or len(mine) == 1
    if after and after[0].offset - batch.base_offset <= INT31:
        longer = oracle.encode_record(after[0], batch.base_offset, batch.base_timestamp)
        assert row["size"] + len(longer) > batch_bytes


@given(first=batches(), gap=st.integers(1, 1 << 40), data=st.data())
def test_c_reads_what_the_oracle_encodes(first: Batch, gap: int, data: st.DataObject) -> None:
    second = data.draw(batches(first.base_offset + first.last_offset_delta + gap))
    both = oracle.encode_batch(first) + oracle.encode_batch(second)
    rows, end = native.scan(both, position=1000)
    assert (len(rows), STATUS[end.status], end.position) == (2, "SEG_END", 1000 + len(both))
    for batch, row in zip((first, second), rows, strict=True):
        want = native.as_batch(batch, len(batch.records))[0]
        assert all(
            row[name] == want[name] for name in batch_type().names if name not in ("position", "size", "crc")
        )
    assert native.decode_all(both) == [*first.records, *second.records]


@given(some=records())
def test_largest_bounds_every_record(some: list[Record]) -> None:
    sizes = [len(oracle.encode_record(r, r.offset, r.timestamp)) for r in some]
    largest, index = Input(some).largest()
    assert max(sizes) <= largest <= max(sizes) + 13 + 1  # deltas at their longest, and a longer length for it
    assert sizes[index] <= largest <= sizes[index] + 14


# --- mutations ---


SOURCES = ["tests/golden", "the full set"]


def mutate(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(changed))
        kind = rng.randrange(4)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            changed[at : at + rng.randint(1, 9)] = b""
        else:
            changed[at:at] = bytes([rng.choice([0, 0x80, 0xFF])]) * rng.randint(1, 9)
        changed = changed or bytearray(1)
    return bytes(changed)


def plain_batches(root: Path) -> list[tuple[Batch, int, bytes]]:
    """The first plain batches of each log, their payloads cut to a few records where they are long."""
    found = []
    for log in sorted(set(root.rglob("*.log")) - set((root / "old").rglob("*.log"))):  # magic 2 alone
        data = log.read_bytes()[: 1 << 17]
        rows, _ = native.scan(data)
        for row in rows[:3]:
            header, count, payload, _ = oracle.split_batch(
                data[row["position"] : row["position"] + row["size"]]
            )
            if header.attributes & 7 == 0 and len(payload) < 50_000:
                reader, few = oracle.Reader(payload), min(count, 8)
                for _ in range(few):
                    oracle.decode_record(reader, header)
                found.append((header, few, payload[: reader.at]))
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_mutated_records_of_a_broker(source: str, rng: random.Random, request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue("golden" if source == "tests/golden" else "kafka_segments")
    found = plain_batches(root)
    assert found
    refused = 0
    for _ in range(3000):
        header, count, payload = rng.choice(found)
        changed = mutate(rng, payload) if payload else payload
        got, want = decode_both(header, count, changed)
        assert (got if want is not None else isinstance(got, str)) == (True if want is None else want)
        refused += want is None
    assert 300 < refused < 2990


def test_mutated_batches(golden: Path, rng: random.Random) -> None:
    """Header and records changed, with the CRC that they call for: both read the same, or neither does."""
    found = plain_batches(golden)
    read = 0
    for _ in range(3000):
        header, count, payload = rng.choice(found)
        data = oracle.encode_batch(header, payload, count)
        at = rng.randrange(HEADER_SIZE)
        changed = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        changed = oracle.with_crc(changed) if rng.random() < 0.8 else changed
        if changed[22] & 7:
            continue  # a codec's records are not read here
        try:
            want: Any = [r for b in oracle.decode_batches(changed) for r in b.records]
        except Malformed:
            want = None
        try:
            got: Any = native.decode_all(changed)
        except (NativeError, ValueError):
            got = None
        assert got == want
        read += want is not None
    assert read > 100
