"""Scans of a log's headers: one that skips the bytes between the headers of large batches finds the same
batches.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import segstore
from segstore.files import Files
from segstore.storage.segment.batch_scan import AT_A_TIME, ScanStep, walk, walk_past_damage

VALUES = [bytes([i % 251]) * 5_000 for i in range(2_000)]  # more than two chunks of a walk


def _log(folder: Path, batch_bytes: int) -> Path:
    with segstore.open(folder / "store") as store:
        store.create_topic("t")
        store.partition("t", 0).append_batch(VALUES, batch_bytes=batch_bytes)
    (path,) = (folder / "store" / "t-0").glob("*.log")
    return path


def _walk(path: Path, sparse: bool) -> list[ScanStep]:
    files = Files()
    with files.open(path) as handle:
        return list(walk_past_damage(files, handle, path.stat().st_size, check_crcs=False, sparse=sparse))


@pytest.mark.parametrize("damaged_at", [None, 0.3, 0.95], ids=["whole", "damaged", "damaged-late"])
@pytest.mark.parametrize("batch_bytes", [6_000, 65_536, 500_000], ids=["small", "large", "huge"])
def test_sparse_walk_sees_the_same_batches(
    tmp_path: Path, batch_bytes: int, damaged_at: float | None
) -> None:
    path = _log(tmp_path, batch_bytes)
    dense = _walk(path, sparse=False)
    if damaged_at is not None:
        batches = np.concatenate([step.batches for step in dense])
        with path.open("r+b") as file:
            file.seek(int(batches["position"][int(len(batches) * damaged_at)]) + 16)
            file.write(b"\0")  # the magic
        dense = _walk(path, sparse=False)
    sparse = _walk(path, sparse=True)
    assert np.array_equal(
        np.concatenate([step.batches for step in sparse]), np.concatenate([step.batches for step in dense])
    )
    assert sparse[-1].stop.position == dense[-1].stop.position
    alone = [step for step in sparse if not step.data]
    assert bool(alone) == (batch_bytes > 16_384)
    assert all(len(step.batches) <= AT_A_TIME for step in alone)


@pytest.mark.parametrize("batch_bytes", [6_000, 65_536, 500_000], ids=["small", "large", "huge"])
def test_a_walk_that_begins_with_headers_alone_sees_the_same_batches(
    tmp_path: Path, batch_bytes: int
) -> None:
    """Also where the caller was wrong about the size of batches."""
    path, files = _log(tmp_path, batch_bytes), Files()
    with files.open(path) as handle:
        end = path.stat().st_size
        dense = list(walk(files, handle, 0, end, check_crcs=False))
        steps = list(walk(files, handle, 0, end, check_crcs=False, sparse=True, large=True))
    batches = [np.concatenate([step.batches for step in each]) for each in (dense, steps)]
    assert np.array_equal(*batches)
    assert steps[-1].stop.position == end
    assert not steps[0].data


@pytest.mark.parametrize("sparse", [False, True])
def test_a_file_that_ends_between_batches_before_the_end_that_is_asked_for(
    tmp_path: Path, sparse: bool
) -> None:
    """It was cut, or its name is another file's by now: a walk ends there."""
    path, files = _log(tmp_path, 65_536), Files()
    size = path.stat().st_size
    with files.open(path) as handle:
        walk = walk_past_damage(files, handle, size + 100, check_crcs=False, sparse=sparse)
        steps = list(itertools.islice(walk, len(VALUES)))
    assert len(steps) < len(VALUES)
    assert [step.stop.position for step in steps if len(step.batches)][-1] == size
