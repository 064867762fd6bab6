"""Helpers for metadata logs over several voters, whose directories are those of plain stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import segstore
from segstore.replication.metadata.metadata_log import MetadataLog, Voter
from segstore.replication.metadata.records import FeatureLevelRecord, MetadataRecord, NoOpRecord
from segstore.storage.store.writer import StoreWriter

TOTAL = 3
ALL = (0, 1, 2)


class Quorum:
    """Opened stores, and the metadata log over them."""

    def __init__(
        self, root: Path, ids: Iterable[int] = ALL, files: dict[int, Any] | None = None, total: int = TOTAL
    ) -> None:
        self.lost: list[int] = []
        self.stores: dict[int, segstore.Store] = {}
        try:
            for id_ in ids:
                more = {"files": files[id_]} if files and id_ in files else {}
                self.stores[id_] = segstore.open(root / str(id_), **more)
            self.log = MetadataLog.open(self.voters(), total, lambda voter, error: self.lost.append(voter))
        except BaseException:
            self.close_stores()
            raise

    def voters(self) -> list[Voter]:
        return [voter_of(id_, store) for id_, store in self.stores.items()]

    def close_stores(self) -> None:
        for store in self.stores.values():
            try:
                store.close()
            except segstore.SegstoreError:
                store.close()  # a disk that has failed: the lock is free then

    def close(self) -> None:
        self.log.close()
        self.close_stores()


def voter_of(id_: int, store: segstore.Store) -> Voter:
    assert isinstance(store._side, StoreWriter)
    return Voter(id_, store._side)


@contextmanager
def quorum(root: Path, ids: Iterable[int] = ALL, **more: Any) -> Iterator[Quorum]:
    made = Quorum(root, ids, **more)
    try:
        yield made
    finally:
        made.close()


def numbered(number: int) -> FeatureLevelRecord:
    """A record that is told from others."""
    return FeatureLevelRecord("n", number)


def numbers(log: MetadataLog) -> list[int]:
    """The numbers of the records that the log has."""
    held: list[MetadataRecord] = [record for _, record in log.replay()]
    return [r.feature_level for r in held if isinstance(r, FeatureLevelRecord)]


def offsets_rise(log: MetadataLog) -> bool:
    return [offset for offset, _ in log.replay()] == list(range(log.next_offset))


def log_bytes(root: Path, voter: int) -> bytes:
    directory = root / str(voter) / "__cluster_metadata-0"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def assert_sound(root: Path, ids: Iterable[int] = ALL) -> None:
    for id_ in ids:
        if (root / str(id_)).is_dir():
            assert segstore.check(root / str(id_)) == []


__all__ = ["ALL", "TOTAL", "Callable", "NoOpRecord", "Quorum"]
