"""Encoding: chunks, batches, sizes, sequences, and Kafka's judgement of every codec."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import kafka_tools
import numpy as np
import pyarrow as pa
import pytest
from native_batches import assign

from segstore._native import lib
from segstore.errors import InvalidArgumentError, InvalidTypeError, RecordTooLargeError
from segstore.records import (
    APPEND_TIME_FLAG,
    CODECS,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    Columns,
    Encoded,
    Record,
    Records,
    Template,
    check_sizes,
    decode,
    encode,
    scan,
    single,
)
from segstore.records.encoded import pool

pytestmark = pytest.mark.kind("Kafka's tools")

KIB = 1024
CODEC = pytest.mark.parametrize("codec", range(5), ids=CODECS)


def written(chunks: list[Encoded], start: int = 0, epoch: int = 0) -> bytes:
    """The chunks assigned from `start` on and put one after the other, as a log would."""
    out = b""
    for chunk in chunks:
        start = assign(chunk, start, epoch, position=len(out))
        assert chunk.batches["position"][0] == len(out)
        out += bytes(chunk.data)
        chunk.release()
    return out


def read_back(data: bytes) -> Records:
    batches, end = scan(data)
    assert end.status == lib.SEG_END
    assert end.position == len(data)
    return decode(data, batches, "test.log")


def some_records(rng: random.Random, n: int, largest: int = 300) -> dict[str, Any]:
    def some() -> bytes | None:
        return rng.choice((None, b"", rng.randbytes(rng.randrange(largest)), b"again" * rng.randrange(9)))

    return {
        "values": [some() for _ in range(n)],
        "keys": [some() for _ in range(n)],
        "timestamps": [rng.choice((-1, 0, 1357034400000 + rng.randrange(10**9), 2**62)) for _ in range(n)],
        "headers": [[("ö" * rng.randrange(3), some()) for _ in range(rng.randrange(3))] for _ in range(n)],
    }


def as_records(given: dict[str, Any], start: int = 0) -> list[Record]:
    rows = zip(given["timestamps"], given["keys"], given["values"], given["headers"], strict=True)
    return [Record(start + i, *row) for i, row in enumerate(rows)]


@CODEC
def test_what_is_encoded_is_read_back(codec: int, rng: random.Random) -> None:
    given = some_records(rng, 3000)
    for batch_bytes, chunk_bytes in (
        (1, KIB),
        (200, 700),
        (4 * KIB, 64 * KIB),
        (64 * KIB, 1 << 20),
        (1 << 30, 1),
    ):
        chunks = list(encode(Columns(**given), codec, None, batch_bytes, chunk_bytes=chunk_bytes))
        data = written(chunks, 1 << 40, epoch=7)
        records = read_back(data)
        assert list(records) == as_records(given, 1 << 40)
        assert records.next_offset == (1 << 40) + 3000
        assert set(records.leader_epochs.tolist()) == {7}
        assert sum(chunk.records for chunk in chunks) == 3000


@pytest.mark.parametrize("batch_bytes", [100, 1000, 65536])
def test_batches_are_as_full_as_they_may_be(batch_bytes: int) -> None:
    (chunk,) = encode(Columns([b"x" * 10] * 3000), 0, None, batch_bytes)
    sizes = chunk.batches["size"].tolist()
    assert max(sizes) <= batch_bytes
    # Another record of at most 20 bytes would not have fitted.
    assert all(size > batch_bytes - 20 for size in sizes[:-1])


CUTS = {
    "none": ((), 300, [5, 5]),
    "two": ((4, 7), 300, [4, 3, 3]),
    "before the first record": ((0, 5), 300, [5, 5]),
    "behind the last record": ((5, 10, 20), 300, [5, 5]),
    "each record": (range(1, 10), 300, [1] * 10),
    "the limit too": ((2,), 200, [2, 3, 3, 2]),
}


@pytest.mark.parametrize(("cuts", "batch_bytes", "counts"), CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("chunk_bytes", [400, 1 << 20])
def test_batches_end_at_cuts(cuts: Any, batch_bytes: int, counts: list[int], chunk_bytes: int) -> None:
    template = Template(producer_id=1, producer_epoch=0, base_sequence=0)
    columns = Columns([b"x" * 38] * 10, timestamp=0)
    chunks = list(encode(columns, 0, None, batch_bytes, template, chunk_bytes, cuts=cuts))
    batches = np.concatenate([chunk.batches for chunk in chunks])
    assert batches["count"].tolist() == counts
    assert batches["base_sequence"].tolist() == [0, *np.cumsum(counts)[:-1].tolist()]
    assert read_back(written(chunks)).values == [b"x" * 38] * 10


THREE = [b"abc", b"de\0", b"fgh"] * 40
RAGGED = [b"", b"a" * 70, b"b" * 9_000] * 40
KINDS: dict[str, tuple[Any, list[bytes | None]]] = {
    "numpy": (np.frombuffer(b"".join(THREE), np.uint8).reshape(-1, 3), [*THREE]),
    "numpy of no width": (np.empty((120, 0), np.uint8), [b""] * 120),
    "list": (RAGGED, [*RAGGED]),
    "Arrow": (pa.array(RAGGED, pa.binary()), [*RAGGED]),
    "large Arrow": (pa.array(RAGGED, pa.large_binary()), [*RAGGED]),
    "fixed Arrow": (pa.array(THREE, pa.binary(3)), [*THREE]),
    "list with nulls": ([None, *RAGGED[1:]], [None, *RAGGED[1:]]),
    "Arrow with nulls": (pa.array([*RAGGED[1:], None], pa.binary()), [*RAGGED[1:], None]),
    "fixed Arrow with nulls": (pa.array([*THREE[1:], None], pa.binary(3)), [*THREE[1:], None]),
    "nulls": ([None] * 120, [None] * 120),
}


@pytest.mark.parametrize("keys", [None, "list", "fixed Arrow with nulls"])
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_column_gives_the_same_bytes(name: str, keys: str | None) -> None:
    """Without headers and gaps in the offsets columns are encoded by loops compiled for their kind."""
    values, expected = KINDS[name]
    n, stamps = len(expected), np.arange(len(expected)) * 700

    def encoded(headers: Any = None, offsets: Any = None) -> bytes:
        columns = Columns(values, KINDS[keys][0] if keys else None, stamps, headers, offsets=offsets)
        return b"".join(bytes(chunk.data) for chunk in encode(columns, 0, None, 20_000))

    plain = encoded()
    assert plain == encoded(headers=[()] * n) == encoded(offsets=np.arange(n))
    records = decode(plain, scan(plain)[0], "t")
    assert list(records.values) == expected
    assert list(records.keys) == (KINDS[keys][1] if keys else [None] * n)
    assert records.timestamps.tolist() == stamps.tolist()


def test_memory_stays_at_a_chunk() -> None:
    columns = Columns(np.full((50_000, 100), 7, np.uint8))
    seen = set()
    for chunk in encode(columns, 0, None, 16 * KIB, chunk_bytes=128 * KIB):
        assert chunk.size <= 128 * KIB
        seen.add(chunk.buffer.ctypes.data)
        chunk.release()
    assert len(seen) == 1


def test_a_chunk_survives_while_the_next_is_encoded() -> None:
    chunks = encode(Columns([b"%05d" % i * 20 for i in range(60_000)]), 0, None, 64 * KIB)
    first = next(chunks)
    before = bytes(first.data)
    second = next(chunks)
    assert bytes(first.data) == before
    assert first.buffer is not second.buffer
    first.release()
    first.release()
    assert next(chunks).buffer is first.buffer


def test_a_released_buffer_is_handed_out_once() -> None:
    buffer = pool.take(1)
    pool.give(buffer)
    taken: list[int] = []
    threads = [threading.Thread(target=lambda: taken.append(pool.take(1).ctypes.data)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken.count(buffer.ctypes.data) <= 1


@CODEC
def test_a_record_larger_than_a_chunk(codec: int) -> None:
    values = [b"a", bytes(3 << 20), b"b" * 100, None]
    data = written(list(encode(Columns(values), codec, None, 1000, chunk_bytes=64 * KIB)))
    assert list(read_back(data).values) == values


def test_nothing_to_encode() -> None:
    assert list(encode(Columns([]))) == []


def test_sequences_go_on_from_batch_to_batch_and_wrap() -> None:
    template = Template(TRANSACTIONAL_FLAG, producer_id=5, producer_epoch=3, base_sequence=2**31 - 3)
    chunks = list(encode(Columns([b"x"] * 10), 0, None, HEADER_SIZE + 16, template, chunk_bytes=200))
    batches = np.concatenate([chunk.batches for chunk in chunks])
    assert len(chunks) > 2
    assert batches["base_sequence"].tolist() == [2**31 - 3, 2**31 - 1, 1, 3, 5]
    assert set(batches["producer_id"].tolist()) == {5}
    assert set(batches["producer_epoch"].tolist()) == {3}
    assert set(batches["attributes"].tolist()) == {TRANSACTIONAL_FLAG}


def test_offsets_with_gaps_stay() -> None:
    offsets = np.array([5, 6, 9, 1000, 2**40])
    columns = Columns([b"v"] * 5, offsets=offsets)
    data = b"".join(bytes(chunk.data) for chunk in encode(columns, 4, None, 1 << 20))
    assert read_back(data).offsets.tolist() == offsets.tolist()


@CODEC
def test_append_time(codec: int) -> None:
    (chunk,) = encode(Columns([b"a", b"b"], timestamps=[1, 2]), codec)
    assert assign(chunk, 10, 2, append_time=99) == 12
    records = read_back(bytes(chunk.data))
    assert records.timestamps.tolist() == [99, 99]
    assert records.timestamp_types.tolist() == [1, 1]
    assert chunk.batches["attributes"][0] & APPEND_TIME_FLAG


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"value": b""},
        {"value": b"v" * 5000, "key": b""},
        {"value": bytearray(b"v"), "key": memoryview(b"key"), "timestamp": 2**60},
        {"value": None, "key": b"k", "headers": [("a", b"1"), ("b", None)] * 20},
    ],
    ids=["null", "empty", "large", "other buffers", "headers"],
)
@CODEC
def test_single(codec: int, given: dict[str, Any]) -> None:
    given = {"value": None, **given}
    data = written([single(**given, codec=codec)], 77)
    (record,) = read_back(data)
    key, value = (None if given.get(k) is None else bytes(given[k]) for k in ("key", "value"))
    assert record == Record(77, given.get("timestamp", -1), key, value, given.get("headers", []))


@pytest.mark.parametrize("size", [0, 5, 3 * 1024 * KIB])
@CODEC
def test_single_is_byte_for_byte_what_columns_give(codec: int, size: int, rng: random.Random) -> None:
    """Also where bytes that can't be compressed take more room by a codec than without."""
    template, value = Template(producer_id=9, producer_epoch=1, base_sequence=4), rng.randbytes(size)
    one = single(value, b"key", [("h", b"1")], 123, template, codec)
    (many,) = encode(Columns([value], [b"key"], None, [[("h", b"1")]], 123), codec, template=template)
    assert bytes(one.data) == bytes(many.data)
    assert one.batches.tobytes() == many.batches.tobytes()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"value": "text"}, "value is str.*encode it"),
        ({"value": 5}, "value is int"),
        ({"value": b"", "key": "text"}, "key is str"),
        ({"value": b"", "headers": [(b"h", b"")]}, r"headers\[0\] is"),
    ],
    ids=["str", "int", "key", "header"],
)
def test_single_of_a_wrong_type(given: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidTypeError, match=match):
        single(**given)


