"""`read_committed` where the index of aborted transactions, or a marker in the log, is not what it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from places import GOLDEN
from stores import raw_batches, write_segment

import segstore
from segstore.index import txn_index
from segstore.records import CONTROL_FLAG, scan

FLIGHTS = GOLDEN / "clean/flights-txn-0"


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FLIGHTS, tmp_path / "flights-txn-0"))


def committed(partition: Path) -> list[int]:
    with segstore.open(partition.parent, "r") as store:
        log = store.partition("flights-txn")
        at, found = log.start_offset, []
        while at < log.last_stable_offset:
            records = log.read(at, isolation_level="read_committed")
            found += records.offsets.tolist()
            at = records.next_offset
    return found


def index_of(partition: Path) -> Path:
    return next(partition.glob("*.txnindex"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def last_entry_gone(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -txn_index.ENTRY_SIZE])


def another_producers(path: Path) -> None:
    entries = txn_index.parse(path.read_bytes()).copy()
    entries["producer_id"] += 1000
    path.write_bytes(entries.tobytes())


def all_aborted(path: Path) -> None:
    (first, *_) = txn_index.parse(path.read_bytes())
    made = [
        txn_index.AbortedTxn(producer, 0, last, last + 1)
        for last, producer in enumerate(range(20), int(first["last_offset"]))
    ]
    path.write_bytes(txn_index.format_entries(made))


@pytest.mark.parametrize("edit", [empty, last_entry_gone, another_producers, all_aborted, Path.unlink])
def test_an_index_of_aborted_transactions_is_no_evidence(
    partition: Path, edit: Callable[[Path], None]
) -> None:
    before = committed(partition)
    assert len(before) == 100
    edit(index_of(partition))
    assert committed(partition) == before


def markers(log: Path) -> list[tuple[int, int]]:
    """Offset and position of each transaction marker."""
    batches = scan(log.read_bytes())[0]
    control = batches[batches["attributes"] & CONTROL_FLAG != 0]
    return list(zip(control["base_offset"].tolist(), control["position"].tolist(), strict=True))


@pytest.mark.parametrize("byte", [61 + 6, 61 + 8], ids=["its version", "its type"])
def test_a_damaged_marker_is_told_of_its_transaction_alone(partition: Path, byte: int) -> None:
    log = next(partition.glob("*.log"))
    end = int(scan(log.read_bytes())[0]["last_offset"][-1]) + 1
    # In an active segment of a broker's the log would end in front of the damage.
    write_segment(partition, end, raw_batches(range(end, end + 5)))
    before = committed(partition)
    offset, position = markers(log)[0]
    data = bytearray(log.read_bytes())
    data[position + byte] ^= 0x7F
    log.write_bytes(data)
    for _ in range(2):  # and the same each time
        with segstore.open(partition.parent, "r") as store:
            reader = store.partition("flights-txn")
            told, found, at = [], [], 0
            while at < reader.last_stable_offset:
                before_it = at
                try:
                    records = reader.read(at, isolation_level="read_committed")
                    found += records.offsets.tolist()
                    at = records.next_offset
                except segstore.CorruptRecordError as error:
                    told.append(error.offset)
                    at = error.next_offset or 0
                assert at > before_it
        assert told
        assert all(o <= offset for o in told)
        assert set(found) <= set(before)
        assert [o for o in found if o > offset] == [o for o in before if o > offset]


def test_the_last_stable_offset_of_a_log_without_its_file_is_an_error_of_the_package(
    store_dir: Path,
) -> None:
    """A power cut within `add_partitions` may leave names of indexes and none of the log."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
    (store_dir / ".segstore" / "ends").unlink()
    (store_dir / ".kafka_cleanshutdown").unlink()
    (store_dir / "t-0" / f"{0:020d}.log").unlink()
    with segstore.open(store_dir, mode="r") as reader, pytest.raises(segstore.StoreClosedError):
        _ = reader.partition("t").last_stable_offset
    segstore.open(store_dir).close()
