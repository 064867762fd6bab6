"""`read` with `times`: the records of a span, and no batch is decoded that holds none of them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import GOLDEN

import segstore
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.records import CODECS
from segstore.storage.log import read

CLEAN = sorted((GOLDEN / "clean").iterdir())
LEAST, MOST = -(1 << 63), (1 << 63) - 1


def found(log: segstore.PartitionLog, max_bytes: int, **how: Any) -> Iterator[tuple[Any, ...]]:
    end = log.last_stable_offset if how.get("isolation_level") else log.end_offset
    at = log.start_offset
    while at < end:
        records = log.read(at, max_bytes, **how)
        assert records.next_offset > at
        at = records.next_offset
        kinds = records.timestamp_types.tolist()
        yield from ((*record, kind) for record, kind in zip(records, kinds, strict=True))


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("level", [None, "read_committed"])
@pytest.mark.parametrize("partition", CLEAN, ids=lambda path: path.name)
def test_what_a_broker_wrote(partition: Path, level: str | None, tmp_path: Path, rng: random.Random) -> None:
    shutil.copytree(partition, tmp_path / partition.name)
    how = {} if level is None else {"isolation_level": level}
    topic, _, number = partition.name.rpartition("-")
    with segstore.open(tmp_path, "r") as store:
        log = store.partition(topic, int(number))
        everything = list(found(log, 1 << 20, **how))
        stamps = sorted({row[1] for row in everything}) or [0]
        spans = [sorted((rng.choice(stamps), rng.choice(stamps))) for _ in range(8)]
        for first, last in [*spans, (LEAST, MOST), (stamps[-1] + 1, MOST), (LEAST, stamps[0] - 1)]:
            want = [row for row in everything if first <= row[1] <= last]
            for max_bytes in (1, 700, 1 << 20):
                assert list(found(log, max_bytes, times=(first, last), **how)) == want, (first, last)


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("codec", CODECS)
def test_stamps_in_any_order(codec: str, kind: str, store_dir: Path, rng: random.Random) -> None:
    settings = {"compression.type": codec, "message.timestamp.type": kind, "segment.bytes": 20_000}
    with segstore.open(store_dir) as store:
        store.create_topic("t", config=settings)
        log = store.partition("t")
        for i in range(60):
            n = rng.randrange(1, 40)
            stamps = [rng.randrange(10_000) for _ in range(n)]
            log.append_batch(
                [rng.randbytes(rng.randrange(90)) for _ in stamps], timestamps=stamps, keys=[b"%d" % i] * n
            )
        everything = list(found(log, 1 << 20))
        stamps = sorted(row[1] for row in everything)
        for _ in range(20):
            first, last = sorted(rng.choices(stamps, k=2))
            want = [row for row in everything if first <= row[1] <= last]
            assert list(found(log, rng.choice([1, 5000, 1 << 20]), times=(first, last))) == want


SPANS = {
    "in the first batch": ((0, 0), ["none", "none"], [0]),
    "in the second": ((109, 110), ["none", "none"], [1]),
    "between two": ((50, 60), ["none", "none"], []),
    "behind all": ((200, MOST), ["none", "none"], []),
    "compressed, too early": ((200, MOST), ["zstd", "zstd"], []),
    "compressed, too late for its header to tell": ((50, 60), ["zstd", "zstd"], [1]),
}


@pytest.mark.parametrize("case", SPANS)
def test_which_batches_are_decoded(case: str, store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, codecs, want = SPANS[case]
    decoded: list[int] = []

    def counted(data: bytes, batches: Any, *args: Any, **kwargs: Any) -> segstore.Records:
        decoded.extend(batches["base_offset"].tolist())
        return decode(data, batches, *args, **kwargs)

    decode = read.decode
    monkeypatch.setattr(read, "decode", counted)
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        for i, codec in enumerate(codecs):
            log.append_batch([b"v"] * 11, timestamps=list(range(100 * i, 100 * i + 11)), compression=codec)
        records = log.read(0, times=times)
    assert decoded == [11 * i for i in want]
    assert records.next_offset == 22
    assert records.timestamps.tolist() == [
        t for t in (*range(11), *range(100, 111)) if times[0] <= t <= times[1]
    ]


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "one": ((1,), InvalidTypeError, r"times=\(1,\): must be a pair"),
    "a number": (1, InvalidTypeError, "times=1: must be a pair"),
    "words": (("a", "b"), InvalidTypeError, r"times\[0\] must be an int, not str"),
    "beyond int64": ((0, 1 << 63), InvalidArgumentError, r"times\[1\]=9223372036854775808: must be at least"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_spans(case: str, store_dir: Path) -> None:
    times, kind, said = BAD[case]
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        with pytest.raises(kind, match=said):
            store.partition("t").read(0, times=times)


def test_the_largest_timestamp(store_dir: Path, rng: random.Random) -> None:
    """And the first offset that has it, wherever the log starts and its segments end."""
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 600, "message.timestamp.type": "CreateTime"})
        log = store.partition("t")
        assert log.max_timestamp() is None
        stamps: list[int] = []
        for _ in range(30):
            stamps += (some := [rng.randrange(40) for _ in range(rng.randrange(1, 6))])
            log.append_batch([b"x" * 50] * len(some), timestamps=some)
        assert len(log.view.segments) > 5
        start = 0
        while start < len(stamps):
            largest = max(stamps[start:])
            assert log.max_timestamp() == (largest, stamps.index(largest, start)), start
            start += rng.randrange(1, 8)
            log.delete_records(min(start, len(stamps)))
        assert log.max_timestamp() is None
