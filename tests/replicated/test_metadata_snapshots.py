"""Promise: a store whose metadata log begins behind a snapshot is one as any other: a directory is replaced,
others look at it, and it becomes a plain one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from replicated_stores import Directories, await_in_sync
from waiting import until

import segstore
from segstore.replication.observer import observe

pytestmark = pytest.mark.kind("replicated stores")

TINY: dict[str, Any] = {
    "metadata_log_segment_ms": 1,
    "metadata_log_max_record_bytes_between_snapshots": 300,
    "metadata_max_retention_bytes": 0,
}


def start_of(store: Any, voter: int) -> int:
    found: int = store.replicated.metadata_log._voters[voter].start_offset
    return found


def test_a_directory_is_replaced_and_one_becomes_plain(tmp_path: Path) -> None:
    three = Directories(tmp_path, 3)
    with three.open(**TINY) as store:
        store.create_topic("t", partitions=2, replication_factor=3, config={"segment.bytes": 20_000})
        store.partition("t", 0).append(b"x")
        until(lambda: _decided(store) and all(start_of(store, voter) > 20 for voter in range(3)))
    shutil.rmtree(three.paths[2])
    with three.open(**TINY) as store:
        store.replace_directory(2, three.paths[2])
        await_in_sync(store)
        assert start_of(store, 2) > 20
        seen = observe([str(path) for path in three.paths])
        assert [each.partition for each in seen if each.topic == "t"] == [0, 1]
    segstore.unreplicate([str(path) for path in three.paths], 1)
    with segstore.open(three.paths[1]) as plain:
        assert plain.topics()["t"].config["segment.bytes"] == 20_000
        assert [record.value for record in plain.partition("t", 0).read(0)] == [b"x"]
    assert not list(three.paths[1].glob("__cluster_metadata*"))


def _decided(store: Any) -> bool:
    """Have something decided, so that the log grows."""
    age = int(store.topics()["t"].config.get("retention.ms", 1 << 40))
    store.alter_topic("t", {"retention.ms": age + 1})
    return True
