"""The store of the producer's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import segstore


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    """An open store with a topic of one partition, "t", and one of four."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.create_topic("four", partitions=4)
        yield store
