"""Stores on a full disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from full_files import FullFiles
from waiting import until

import segstore
from segstore import StorageError

SMALL = {"segment.bytes": 10_000, "segment.index.bytes": 4096, "file.delete.delay.ms": 0}
QUIET = {"log.cleaner.threads": 0, "log.retention.check.interval.ms": 2**62}


def noted(root: Path) -> None:
    """Wait until other processes see that the disk is full."""
    until((root / ".segstore" / "full").exists, seconds=20)


def fill(log: segstore.PartitionLog) -> None:
    while True:
        log.append(b"more" * 300)


def filled(path: Path, files: FullFiles, **config: Any) -> segstore.Store:
    """A store with two topics, whose disk is full."""
    store = segstore.open(path, files=files, config=QUIET)
    for topic in ("t", "u"):
        store.create_topic(topic, partitions=2, config={**SMALL, **(config if topic == "t" else {})})
        for partition in range(2):
            log = store.partition(topic, partition)
            for i in range(60):
                log.append(b"%d" % i * 600, key=b"k%d" % (i % 3))
    store.flush()
    files.fill()
    for partition in range(2):
        with pytest.raises(StorageError):
            fill(store.partition("u", partition))
    return store
