"""What is done with a topic as a table, and with a Parquet file of the same records, by the same engines.

On disk: a store and a Parquet file in a directory that goes with the run. Threads: those of the engines.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import crc32c
import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq

import segstore

TOPIC, FIRST_MS, EVERY_MS = "t", 1_704_067_200_000, 1
SEED, AT_ONCE, ROW_GROUP = 20130101, 100_000, 1 << 20
DUCKDB, POLARS, BARE, ITSELF = "DuckDB", "polars", "read and CRC", "store.scan"
SEGSTORE, DIRECTORY, PARQUET = "an open store", "a directory", "Parquet"
MS, MB, PEAK = "ms", "MB/s", "peak MB"

COUNT, OFFSETS, TIMES, VALUES = "count(*)", "sum of offsets", "sum of timestamps", "sum of value sizes"
RANGE, RECENT = "10,000 offsets", "the last 10 s"
WORKS = (COUNT, OFFSETS, TIMES, VALUES, RANGE, RECENT)


class Case(NamedTuple):
    """A work, the engine that does it, and what it reads."""

    work: str
    engine: str
    source: str = SEGSTORE


class Data(NamedTuple):
    """A store with one topic of one partition, its directory, and a Parquet file with the same columns."""

    store: segstore.Store
    path: str
    parquet: str
    records: int

    def place(self, case: Case) -> segstore.Store | str:
        """Return what a case reads the topic of: an open store, or one that each read opens."""
        return self.path if case.source == DIRECTORY else self.store


@contextmanager
def made(directory: Path, records: int, value_bytes: int) -> Iterator[Data]:
    """Make both, and keep the store open to read. Values are random bytes, which no codec makes smaller."""
    random = np.random.default_rng(SEED)
    path, parquet = str(directory / "store"), str(directory / "t.parquet")
    with segstore.open(path) as store:
        store.create_topic(TOPIC)
        log = store.partition(TOPIC)
        for at in range(0, records, AT_ONCE):
            n = min(AT_ONCE, records - at)
            values = random.integers(0, 256, (n, value_bytes), np.uint8)
            log.append_batch(values, timestamps=FIRST_MS + EVERY_MS * np.arange(at, at + n))
        batches = store.scan(TOPIC, columns=["partition", "offset", "timestamp", "key", "value"])
        with pq.ParquetWriter(parquet, batches.schema) as writer:
            for batch in batches.batches():
                writer.write_batch(batch, ROW_GROUP)
    with segstore.open(path, mode="r") as store:
        yield Data(store, path, parquet, records)


# --- works -----------------------------------------------------------------------------------------


def in_duckdb(case: Case, data: Data) -> int:
    """Return the answer of a query."""
    first, since = _middle(data), _recent(data)
    sql = {
        COUNT: "select count(*) from t",
        OFFSETS: 'select sum("offset") from t',
        TIMES: 'select sum(epoch_ms("timestamp") - 1704067200000) from t',
        VALUES: 'select sum(octet_length("value")) from t',
        RANGE: f'select sum(octet_length("value")) from t where "offset" >= {first}'
        f' and "offset" < {first + 10_000}',
        RECENT: f'select sum(octet_length("value")) from t where "timestamp" >= to_timestamp({since / 1000})',
    }[case.work]
    with duckdb.connect() as connection:
        if case.source != PARQUET:
            segstore.duckdb.attach(connection, data.place(case), topics=[TOPIC])
        else:
            connection.sql(f"create view t as select * from read_parquet('{data.parquet}')")
        row = connection.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


def in_polars(case: Case, data: Data) -> int:
    """Return the answer of a query."""
    frame = (
        pl.scan_parquet(data.parquet)
        if case.source == PARQUET
        else segstore.scan_polars(data.place(case), TOPIC)
    )
    first = _middle(data)
    offset, size = pl.col("offset"), pl.col("value").bin.size().cast(pl.Int64).sum()
    since = pl.lit(_recent(data)).cast(pl.Datetime("ms", "UTC"))
    asked = {
        COUNT: lambda: frame.select(pl.len()),
        OFFSETS: lambda: frame.select(offset.sum()),
        TIMES: lambda: frame.select((pl.col("timestamp").dt.epoch("ms") - FIRST_MS).sum()),
        VALUES: lambda: frame.select(size),
        RANGE: lambda: frame.filter(offset >= first, offset < first + 10_000).select(size),
        RECENT: lambda: frame.filter(pl.col("timestamp") >= since).select(size),
    }[case.work]()
    return int(asked.collect(engine="streaming").item())


def by_itself(case: Case, data: Data) -> int:
    """Return what the scan's own batches say, without an engine."""
    columns = {COUNT: [], OFFSETS: ["offset"], TIMES: ["offset", "timestamp"], VALUES: ["offset", "value"]}
    scan = data.store.scan(TOPIC, columns=columns[case.work])
    return sum(batch.num_rows for batch in scan.batches())


