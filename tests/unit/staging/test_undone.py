"""Promise: an adoption that was begun is undone durably, whatever the failed process has done of that."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import CountingFiles

import segstore
from segstore.storage.inbox.intent import LogOffsetMetadata, undo


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_log_that_is_short_enough_is_synced_too(store_dir: Path, kept: int) -> None:
    """It may have been cut by a process whose sync failed: after a power cut the rest would be back."""
    files = CountingFiles()
    with segstore.open(store_dir) as store:
        topic = store.create_topic("t") or store.topics()["t"]
        for n in range(kept):
            store.partition("t").append(b"%d" % n)
    (path,) = (store_dir / "t-0").glob("*.log")
    size = path.stat().st_size
    undo(files, str(store_dir), {"t": topic}, [LogOffsetMetadata("t", topic.topic_id, 0, 0, size, kept)])
    assert path.stat().st_size == size
    assert files.counts()["sync"] == 1
    assert files.count("truncate", "write_atomic") == 0
