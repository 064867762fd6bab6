"""Apache Kafka's own dump tool on what segstore writes: every codec, in every shape of record and log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import kafka_tools
import pytest

import segstore

pytestmark = [
    pytest.mark.judge("kafka.tools.DumpLogSegments"),
    pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("Kafka's tools"),
]

CODECS = {"uncompressed": "none", "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd"}
START = 1_357_016_400_000  # ms: 2013-01-01 05:00 UTC


@dataclass
class Written:
    """What went into one topic; the lists have one element per record."""

    values: list[bytes | None]
    keys: list[bytes | None]
    timestamps: list[int]
    headers: list[list[tuple[str, bytes | None]]]
    config: dict[str, str | int] = field(default_factory=dict)
    one_by_one: bool = False


def plain(rng: random.Random, n: int = 400) -> Written:
    """Values that compress to about half, so that batches and segments differ in size."""
    values: list[bytes | None] = [rng.randbytes(rng.randrange(1, 150)).hex().encode() for _ in range(n)]
    stamps = [START + i * 1000 for i in range(n)]
    return Written(values, [None] * n, stamps, [[] for _ in range(n)])


def rolling(rng: random.Random) -> Written:
    written = plain(rng, 1500)
    written.config = {"segment.bytes": 32768, "index.interval.bytes": 1024}
    return written


def keyed(rng: random.Random) -> Written:
    written = plain(rng)
    written.keys = [b"k%d" % rng.randrange(50) for _ in written.values]
    return written


def nulls_and_empties(rng: random.Random) -> Written:
    written = plain(rng)
    written.keys = [rng.choice([None, b"", b"k"]) for _ in written.values]
    written.values = [rng.choice([None, b"", value]) for value in written.values]
    return written


def with_headers(rng: random.Random) -> Written:
    written = plain(rng)
    some = [("h1", b"x"), ("h1", b"y"), ("h2", None), ("name", b""), ("\u043a\u043b\u044e\u0447", b"z")]
    written.headers = [rng.sample(some, rng.randrange(len(some))) for _ in written.values]
    return written


def any_stamps(rng: random.Random) -> Written:
    """Stamps that fall, repeat and rise: the time index has an entry only where the largest rises."""
    written = plain(rng, 1500)
    written.timestamps = [START + rng.randrange(-50_000, 50_000) for _ in written.values]
    written.config = {"index.interval.bytes": 512, "segment.bytes": 65536}
    return written


def append_time(rng: random.Random) -> Written:
    written = plain(rng)
    written.config = {"message.timestamp.type": "LogAppendTime"}
    return written


def one_by_one(rng: random.Random) -> Written:
    written = keyed(rng)
    written.config = {"index.interval.bytes": 512, "segment.bytes": 8192}
    written.one_by_one = True
    return written


def large(rng: random.Random) -> Written:
    written = plain(rng, 20)
    written.values[7] = rng.randbytes(400_000).hex().encode()
    return written


SHAPES: dict[str, Callable[[random.Random], Written]] = {
    "plain": plain,
    "rolling": rolling,
    "keyed": keyed,
    "nulls-and-empties": nulls_and_empties,
    "headers": with_headers,
    "any-stamps": any_stamps,
    "append-time": append_time,
    "one-by-one": one_by_one,
    "large": large,
}
CASES = [(shape, codec) for shape in SHAPES for codec in CODECS]


@dataclass
class Judged:
    root: Path
    written: dict[str, Written]
    open: kafka_tools.Dump  # the logs alone, while the store was open
    closed: kafka_tools.Dump


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Judged]:
    """One store with a topic for every case: two starts of Java for all of them."""
    if why := kafka_tools.why_not():
        pytest.skip(why)
    root = tmp_path_factory.mktemp("judged") / "store"
    rng = random.Random(f"{seed} judged")
    written = {}
    with segstore.open(root) as store:
        for shape, codec in CASES:
            topic = f"{shape}-{codec}"
            written[topic] = SHAPES[shape](rng)
            write(store, topic, written[topic], codec)
        open_dump = kafka_tools.dump_log(sorted(root.glob("*-0/*.log")))
    closed = kafka_tools.judge(*sorted(root.glob("*-0")), contents=True)
    yield Judged(root, written, open_dump, closed)
    assert list(segstore.check(root)) == []


def write(store: segstore.Store, topic: str, written: Written, codec: str) -> None:
    store.create_topic(topic, partitions=1, config={"compression.type": codec, **written.config})
    log = store.partition(topic, 0)
    columns = (written.values, written.keys, written.timestamps, written.headers)
    if written.one_by_one:
        for value, key, stamp, headers in zip(*columns, strict=True):
            log.append(value, key=key, timestamp=stamp, headers=headers)
        return
    for at in range(0, len(written.values), 250):
        values, keys, stamps, headers = (column[at : at + 250] for column in columns)
        log.append_batch(values, keys=keys, timestamps=stamps, headers=headers, batch_bytes=4096)


def ids(case: tuple[str, str]) -> str:
    return "-".join(case)


def test_kafka_finds_no_fault(judged: Judged) -> None:
    assert judged.closed.errors == []
    assert judged.closed.gaps == []


def test_kafka_finds_no_fault_in_logs_of_an_open_store(judged: Judged) -> None:
    assert judged.open.errors == []
    for topic in judged.written:
        partition = judged.root / f"{topic}-0"
        assert judged.open.batches(partition) == judged.closed.batches(partition)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_kafka_reads_what_was_written(case: tuple[str, str], judged: Judged) -> None:
    topic = "-".join(case)
    written, shown = judged.written[topic], judged.closed.records(judged.root / f"{topic}-0")
    assert [record["offset"] for record in shown] == list(range(len(written.values)))
    assert [record["keySize"] for record in shown] == [size(key) for key in written.keys]
    assert [record["valueSize"] for record in shown] == [size(value) for value in written.values]
    # The tool prints neither what is null nor, for keys, tells it from what is empty: the sizes do.
    assert [record["key"] or "" for record in shown] == [(key or b"").decode() for key in written.keys]
    assert [record["payload"] or "" for record in shown] == [
        (value or b"").decode() for value in written.values
    ]
    assert [record["headerKeys"] for record in shown] == [[name for name, _ in h] for h in written.headers]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_kafka_reads_the_stamps(case: tuple[str, str], judged: Judged) -> None:
    topic = "-".join(case)
    written, partition = judged.written[topic], judged.root / f"{topic}-0"
    shown = [record["timestamp"] for record in judged.closed.records(partition)]
    kinds = {batch["timestampType"] for batch in judged.closed.batches(partition)}
    if case[0] == "append-time":
        assert kinds == {"LogAppendTime"}
        assert min(shown) > START + 10**9
    else:
        assert kinds == {"CreateTime"}
        assert shown == written.timestamps


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_batches_are_compressed_and_in_place(case: tuple[str, str], judged: Judged) -> None:
    partition = judged.root / f"{'-'.join(case)}-0"
    batches = judged.closed.batches(partition)
    assert {batch["codec"] for batch in batches} == {CODECS[case[1]]}
    assert {batch["magic"] for batch in batches} == {2}
    assert len(batches) > 1
    for path in partition.glob("*.log"):
        assert sum(batch["size"] for batch in judged.closed.files[path].batches) == path.stat().st_size


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_indexes_are_sane(case: tuple[str, str], judged: Judged) -> None:
    """What a broker checks at its start; and where a log has much more than index.interval.bytes, entries."""
    partition = judged.root / f"{'-'.join(case)}-0"
    indexes = judged.closed.indexes(partition)
    logs = sorted(path.stem for path in partition.glob("*.log"))
    assert sorted(indexes) == sorted(
        f"{stem}{suffix}" for stem in logs for suffix in (".index", ".timeindex")
    )
    assert all(file.sane or file.empty for file in indexes.values())
    if case[0] in ("rolling", "any-stamps", "one-by-one"):
        assert len(logs) > 1
        for stem in logs[:-1]:
            entries = judged.closed.files[partition / f"{stem}.index"].index
            assert len(entries) > 3
            stamps = [e["timestamp"] for e in judged.closed.files[partition / f"{stem}.timeindex"].time_index]
            assert stamps
            assert all(a < b for a, b in pairwise(stamps))


def size(data: bytes | None) -> int:
    return -1 if data is None else len(data)
