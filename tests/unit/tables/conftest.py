"""A store with a topic, and what tables read of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from table_reads import RECORDS, Read

import segstore
from segstore.storage.scans.bounds import ALL, Bounds
from segstore.tables.table import Table

if TYPE_CHECKING:
    from segstore.storage.scans.topic_scan import Finish


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """What tables are asked for, from now on."""
    found: list[Read] = []
    batches = Table.batches

    def counted(
        self: Table,
        columns: Sequence[str] | None = None,
        bounds: Bounds = ALL,
        finish: Finish | None = None,
    ) -> Iterator[pa.RecordBatch]:
        read = Read(list(self.schema.names if columns is None else columns), bounds, [], [])
        found.append(read)
        try:
            for batch in batches(self, columns, bounds, finish):
                read.rows.append(batch.num_rows)
                yield batch
        finally:
            read.ended.append(True)

    monkeypatch.setattr(Table, "batches", counted)
    return found


@pytest.fixture
def place(store_dir: Path) -> Path:
    """A store's directory with a topic of three partitions; every third record has no key."""
    with segstore.open(store_dir) as store:
        store.create_topic("flights", partitions=3)
        for partition in range(3):
            log = store.partition("flights", partition)
            for first in range(0, RECORDS, 6):
                numbers = range(first, first + 6)
                log.append_batch(
                    [b"v%d-%d" % (partition, each) for each in numbers],
                    [b"k%d" % each if each % 3 else None for each in numbers],
                    [1_000 * each + partition for each in numbers],
                    [[("n", b"%d" % each)] for each in numbers],
                )
    return store_dir


@pytest.fixture
def large(store_dir: Path) -> Path:
    """A store's directory with a topic of one partition, whose 40 MB are read in several turns."""
    with segstore.open(store_dir) as store:
        store.create_topic("large")
        for _ in range(400):
            store.partition("large", 0).append_batch([bytes(1000)] * 100)
    return store_dir


@pytest.fixture
def damaged(large: Path, tmp_path: Path) -> Path:
    """A copy of that store, in which a byte of the batch at offset 2000 is wrong."""
    copytree(large, tmp_path / "damaged")
    (log,) = (tmp_path / "damaged").glob("large-0/*.log")
    content = bytearray(log.read_bytes())
    content[len(content) // 2 + 500] ^= 1
    log.write_bytes(content)
    return tmp_path / "damaged"
