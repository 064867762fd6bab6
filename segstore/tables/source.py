"""`TopicSource`: a topic of an open store, or of a directory that each scan opens read-only.

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
    """Yield `store_or_path` if it is an open store. If it is a directory, open it read-only, yield the store,
    and close the store at the end of the block. Another process may be writing to the directory.
    """
    if isinstance(store_or_path, Store):
        yield store_or_path
        return
    with open_store(arguments.path("store_or_path", store_or_path), mode="r") as store:
        yield store


class ScanTerms(NamedTuple):
    """The arguments of `Store.scan`, except the topic."""

    partitions: Collection[int] | None = None
    start: int | Edge = EARLIEST
    end: int | Edge = LATEST
    from_time: int | datetime | None = None
    to_time: int | datetime | None = None
    isolation_level: str = "read_uncommitted"
    check_crcs: bool = True


class TopicSource:
    """A topic and the arguments of its scans. Each scan reads the records that the topic has at that time.
    The constructor raises the errors of `Store.scan`.
    """

    def __init__(self, store_or_path: Store | str | os.PathLike[str], topic: str, **terms: Any) -> None:
        self.place, self.topic, self.terms = store_or_path, topic, ScanTerms(**terms)
        with self.scanned():
            """The scan checks that the topic exists and the terms are valid."""

    @contextmanager
    def scanned(self) -> Iterator[TopicScan]:
        """Yield a scan of the topic's present records."""
        with opened(self.place) as store:
            yield store.scan(self.topic, **self.terms._asdict())
