"""`PartitionLog.transfer`: every method and sink gives the same bytes, in whole batches, and the right next
offset.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from transfers import AVAILABLE, PAIRS, fill, open_descriptors, served, sink_of, stored, transfer

import segstore
from segstore.records import scan

TOTAL, MOST = 400_000, 120_000


@pytest.fixture
def log(store_dir: Path, rng: random.Random) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 100_000})
        log = store.partition("t", 0)
        fill(log, rng, TOTAL)
        yield log


@pytest.mark.parametrize(("kind", "method"), PAIRS)
def test_random_ranges_are_the_stored_bytes(
    log: segstore.PartitionLog, kind: str, method: str, tmp_path: Path, rng: random.Random
) -> None:
    """Each begins with the batch that holds its offset, has whole batches only, and as many as fit."""
    all_bytes, begin = stored(log), {}
    batches, _ = scan(all_bytes)
    for at, size, base, last in zip(*(batches[f].tolist() for f in FIELDS), strict=True):
        begin.update(dict.fromkeys(range(base, last + 1), (at, size)))
    expected = b""
    with sink_of(kind, tmp_path) as sink:
        sink.start()
        for _ in range(6):
            offset, most = rng.randrange(log.end_offset), rng.choice([1, 5000, rng.randrange(MOST), MOST * 9])
            sent, after = transfer(log, sink, offset, most, method)
            at, size = begin[offset]
            stop = begin[after][0] if after < log.end_offset else len(all_bytes)
            assert sent == stop - at
            assert sent == size or sent <= most
            assert after == log.end_offset or sent + begin[after][1] > most
            expected += all_bytes[at:stop]
        got = sink.close()
    assert got == expected


FIELDS = ("position", "size", "base_offset", "last_offset")


@pytest.mark.parametrize("method", served("unix"))
def test_transfers_lead_from_the_start_to_the_end(
    log: segstore.PartitionLog, method: str, tmp_path: Path
) -> None:
    with sink_of("unix", tmp_path) as sink:
        sink.start()
        offset = sent = 0
        while offset < log.end_offset:
            n, after = log.transfer(sink, offset, 20_000, method)
            assert n > 0
            assert after > offset
            offset, sent = after, sent + n
        got = sink.close()
    assert got == stored(log)
    assert sent == len(got)


@pytest.mark.parametrize("method", AVAILABLE)
def test_at_the_end_nothing_goes(log: segstore.PartitionLog, method: str, tmp_path: Path) -> None:
    with sink_of("file", tmp_path) as sink:
        assert log.transfer(sink, log.end_offset, 1000, method) == (0, log.end_offset)
        assert sink.close() == b""


@pytest.mark.parametrize("method", served("file"))
def test_a_file_is_written_where_it_stands(log: segstore.PartitionLog, method: str, tmp_path: Path) -> None:
    with open(tmp_path / "sink", "w+b", buffering=0) as sink:
        sink.write(b"head")
        sent, _ = log.transfer(sink, 0, 50_000, method)
        assert sink.tell() == 4 + sent
        sink.write(b"tail")
        sink.seek(0)
        assert sink.read() == b"head" + stored(log)[:sent] + b"tail"


def test_one_batch_goes_however_small_the_limit(log: segstore.PartitionLog, tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as sink:
        sent, after = log.transfer(sink, 5, 0)
    batches, _ = scan((tmp_path / "out").read_bytes())
    assert len(batches) == 1
    assert sent == batches["size"][0]
    assert after == batches["last_offset"][0] + 1


@pytest.mark.parametrize(("kind", "method"), PAIRS)
def test_nothing_stays_open(log: segstore.PartitionLog, kind: str, method: str, tmp_path: Path) -> None:
    with sink_of(kind, tmp_path) as sink:
        sink.start()
        transfer(log, sink, 0, 150_000, method)
        before = open_descriptors()
        transfer(log, sink, 0, 150_000, method)
        assert open_descriptors() == before
        os.fstat(sink.fd)  # the caller's stays open
        sink.close()
