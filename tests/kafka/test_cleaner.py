"""Compaction compared with Kafka's: records that Kafka's cleaner has kept stay, and Kafka's dump tool reads
what segstore's has written.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka_tools
import pytest
from compaction import DAY, Writer, bases, clean, latest, open_compacted, put, records, roll
from partitions import GOLDEN, SHARED, read_expected
from stores import START_MS, Clock

import segstore
from segstore.records import CODECS

pytestmark = pytest.mark.kind("Kafka's tools")

judged = [
    pytest.mark.judge("kafka.tools.DumpLogSegments"),
    pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not())),
    pytest.mark.timeout(900),  # the first call may download
]
ORIGINS = {"golden": GOLDEN, "shared": SHARED}


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("active", [False, True], ids=["", "active too"])
def test_what_the_broker_cleaned_stays(tmp_path: Path, origin: str, active: bool) -> None:
    source = ORIGINS[origin]
    if not source.is_dir():
        pytest.skip("the full set of broker-written partitions is not beside the repository")
    name = "flights-compacted-0"
    shutil.copytree(source / "clean" / name, tmp_path / name)
    expected = read_expected(source / "records" / f"{name}.jsonl.gz")
    with segstore.open(tmp_path) as store:
        store.alter_topic("flights-compacted", {"cleanup.policy": "compact", "file.delete.delay.ms": 0})
        log = store.partition("flights-compacted")
        if active:
            roll(store, "flights-compacted")
        clean(store, "flights-compacted")
        found = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records(log)]
        kept = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in expected]
        if active:
            # What the broker had not come to yet supersedes what it had.
            newest = {r[2]: r for r in kept}
            kept = [r for r in kept if newest[r[2]] is r]
        assert found == kept
    assert segstore.check(tmp_path) == []


# --- the dump tool --------------------------------------------------------------------------------


def codecs(store: segstore.Store, rng: random.Random, clock: Clock) -> None:
    for codec in CODECS:
        for i in range(20):
            keys = [b"k%d" % rng.randrange(40) for _ in range(20)]
            values = [None if rng.random() < 0.2 else rng.randbytes(60).hex().encode() for _ in keys]
            stamps = [START_MS - rng.randrange(1000) for _ in keys]
            headers = [[("h", b"x")] if rng.random() < 0.3 else [] for _ in keys]
            store.partition("t").append_batch(values, keys, stamps, headers, compression=codec)
            clock.now += i


def transactions(store: segstore.Store, rng: random.Random, clock: Clock) -> None:
    first = rng.randrange(10**6)
    writers = [Writer(store.partition("t"), first + i, clock) for i in range(3)]
    for i in range(60):
        some = [(b"k%d" % rng.randrange(20), rng.randbytes(30)) for _ in range(3)]
        rng.choice(writers).transaction(rng.random() < 0.6, *some)
        clock.now += i


def idempotent(store: segstore.Store, rng: random.Random, clock: Clock) -> None:
    first = rng.randrange(10**6)
    writers = [Writer(store.partition("t"), first + i, clock) for i in range(5)]
    for _ in range(60):
        rng.choice(writers).send(*[(b"k%d" % rng.randrange(20), rng.randbytes(30)) for _ in range(3)])


def to_zstd(store: segstore.Store, rng: random.Random, clock: Clock) -> None:
    codecs(store, rng, clock)
    store.alter_topic("t", {"compression.type": "zstd"})


FILLED: dict[str, Callable[..., None]] = {
    "codecs": codecs,
    "transactions": transactions,
    "idempotent": idempotent,
    "to zstd": to_zstd,
}


def compacted(path: Path, fill: Callable[..., None], rng: random.Random) -> list[Any]:
    """A log that was swept three times, a day between: tombstones and markers with horizons, and without."""
    clock = Clock(START_MS)
    sizes = {"segment_bytes": 8000, "index_interval_bytes": 300}
    with open_compacted(path, clock, **sizes) as store:
        for round_ in range(3):
            fill(store, rng, clock)
            put(store.partition("t"), (b"round", b"%d" % round_))
            roll(store)
            before = latest(store.partition("t"), isolation_level="read_committed")
            clean(store)
            assert latest(store.partition("t"), isolation_level="read_committed") == before
            clock.now += DAY * (round_ == 1)
        assert len(bases(store)) > 2
        return [r.offset for r in records(store.partition("t"))]


@pytest.fixture(scope="module")
def judgement(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Any:
    """(the tool's dump of all of them, offsets of the records by name)."""
    offsets, partitions = {}, []
    for name, fill in FILLED.items():
        path = tmp_path_factory.mktemp("judged") / "store"
        offsets[name] = path / "t-0", compacted(path, fill, random.Random(f"{seed} {name}"))
        assert segstore.check(path) == []
        partitions.append(path / "t-0")
    return kafka_tools.judge(*partitions), offsets


class TestJudge:
    pytestmark = judged

    def test_it_finds_nothing_wrong(self, judgement: Any) -> None:
        dump, _ = judgement
        assert dump.errors == []

    @pytest.mark.parametrize("name", FILLED)
    def test_it_reads_the_same_records(self, judgement: Any, name: str) -> None:
        dump, offsets = judgement
        path, expected = offsets[name]
        found = [r["offset"] for r in dump.records(path) if r["endTxnMarker"] is None]
        assert found == expected
        assert all(batch["isvalid"] for batch in dump.batches(path))
        checked = dump.indexes(path).values()
        assert all(index.sane or index.empty for index in checked)

    def test_it_reads_the_delete_horizons(self, judgement: Any) -> None:
        dump, offsets = judgement
        path, _ = offsets["codecs"]
        horizons = {batch["deleteHorizonMs"] for batch in dump.batches(path)} - {None}
        assert horizons
        assert all(horizon >= START_MS + DAY for horizon in horizons)

    def test_it_reads_aborted_transactions(self, judgement: Any) -> None:
        dump, offsets = judgement
        path, _ = offsets["transactions"]
        assert [b for b in dump.batches(path) if b["isControl"]]
        assert any(f.aborted for p, f in dump.files.items() if p.parent == path)
