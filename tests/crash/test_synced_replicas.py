"""Promise: what `flush` made durable in all in-sync replicas survives a power cut of all disks that loses all
that was not synced, whoever is in sync by then: a replica syncs before it joins the ISR (R20).
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import SYNCS
from faulty import FaultyFiles
from replicated_stores import QUICK, Disks, found
from waiting import until

import segstore
from segstore import names
from segstore.replication.core.messages import AlterPartition
from segstore.replication.metadata.image import PartitionKey

KEY = PartitionKey("t", 0)
RECORDS = [b"%d" % number for number in range(20)]
WAYS = pytest.mark.parametrize("inline", [False, True], ids=["by threads", "inline"])


def opened(root: Path, directories: tuple[str, ...], **more: Any) -> Any:
    return segstore.open_replicated([root / name for name in directories], config=QUICK, **more)


def move(store: Any, *replicas: int) -> None:
    store.reassign({KEY: list(replicas)})
    until(lambda: not store.reassignments())
    assert {*store.describe_partition(*KEY).isr} == {*replicas}


def move_disk_by_disk(store: Any, root: Path) -> None:
    move(store, 1, 2)
    move(store, 2)


def replace(store: Any, root: Path) -> None:
    os.rename(root / "d1", root / "gone")
    until(lambda: store.describe_partition(*KEY).isr == (0,))
    store.replace_directory(1, root / "new")
    until(lambda: {*store.describe_partition(*KEY).isr} == {0, 1})


CHANGES: dict[str, tuple[list[int], Callable[[Any, Path], None], tuple[str, ...], str | None]] = {
    "it moves to one replica": ([0], lambda store, root: move(store, 2), ("d0", "d1", "d2"), None),
    "it moves disk by disk": ([0, 1], move_disk_by_disk, ("d0", "d1", "d2"), None),
    "a disk is replaced, and the other one lost": ([0, 1], replace, ("d0", "new", "d2"), "d0"),
}
"""Replicas before, what changes, the directories then, and which of them is lost by the cut."""


@WAYS
@pytest.mark.parametrize("name", CHANGES)
def test_r20_what_was_flushed_survives_a_power_cut(
    tmp_path: Path, rng: random.Random, name: str, inline: bool
) -> None:
    before, change, after, lost = CHANGES[name]
    root, left = tmp_path / "disks", tmp_path / "left"
    root.mkdir()
    left.mkdir()
    files = FaultyFiles(root)
    with opened(root, ("d0", "d1", "d2"), files=files, inline=inline) as store:
        store.create_topic("t", assignments={0: before})
        log = store.partition(*KEY)
        log.append_batch(RECORDS, acks="all")
        log.flush()
        change(store, root)
        files.image("none", rng).write(left)
    if lost is not None:
        shutil.rmtree(left / lost)
    with opened(left, after, inline=inline) as store:
        until(lambda: store.describe_partition(*KEY).leader >= 0)
        assert [*found(store.partition(*KEY)).values()] == RECORDS


@WAYS
def test_r20_flush_of_all_syncs_a_replica_that_joins_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    """Directory 0 is flushed before it has the partition; directory 2, which leads, after 0 has joined."""
    with opened(tmp_path, ("d0", "d1", "d2"), inline=inline) as store:
        store.create_topic("t", assignments={0: [2]})
        store.partition(*KEY).append_batch(RECORDS, acks="all")
        manager = store.replicated.manager
        last = manager.directories[2].writer.partitions
        flush = last.flush

        def later() -> None:
            move(store, 2, 0)
            flush()

        with monkeypatch.context() as patched:
            patched.setattr(last, "flush", later)
            store.flush()
        joined = manager.find(0, KEY)
        assert joined.replica.log_end_offset == joined.partition.recovery_point == len(RECORDS)


@WAYS
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_r32_a_sync_that_fails_takes_the_directory_offline(tmp_path: Path, code: int, inline: bool) -> None:
    files = Disks()
    with opened(tmp_path, ("d0", "d1", "d2"), files=files, inline=inline) as store:
        store.create_topic("t", assignments={0: [0]})
        log = store.partition(*KEY)
        log.append_batch(RECORDS, acks="all")
        log.flush()
        files.fail(tmp_path / "d2" / "t-0" / names.segment_file(0, names.LOG), code, SYNCS)
        store.reassign({KEY: [0, 2]})
        until(lambda: 2 in store.describe_partition(*KEY).offline)
        assert store.describe_partition(*KEY).isr == (0,)
        assert [*found(log).values()] == RECORDS


@WAYS
def test_r20_flush_syncs_a_replica_that_is_about_to_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    with opened(tmp_path, ("d0", "d1", "d2"), inline=inline) as store:
        store.create_topic("t", assignments={0: [0]})
        manager, late = store.replicated.manager, threading.Event()
        held: list[tuple[Any, AlterPartition]] = []

        def send(sender: Any, message: AlterPartition) -> None:
            held.append((sender, message))
            late.set()

        with monkeypatch.context() as patched:
            patched.setattr(manager, "send", send)
            store.reassign({KEY: [0, 2]})
            assert late.wait(60)
        assert store.describe_partition(*KEY).isr == (0,)
        log = store.partition(*KEY)
        log.append_batch(RECORDS, acks="all")
        log.flush()
        joining = manager.find(2, KEY)
        assert joining.replica.log_end_offset == joining.partition.recovery_point == len(RECORDS)
        manager.send(*held[0])
        until(lambda: {*store.describe_partition(*KEY).isr} == {0, 2})
