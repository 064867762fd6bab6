"""The C of compaction against a dict and the Python oracle: the map of keys, and batches written anew."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from native_batches import NAMES, exact, int64s
from oracle import Batch, Record, decode_batches, encode_batch

from segstore._native import ffi, held, lib
from segstore.records import Records, decode, scan
from segstore.storage.cleaner.offset_map import OffsetMap, columns

HORIZON = 0x40
NOW = 1_000_000


def hashed(key: bytes, seed: tuple[int, int]) -> bytes:
    out = ffi.new("uint64_t[2]")
    lib.seg_siphash(exact(key), len(key), ffi.new("uint64_t[2]", seed), out)
    return b"".join(int(word).to_bytes(8, "little") for word in out)


# The first vectors of SipHash-2-4-128's reference implementation: key 00..0f, input 00, 01, ...
VECTORS = {0: "a3817f04ba25a8e66df67214c7550293", 1: "da87c1d86b99af44347659119b22fc45"}


@pytest.mark.parametrize("length", VECTORS)
def test_siphash_of_the_reference(length: int) -> None:
    seed = tuple(int.from_bytes(bytes(range(at, at + 8)), "little") for at in (0, 8))
    assert hashed(bytes(range(length)), seed).hex() == VECTORS[length]


def test_hashes_differ_by_every_bit_and_length() -> None:
    keys = [bytes(length) for length in range(40)]
    keys += [bytes(20)[:at] + bytes([1 << bit]) + bytes(20 - at) for at in range(20) for bit in range(8)]
    assert len({hashed(key, (1, 2)) for key in keys}) == len(keys)
    assert hashed(b"key", (1, 2)) != hashed(b"key", (1, 3)) != hashed(b"key", (2, 2))


# --- the map -------------------------------------------------------------------------------------


class Rows:
    """Keys as columns of an arena, each buffer in its exact size."""

    def __init__(self, keys: list[bytes | None], offsets: list[int]) -> None:
        self.plain = b"".join(key or b"" for key in keys)
        lengths = [-1 if key is None else len(key) for key in keys]
        at = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))]).tolist()
        self.arena, self.n = exact(self.plain), len(keys)
        self.at, self.lengths, self.offsets = int64s(at[: self.n]), int64s(lengths), int64s(offsets)

    def put(self, c: Any, from_offset: int = 0) -> int:
        size = len(self.plain)
        return lib.seg_map_put(c, self.arena, size, self.at, self.lengths, self.offsets, self.n, from_offset)

    def keep(self, c: Any, latest: int) -> tuple[list[int], int, int]:
        keep, keyless = ffi.new("uint8_t[]", max(self.n, 1)), ffi.new("int64_t *")
        kept = lib.seg_map_keep(
            c, self.arena, len(self.plain), self.at, self.lengths, self.offsets, self.n, latest, keep, keyless
        )
        return list(keep)[: self.n], int(kept), int(keyless[0])


def small_map(slots: int, limit: int) -> Any:
    c = ffi.new("seg_offset_map *")
    memory = np.zeros(slots * 3, np.uint64)
    c.slots, c.n, c.limit, c.seed = held("uint8_t[]", memory), slots, limit, (7, 9)
    return c, memory


def test_the_map_against_a_dict(rng: random.Random) -> None:
    for _ in range(60):
        n = rng.randrange(1, 200)
        pool = [None] * 2 + [rng.randbytes(rng.randrange(30)) for _ in range(rng.randrange(1, 60))]
        keys = [rng.choice(pool) for _ in range(n)]
        offsets = sorted(rng.sample(range(1000), n))
        first, latest = rng.randrange(1000), rng.randrange(1000)
        slots = len(pool) + rng.randrange(1, 5)
        c, _held = small_map(slots, slots - 1)
        rows = Rows(keys, offsets)
        model = {k: o for k, o in zip(keys, offsets, strict=True) if k is not None and o >= first}
        assert rows.put(c, first) == n
        assert c.used == len(model)
        expected = []
        for key, offset in zip(keys, offsets, strict=True):
            latest_of_key = key is not None and offset >= model.get(key, -1)
            expected.append(lib.SEG_KEEP if offset > latest else lib.SEG_LATEST * latest_of_key)
        keyless = sum(k is None and o <= latest for k, o in zip(keys, offsets, strict=True))
        assert rows.keep(c, latest) == (expected, sum(map(bool, expected)), keyless)


def test_it_stops_at_its_limit_and_says_where() -> None:
    c, _held = small_map(64, 20)
    keys = [b"%d" % (i // 2) for i in range(100)]
    rows = Rows(keys, list(range(100)))
    assert rows.put(c) == 40
    assert c.used == 20
    assert rows.keep(c, 39)[0] == [lib.SEG_LATEST * (i % 2) for i in range(40)] + [lib.SEG_KEEP] * 60
    again = Rows(keys[20:60], list(range(120, 160)))
    assert again.put(c) == 20  # keys that it has are taken


def test_a_larger_offset_wins_in_any_order() -> None:
    c, _held = small_map(8, 4)
    assert Rows([b"k"], [9]).put(c) == 1
    assert Rows([b"k"], [3]).put(c) == 1
    assert Rows([b"k", b"k"], [8, 9]).keep(c, 100)[0] == [lib.SEG_DROP, lib.SEG_LATEST]


@pytest.mark.parametrize(("at", "length"), [(0, 4), (4, 1), (-1, 1), (2**63 - 1, 2), (1, 2**63 - 1)], ids=str)
def test_a_key_outside_of_the_arena(at: int, length: int) -> None:
    c, _held = small_map(8, 4)
    rows = Rows([b"abc"], [0])
    rows.at, rows.lengths = int64s([at]), int64s([length])
    assert rows.put(c) == lib.SEG_E_COLUMN
    assert rows.keep(c, 5)[1] == lib.SEG_E_COLUMN


@pytest.mark.parametrize(("n", "limit", "used"), [(0, 0, 0), (8, 8, 0), (8, 4, 5), (8, 4, -1)], ids=str)
def test_a_map_that_can_not_be(n: int, limit: int, used: int) -> None:
    c, _held = small_map(8, 4)
    c.n, c.limit, c.used = n, limit, used
    rows = Rows([b"k"], [0])
    assert rows.put(c) < 0
    assert rows.keep(c, 5)[1] < 0


def test_the_memory_that_a_map_takes() -> None:
    for memory, keys, slots in ((2400, 10**6, 100), (10**9, 500, 1000), (10, 1, 64)):
        held = OffsetMap(memory, 0.9, keys)
        assert (held.c.n, held.c.limit) == (slots, int(slots * 0.9))
    assert OffsetMap(2400, 1.0, 1000).c.limit == 99
    assert OffsetMap(2400, 0.0001, 1000).c.limit == 1


# --- batches --------------------------------------------------------------------------------------


def some_batch(rng: random.Random, base: int) -> Batch:
    delta = rng.randrange(1, 12)
    offsets = sorted(rng.sample(range(base, base + delta + 1), rng.randrange(0, delta + 1)))
    attributes = rng.choice([0, 0, 0x10, HORIZON, HORIZON | 0x10])
    horizon = NOW + rng.choice([-1, 0, 1])
    records = []
    for offset in offsets:
        key = None if rng.random() < 0.1 else b"k%d" % rng.randrange(8)
        value = None if rng.random() < 0.3 else rng.randbytes(rng.choice([0, 3, 40, 700]))
        headers = [(b"h", b"x"), (b"", None)][: rng.choice([0, 0, 0, 1, 2])]
        records.append(Record(offset, rng.randrange(-1, 3 * NOW), key, value, headers))
    first = records[0].timestamp if records else -1
    largest = max((r.timestamp for r in records), default=rng.randrange(NOW))
    return Batch(
        base, rng.randrange(9), attributes, delta, horizon if attributes & HORIZON else first, largest,
        rng.randrange(5), rng.randrange(5), rng.randrange(100), records,
    )  # fmt: skip


def expected_batch(b: Batch, policy: int, kept: list[Record]) -> Batch | None:
    """Kafka's MemoryRecords.filterTo in plain words."""
    if not kept:
        if not policy & lib.SEG_RETAIN_EMPTY:
            return None
        return Batch(
            b.base_offset, b.leader_epoch, b.attributes & ~HORIZON, b.last_offset_delta, -1, b.max_timestamp,
            b.producer_id, b.producer_epoch, b.base_sequence,
        )  # fmt: skip
    starts = any(r.value is None for r in kept) or policy & lib.SEG_SPENT_MARKER
    attributes, base_timestamp = b.attributes, kept[0].timestamp
    if b.attributes & HORIZON:
        base_timestamp = b.base_timestamp
    elif starts:
        attributes, base_timestamp = b.attributes | HORIZON, NOW + 5000
    elif len(kept) == len(b.records):
        base_timestamp = b.base_timestamp
    return Batch(
        b.base_offset, b.leader_epoch, attributes, b.last_offset_delta, base_timestamp,
        max(r.timestamp for r in kept), b.producer_id, b.producer_epoch, b.base_sequence, kept,
    )  # fmt: skip


