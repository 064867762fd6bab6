"""Helpers for metadata logs over several voters, whose directories are those of plain stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waiting import until

import segstore
from segstore.files import Files
from segstore.replication.metadata.metadata_log import MetadataLog, Voter
from segstore.replication.metadata.metadata_log_config import MetadataLogConfig
from segstore.replication.metadata.records import FeatureLevelRecord, MetadataRecord, NoOpRecord
from segstore.replication.metadata.snapshots import make_snapshot
from segstore.storage.segment.metadata_snapshot import SnapshotId, list_snapshots
from segstore.storage.store.writer import StoreWriter

TOTAL = 3
ALL = (0, 1, 2)


class Quorum:
    """Opened stores, and the metadata log over them."""

    def __init__(
        self,
        root: Path,
        ids: Iterable[int] = ALL,
        files: dict[int, Any] | None = None,
        total: int = TOTAL,
        clock: Callable[[], int] | None = None,
        **settings: int,
    ) -> None:
        """`settings` are those of `MetadataLogConfig`."""
        self.lost: list[int] = []
        config = MetadataLogConfig(**settings)
        self.stores: dict[int, segstore.Store] = {}
        try:
            for id_ in ids:
                more: dict[str, Any] = {"files": files[id_]} if files and id_ in files else {}
                more |= {"clock": clock} if clock else {}
                self.stores[id_] = segstore.open(root / str(id_), **more)
            self.log = MetadataLog.open(
                self.voters(), total, lambda voter, error: self.lost.append(voter), config
            )
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
    assert isinstance(store.engine, StoreWriter)
    return Voter(id_, store.engine)


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


def keep(log: MetadataLog) -> SnapshotId:
    """Have all voters keep a snapshot of all numbered records, and return it; it is not waited for."""
    snapshot = SnapshotId(log.next_offset, log.epoch)
    records = [numbered(number) for number in numbers(log)]
    log.keep(make_snapshot(snapshot, records, log.last_timestamp, log.last_timestamp))
    return snapshot


def keep_all(root: Path, log: MetadataLog, ids: Iterable[int] = ALL) -> SnapshotId:
    """`keep`, and wait until these voters have it."""
    snapshot = keep(log)
    until(lambda: all(snapshot_file(root, id_, snapshot).exists() for id_ in ids))
    return snapshot


def snapshot_file(root: Path, voter: int, snapshot: SnapshotId) -> Path:
    return root / str(voter) / "__cluster_metadata-0" / snapshot.name


def snapshots_of(root: Path, voter: int) -> list[SnapshotId]:
    return list_snapshots(Files(), str(root / str(voter) / "__cluster_metadata-0"))[0]


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
