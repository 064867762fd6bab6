"""What a reader knows about a partition beside its log files: how often the file of published ends is opened,
and what two threads that ask at once get.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import segstore
from segstore.storage.store import believed_ends
from segstore.storage.store.published_partition import PublishedPartition
from segstore.storage.store.reader import StoreReader


@pytest.fixture
def published(store_dir: Path) -> Iterator[PublishedPartition]:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append_batch([b"value"] * 5)
        log.delete_records(2)
        with segstore.open(store_dir, "r") as reading:
            reader = reading.engine
            assert isinstance(reader, StoreReader)
            found = reader.partition("t", 0)._published
            assert isinstance(found, PublishedPartition)
            yield found


def test_a_directory_without_ends_is_not_searched_for_ends_of_sealed_segments(
    published: PublishedPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker's directory is listed again and again while it is written to."""
    looks = []
    monkeypatch.setattr(believed_ends, "open_reader", lambda files, path: looks.append(path))
    assert published.ends() is None
    assert len(looks) == 1
    assert [published.sealed(), published.sealed()] == [{}, {}]
    assert len(looks) == 1


class Overtaken(PublishedPartition):
    """Another thread has found a later log start as soon as this one has noted its own."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_starts" and value:
            super().__setattr__(name, {4: 4})


def test_a_thread_that_is_overtaken_returns_its_own_log_start(published: PublishedPartition) -> None:
    published.__class__ = Overtaken
    ends = published.ends()
    assert ends is not None
    assert (ends.start, ends.end) == (2, 5)
