"""Promise: retention that overtakes a reader again and again makes no reader of a log that is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import segstore
from segstore.storage.log import raw_read
from segstore.storage.segment.log_view import LogView

OFTEN = 30
"""More often than a reader looks for a file that is gone."""


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"first")
        yield log


def overtaken(log: segstore.PartitionLog, read: Callable[..., Any], moves: bool) -> Callable[..., Any]:
    """`read`, before which all that it would read is deleted, OFTEN; or a segment is missing each time."""
    left = [OFTEN]

    def late(view: LogView, *more: Any) -> Any:
        if not left[0]:
            return read(view, *more)
        left[0] -= moves
        if moves:
            log.partition_for_write().roll()
            log.append(b"next")
            log.delete_records(log.end_offset - 1)
        raise FileNotFoundError(2, "No such file or directory", view.segments[0].path)

    return late


def read_by_views(log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch, moves: bool) -> Any:
    return log.with_view(overtaken(log, lambda view: view.start_offset, moves))


def read_as_follower(log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch, moves: bool) -> Any:
    monkeypatch.setattr(raw_read, "_read", overtaken(log, lambda view, *_: view.start_offset, moves))
    partition, checked = log.partition_for_write(), LogView.check
    # The fetch goes on where the log begins by then: else it would be out of range.
    monkeypatch.setattr(LogView, "check", lambda view, _, where: checked(view, view.start_offset, where))
    return raw_read.raw_read(partition, 0, 1 << 40, 1 << 20)


READS = {"a view": read_by_views, "a follower's fetch": read_as_follower}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_reader_that_retention_overtakes_reads_on(
    read: Callable[..., Any], log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(log, monkeypatch, True) == OFTEN


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_file_that_stays_away_is_told(
    read: Callable[..., Any], log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(segstore.StoreClosedError, match="is gone"):
        read(log, monkeypatch, False)
