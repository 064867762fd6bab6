"""Ranges without gaps that scans remember: what is read of them again, and when they hold no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compaction import Writer
from damage import batches, flip
from faults import CountingFiles
from stores import Clock

import segstore
from segstore.storage.scans.dense import recall
from segstore.storage.scans.piece_reader import PieceReader
from segstore.storage.scans.pieces import ScanPiece, TopicRange, pieces_of

pytest.importorskip("pyarrow")

N, EACH = 100, 20


@pytest.fixture
def files() -> CountingFiles:
    return CountingFiles()


@pytest.fixture
def log(tmp_path: Path, files: CountingFiles) -> Iterator[segstore.PartitionLog]:
    """100 batches of 20 records."""
    with segstore.open(tmp_path / "store", files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        for _ in range(N):
            log.append_batch([b"v" * 100] * EACH)
        yield log


def offsets(log: segstore.PartitionLog, **terms: Any) -> list[int]:
    scan = log.store.scan("t", **terms)  # type: ignore[attr-defined]
    return [offset for batch in scan.batches(["offset"]) for offset in batch["offset"].to_pylist()]


@pytest.mark.parametrize("terms", [{}, {"start": 7}, {"end": 1999}, {"start": 511, "end": 512}])
def test_one_header_is_read_again(
    log: segstore.PartitionLog, files: CountingFiles, terms: dict[str, int]
) -> None:
    assert offsets(log) == list(range(N * EACH))
    files.clear()
    assert offsets(log, **terms) == list(range(terms.get("start", 0), terms.get("end", N * EACH)))
    assert files.counts() == {"seek_batch": 1}


def test_what_was_appended_is_read(log: segstore.PartitionLog, files: CountingFiles) -> None:
    offsets(log)
    log.append_batch([b"v" * 100] * EACH)
    files.clear()
    assert offsets(log) == list(range((N + 1) * EACH))
    assert files.count("read_by") == 1


def test_few_batches_are_not_remembered(store: segstore.Store) -> None:
    store.create_topic("t")
    log = store.partition("t")
    log.append(b"v" * 2000)
    assert offsets(log) == [0]
    assert log.view.segments[0].dense == ()


def test_neighbours_become_one_range(log: segstore.PartitionLog, files: CountingFiles) -> None:
    for first in (40, 0, 1_000, 500, 1_500):
        offsets(log, start=first, end=first + 500)
    (found,) = log.view.segments[0].dense
    assert (found.first, found.end) == (0, N * EACH)
    log.append_batch([b"v" * 100] * EACH)
    offsets(log)
    (found,) = log.view.segments[0].dense
    assert (found.first, found.end) == (0, (N + 1) * EACH)
    files.clear()
    assert offsets(log) == list(range((N + 1) * EACH))
    assert files.counts() == {"seek_batch": 1}


def test_a_neighbour_that_holds_no_more_is_not_joined(log: segstore.PartitionLog) -> None:
    """Else the last batch of the joined range would vouch for it."""
    offsets(log, end=1_000)
    segment = log.view.segments[0]
    (before,) = segment.dense
    position = batches(Path(segment.path))[before.end // EACH - 1][0]
    flip(Path(segment.path), position + 18)  # its CRC
    offsets(log, start=before.end)
    assert [each.first for each in segment.dense] == [0, before.end]
    assert recall(segment, 3, log.view.end_position) is None


def test_a_range_whose_last_batch_is_another_is_forgotten(log: segstore.PartitionLog) -> None:
    """As where a replica's log was cut, and others wrote on."""
    offsets(log)
    segment, end = log.view.segments[0], log.view.end_position
    assert recall(segment, 3, end) is not None
    assert recall(segment, 3, end - 1) is None
    assert recall(segment, N * EACH, end) is None
    position = batches(Path(segment.path))[-1][0]
    flip(Path(segment.path), position + 18)  # its CRC
    assert recall(segment, 3, end) is None
    assert offsets(log) == list(range(N * EACH))


def test_batches_of_transactions_are_judged_each_time(store_dir: Path) -> None:
    clock = Clock(step=1)
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t")
        log = store.partition("t")
        Writer(log, 7, clock).transaction(False, *[(b"k", b"v" * 2000)] * 2 * EACH)
        assert offsets(log) == list(range(2 * EACH))
        assert offsets(log, isolation_level="read_committed") == []


# --- what a piece costs ------------------------------------------------------------------------------


def costs(log: segstore.PartitionLog, *columns: str, size: int = 20_000) -> list[tuple[ScanPiece, int]]:
    reader = PieceReader(columns, committed=False, check_crcs=True, times=None)
    pieces = pieces_of([TopicRange(log, 0, log.high_watermark)], size, False)
    return [(piece, reader.cost(piece)) for piece in pieces]


def test_what_is_remembered_costs_nothing(log: segstore.PartitionLog) -> None:
    before = costs(log, "offset")
    assert all(piece.size == cost > 0 for piece, cost in before)
    offsets(log, start=500, end=1_500)
    for piece, cost in costs(log, "offset"):
        assert cost == (0 if piece.start >= 500 and piece.end <= 1_500 else piece.size), piece
    assert any(piece.start < 1_500 < piece.end for piece, _ in before)
    offsets(log)
    assert not any(cost for _, cost in costs(log, "offset"))
    assert costs(log, "offset", "timestamp") == before


def test_what_is_remembered_of_several_segments_costs_nothing(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 60_000})
        log = store.partition("t")
        for _ in range(N):
            log.append_batch([b"v" * 100] * EACH)
        assert len(log.view.segments) > 2
        offsets(log, end=1_100)
        for piece, cost in costs(log, "offset", size=80_000):
            assert cost == (0 if piece.end <= 1_100 else piece.size), piece
        offsets(log)
        assert not any(cost for _, cost in costs(log, "offset", size=80_000))
