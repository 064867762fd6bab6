"""Spark's checkpoints on a replicated store: the files outlive the directory that leads."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoint_store import QUIET, SMALL, held, random_bytes
from replicated_stores import Directories, await_in_sync, retrying
from waiting import until

import segstore
from segstore.filetree import FileTree, file_tree, floor

pytestmark = pytest.mark.kind("replicated stores")

COMPACTED = {**QUIET, **SMALL, "min.cleanable.dirty.ratio": 0, "segment.ms": 1, "segment.bytes": 20_000}


def files(store: Any) -> FileTree:
    return file_tree(store, "ck", COMPACTED)


def readable(store: Any) -> dict[str, bytes | None] | None:
    """What a new leader shows by now: its high watermark follows its followers' first fetches."""
    try:
        return held(files(store))
    except (OSError, segstore.SegstoreError):
        return None


def test_files_outlive_the_directory_that_leads(three: Directories) -> None:
    store = three.open(min_insync_replicas=2, default_replication_factor=3)
    expected: dict[str, bytes | None] = {"/": None, "/a": None}
    for number in range(3):
        expected[f"/a/{number}"] = data = random_bytes(3_000)
        files(store).write(f"/a/{number}", data)
    leader = store.describe_partition("ck", 0).leader
    three.lose(leader)
    until(lambda: store.describe_partition("ck", 0).leader not in (leader, -1))
    until(lambda: readable(store) == expected)
    expected["/a/new"] = random_bytes(5_000)
    retrying(lambda: files(store).write("/a/new", expected["/a/new"] or b"", overwrite=True))
    files(store).rename("/a/0", "/a/old")
    expected["/a/old"] = expected.pop("/a/0")
    assert held(files(store)) == expected
    store.close()
    three.bring_back()
    with three.open() as store:
        assert held(files(store)) == expected


def test_the_past_begins_where_the_leader_has_compacted(three: Directories) -> None:
    """The first directory, which has no replica, says nothing of it."""
    three.judged = False
    store = three.open()
    store.create_topic("ck", assignments={0: [1, 2]}, config={"cleanup.policy": "compact", **COMPACTED})
    for _ in range(20):
        files(store).write("/a", random_bytes(3_000), overwrite=True)
    await_in_sync(store)
    log = store.partition("ck", 0)
    until(lambda: store.sweep() is not None and store.replicated.cleaned_offset("ck", 0))
    assert floor(log) > 0
    with segstore.open(three.paths[1], mode="r") as reader:
        until(lambda: floor(reader.partition("ck", 0)) == floor(log))
