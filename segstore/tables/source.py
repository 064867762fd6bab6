"""`TopicSource`: a topic of a store that is open, or of one that is opened to read for each scan.

On disk: only reads. Threads: any.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

from segstore.config import arguments
from segstore.coordinator.open import open as open_store
from segstore.storage.scans.scan import EARLIEST, LATEST, Edge
from segstore.storage.scans.topic_scan import TopicScan
from segstore.storage.store.store import Store


@contextmanager
def opened(store_or_path: Store | str | os.PathLike[str]) -> Iterator[Store]:
    """Yield a store that was given, which stays open; or open the one in a directory to read, beside a live
    writer too, and close it behind the block.
    """
    if isinstance(store_or_path, Store):
        yield store_or_path
        return
    with open_store(arguments.path("store_or_path", store_or_path), mode="r") as store:
        yield store


class ScanTerms(NamedTuple):
    """What is scanned, as `Store.scan` takes it."""

    partitions: Collection[int] | None = None
    start: int | Edge = EARLIEST
    end: int | Edge = LATEST
    from_time: int | datetime | None = None
    to_time: int | datetime | None = None
    isolation_level: str = "read_uncommitted"
    check_crcs: bool = True


class TopicSource:
    """A topic, and what of it is scanned, each time anew: what was appended since is there, too. Raises as
    `Store.scan` when it is made.
    """

    def __init__(self, store_or_path: Store | str | os.PathLike[str], topic: str, **terms: Any) -> None:
        self.place, self.topic, self.terms = store_or_path, topic, ScanTerms(**terms)
        with self.scanned():
            """The topic is there, and the terms are ones that can be."""

    @contextmanager
    def scanned(self) -> Iterator[TopicScan]:
        """Yield a scan of what is there now."""
        with opened(self.place) as store:
            yield store.scan(self.topic, **self.terms._asdict())
