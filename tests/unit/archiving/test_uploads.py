"""`Uploads`: every call is made, and its outcome told, whatever threads there are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import get_ident

import pytest
from refused_threads import refused
from waiting import PATIENCE

import segstore
from segstore.archiving.uploads import Done, Uploads
from segstore.errors import ArchiveError


def failing(number: int) -> int:
    raise ArchiveError(f"number {number}")


def test_without_threads_the_calling_thread_makes_the_calls() -> None:
    uploads = Uploads(2, "segstore-test")
    with refused("segstore-test") as names:
        assert uploads.run([get_ident, get_ident, get_ident]) == [get_ident()] * 3
        with pytest.raises(ArchiveError, match="number 1"):
            uploads.run([get_ident, partial(failing, 1), partial(failing, 2)])
        assert len(names) == 6, "each call tries to start a thread"
    assert get_ident() not in uploads.run([get_ident, get_ident])
    uploads.close()


def test_one_thread_makes_all_calls_if_no_second_one_can_be_started() -> None:
    uploads = Uploads(2, "segstore-test")
    outcomes: SimpleQueue[Done[int]] = SimpleQueue()
    uploads.begin(0, get_ident, outcomes)
    with refused("segstore-test"):
        uploads.begin(1, get_ident, outcomes)
    first, second = (outcomes.get(timeout=PATIENCE) for _ in range(2))
    assert first.result == second.result != get_ident()
    uploads.close()


def test_a_store_is_archived_without_threads_for_uploads(store: segstore.Store, tmp_path: Path) -> None:
    store.create_topic("t", 3, {"segment.bytes": 2000})
    for number in range(3):
        store.partition("t", number).append_batch([b"x" * 100] * 100, batch_bytes=500)
    with (
        refused("segstore-archive-") as names,
        segstore.archive(store, tmp_path / "archive", interval_ms=1) as running,
    ):
        assert running.wait_archived(PATIENCE * 1000)
        assert names
    segstore.restore(tmp_path / "archive", tmp_path / "restored")
    with segstore.open(tmp_path / "restored", mode="r") as restored:
        assert [restored.partition("t", number).end_offset for number in range(3)] == [100] * 3