def stays(b: Batch, record: Record, model: dict[bytes, int], latest: int, policy: int) -> bool:
    if policy & lib.SEG_NO_RECORDS:
        return False
    if policy & lib.SEG_ALL_RECORDS or record.offset > latest:
        return True
    spent = b.attributes & HORIZON and b.base_timestamp <= NOW
    if record.key is None or record.offset < model.get(record.key, -1):
        return False
    return record.value is not None or not spent


def compacted(data: bytes, held: OffsetMap, policies: list[int], capacity: int | None = None) -> Any:
    """(what seg_compact returns, bytes, seg_cleaning, made)."""
    headers, _ = scan(data)
    records: Records = decode(data, headers, "test")
    keep, _ = held.keep(records)
    n, room = len(headers), len(data) + 20 * len(records) + 61 if capacity is None else capacity
    how = ffi.new("seg_cleaning *", {"now": NOW, "new_horizon": NOW + 5000})
    out, out_batches, made = exact(bytes(room)), np.empty(n, headers.dtype), ffi.new("uint8_t[]", n)
    used = lib.seg_compact(
        exact(data), len(data), 0, exact(records.arena), len(records.arena),
        ffi.from_buffer("seg_batch *", headers), bytes(policies), bytes(n), n, columns(records), how,
        ffi.from_buffer("uint8_t *", keep), out, room, ffi.from_buffer("seg_batch *", out_batches), made,
    )  # fmt: skip
    return used, bytes(ffi.buffer(out, max(used, 0))) if room else b"", how, list(made)