def test_single_from_many_threads() -> None:
    """The arguments for C are a thread's own."""
    wrong: list[bytes | None] = []

    def run(letter: bytes) -> None:
        for n in range(300):
            (record,) = read_back(bytes(single(letter * n, letter).data))
            if (record.key, record.value) != (letter, letter * n):
                wrong.append(record.value)

    threads = [threading.Thread(target=run, args=(letter,)) for letter in (b"a", b"b", b"c", b"d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@CODEC
def test_sizes_are_checked_exactly(codec: int, rng: random.Random) -> None:
    """At a batch's own size it is allowed, one byte below it is refused, and the index is told."""
    values = [b"x", rng.randbytes(5000), b"y" * 50]
    size = single(values[1], codec=codec).size
    columns = Columns(values)
    check_sizes(columns, codec, None, size)
    with pytest.raises(RecordTooLargeError, match=rf"record 1 makes a batch of {size:,} bytes.*{size - 1:,}"):
        check_sizes(columns, codec, None, size - 1)


def test_size_counts_after_compression() -> None:
    columns = Columns([b"small", bytes(100_000)])
    check_sizes(columns, 4, None, 1000)
    with pytest.raises(RecordTooLargeError, match="record 1"):
        check_sizes(columns, 0, None, 1000)


def test_every_doubtful_record_is_looked_at(rng: random.Random) -> None:
    """The largest compresses well; a smaller one does not."""
    columns = Columns([bytes(50_000), b"", bytes(40_000), rng.randbytes(3000), bytes(30_000)])
    with pytest.raises(RecordTooLargeError, match="record 3"):
        check_sizes(columns, 4, None, 2000)


@CODEC
def test_no_batch_of_several_records_is_above_the_limit(codec: int, rng: random.Random) -> None:
    columns = Columns([rng.randbytes(rng.randrange(100)) for _ in range(2000)])
    for limit in (400, 5000, 70_000):
        check_sizes(columns, codec, None, limit)
        batches = [
            b for chunk in encode(columns, codec, None, 1 << 20, max_bytes=limit) for b in chunk.batches
        ]
        assert max(int(b["size"]) for b in batches) <= limit


@pytest.mark.parametrize("option", ["batch_bytes", "chunk_bytes"])
def test_impossible_options(option: str) -> None:
    with pytest.raises(InvalidArgumentError, match=option):
        next(encode(Columns([b"x"]), **{option: 0}))


@pytest.mark.judge("Kafka's dump tool")
def test_kafka_reads_what_is_written(tmp_path: Path, rng: random.Random) -> None:
    """Each codec, also with levels, records that don't compress, and blocks of more than 64 KiB."""
    if why := kafka_tools.why_not():
        pytest.skip(why)
    levels = {
        "none": [None],
        "gzip": [None, 1, 9],
        "snappy": [None],
        "lz4": [None, 1, 9, 12],
        "zstd": [None, -5, 19],
    }
    given = some_records(rng, 400)
    given["values"] += [rng.randbytes(150_000), b"compressible" * 20_000]
    given["keys"] += [b"k", None]
    given["timestamps"] = [max(ts, 0) for ts in given["timestamps"]] + [5, 6]
    given["headers"] += [[], [("h", b"1")]]
    files = {}
    for i, (name, level) in enumerate((codec, level) for codec in CODECS for level in levels[codec]):
        path = tmp_path / f"{name}-{i}" / f"{0:020d}.log"
        path.parent.mkdir()
        chunks = list(encode(Columns(**given), CODECS.index(name), level, 32 * KIB))
        path.write_bytes(written(chunks))
        files[path] = name
    dump = kafka_tools.dump_log(files)
    assert dump.errors == []
    for path, name in files.items():
        found = dump.files[path]
        assert {batch["codec"] for batch in found.batches} == {name}
        assert all(batch["isvalid"] for batch in found.batches)
        assert [record["offset"] for record in found.records] == list(range(402))
        sizes = [-1 if value is None else len(value) for value in given["values"]]
        assert [record["valueSize"] for record in found.records] == sizes
        assert [record["timestamp"] for record in found.records] == given["timestamps"]