def bare(data: Data) -> int:
    """Read all segments, and compute the CRC of what was read; return how many bytes that were."""
    size, buffer = 0, bytearray(1 << 20)
    for path in sorted(Path(data.path, f"{TOPIC}-0").glob("*.log")):
        with open(path, "rb", buffering=0) as file:
            while n := file.readinto(buffer):
                crc32c.crc32c(memoryview(buffer)[:n])
                size += n
    return size


def peak(case: Case, data: Data) -> float:
    """Return the MB that a process of its own has held at most while it did a work."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from benchmarks import table_works as w\n"
        "with w.segstore.open(sys.argv[5], mode='r') as store:\n"
        "    data = w.Data(store, sys.argv[5], sys.argv[6], int(sys.argv[7]))\n"
        "    w.WAYS[sys.argv[3]](w.Case(*sys.argv[2:5]), data)\n"
        "text = open('/proc/self/status').read()\n"
        "print(text.split('VmHWM:')[1].split()[0])"
    )
    given = [os.fspath(Path(__file__).parents[1]), *case, data.path, data.parquet, str(data.records)]
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=True)
    return int(done.stdout) * 1024 / 1e6


WAYS: dict[str, Callable[[Case, Data], int]] = {
    DUCKDB: in_duckdb,
    POLARS: in_polars,
    ITSELF: by_itself,
    BARE: lambda case, data: bare(data),
}


def _middle(data: Data) -> int:
    return data.records // 2


def _recent(data: Data) -> int:
    return FIRST_MS + EVERY_MS * (data.records - min(10_000, data.records))


def run(case: Case, data: Data) -> dict[str, float]:
    """Do a work, and return its time. RuntimeError if the answer is not right."""
    began = time.perf_counter()
    found = WAYS[case.engine](case, data)
    took = time.perf_counter() - began
    if case.engine in (DUCKDB, POLARS) and found != answers(data)[case.work]:
        raise RuntimeError(f"{case}: {found} is not {answers(data)[case.work]}")
    if case.engine == ITSELF and found != data.records:
        raise RuntimeError(f"{case}: {found} rows of {data.records}")
    return {MS: took * 1000}


def answers(data: Data) -> dict[str, int]:
    """Return what each work must say."""
    n, size = data.records, pq.ParquetFile(data.parquet).metadata.num_rows
    assert n == size
    value = _value_bytes(data)
    total = n * (n - 1) // 2
    some = min(10_000, n - _middle(data)) * value
    recent = min(10_000, n) * value
    return {COUNT: n, OFFSETS: total, TIMES: total * EVERY_MS, VALUES: n * value, RANGE: some, RECENT: recent}


def _value_bytes(data: Data) -> int:
    batch = next(pq.ParquetFile(data.parquet).iter_batches(1, columns=["value"]))
    return len(batch["value"][0].as_py())


def cases() -> Iterator[Case]:
    """Yield all that are measured."""
    for work in WORKS:
        for engine in (DUCKDB, POLARS):
            yield from (Case(work, engine, source) for source in (SEGSTORE, DIRECTORY, PARQUET))
    yield from (Case(work, ITSELF) for work in (COUNT, OFFSETS, TIMES, VALUES))
    yield Case("all bytes", BARE)