POLICIES = [0, 0, 0, "SEG_RETAIN_EMPTY", "SEG_NO_RECORDS", "SEG_ALL_RECORDS", "SEG_SPENT_MARKER"]


def test_batches_against_the_oracle(rng: random.Random) -> None:
    for _ in range(150):
        some: list[Batch] = []
        for _ in range(rng.randrange(1, 9)):
            base = some[-1].base_offset + some[-1].last_offset_delta + 1 if some else rng.randrange(50)
            some.append(some_batch(rng, base + rng.choice([0, 0, 7])))
        latest = rng.randrange(200)
        names = [rng.sample(POLICIES, 2) for _ in some]
        policies = [sum(getattr(lib, p) if p else 0 for p in set(of_one)) for of_one in names]
        data = b"".join(map(encode_batch, some))
        held = OffsetMap(1 << 16, 0.9, 1000)
        headers, _ = scan(data)
        held.put(decode(data, headers, "test"))
        held.latest = latest
        model = {r.key: r.offset for b in some for r in b.records if r.key is not None}
        expected = []
        for b, policy in zip(some, policies, strict=True):
            kept = [r for r in b.records if stays(b, r, model, latest, policy)]
            expected.append(expected_batch(b, policy, kept))
        used, found, how, _ = compacted(data, held, policies)
        assert used == len(found)
        assert decode_batches(found) == [b for b in expected if b is not None]
        assert how.records == sum(len(b.records) for b in expected if b)
        changed = [
            b is None or encode_batch(b) != encode_batch(a) for a, b in zip(some, expected, strict=True)
        ]
        # An empty batch that stays as one may be written anew to the same bytes.
        assert how.changed == sum(changed)


def test_what_does_not_change_is_copied_byte_for_byte() -> None:
    records = [Record(5, 7, b"k", b"v", []), Record(6, 3, b"l", b"w", [(b"h", None)])]
    data = encode_batch(
        Batch(5, 1, 0, 3, 999, 7, records=records)
    )  # a base timestamp that nobody would write
    held = OffsetMap(1 << 12, 0.9, 10)
    held.latest = 100
    used, found, how, made = compacted(data, held, [0])
    assert (used, found, how.changed, made) == (len(data), data, 0, [lib.SEG_COPIED])


@pytest.mark.parametrize("policy", [0, lib.SEG_SPENT_MARKER, lib.SEG_NO_RECORDS | lib.SEG_RETAIN_EMPTY])
def test_no_byte_is_written_beyond_the_room(policy: int) -> None:
    data = encode_batch(
        Batch(0, 0, 0, 2, 1, 3, records=[Record(i, 1, b"k%d" % i, b"v" * 50, []) for i in (0, 2)])
    )
    held = OffsetMap(1 << 12, 0.9, 10)
    held.latest = 100
    need = compacted(data, held, [policy])[0]
    assert compacted(data, held, [policy], need)[0] == need
    for room in range(need):
        assert NAMES[compacted(data, held, [policy], room)[0]] == "SEG_E_ROOM"


@pytest.mark.parametrize("field", ["key_at", "value_at", "headers_at"])
@pytest.mark.parametrize("at", [-1, 10**6, 2**62])
def test_columns_that_point_outside(field: str, at: int) -> None:
    data = encode_batch(Batch(0, 0, 0, 1, 1, 1, records=[Record(i, 1, b"k", b"v", []) for i in (0, 1)]))
    headers, _ = scan(data)
    records = decode(data, headers, "test")
    c = columns(records)
    rows = int64s([at, at])
    setattr(c, field, rows)
    out, out_batches, made = exact(bytes(500)), np.empty(1, headers.dtype), ffi.new("uint8_t[]", 1)
    done = lib.seg_compact(
        exact(data), len(data), 0, exact(records.arena), len(records.arena),
        ffi.from_buffer("seg_batch *", headers), bytes([lib.SEG_SPENT_MARKER | lib.SEG_ALL_RECORDS]),
        bytes(1), 1, c, ffi.new("seg_cleaning *"), ffi.new("uint8_t[]", 2), out, 500,
        ffi.from_buffer("seg_batch *", out_batches), made,
    )  # fmt: skip
    assert NAMES[done] == "SEG_E_COLUMN"
