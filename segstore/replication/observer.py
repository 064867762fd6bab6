"""What the directories of a replicated store say of its partitions, without opening it for writing (Kafka: an
observer of the metadata log).

On disk nothing is locked or changed, so this works beside a live writer, and where directories are missing.
Threads: one.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from segstore import names
from segstore.errors import (
    CorruptCheckpointError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    SegstoreError,
    StorageError,
    copy_of,
)
from segstore.files import Files
from segstore.replication.core.registration import PartitionRegistration
from segstore.replication.metadata.image import MetadataImage, PartitionKey
from segstore.replication.metadata.properties import read_properties
from segstore.replication.metadata.records import decode
from segstore.replication.metadata.snapshots import Snapshots, no_snapshot, records_of
from segstore.storage.meta.topic_info import CLUSTER_METADATA
from segstore.storage.store.store import Store
from segstore.storage.store.store import open as open_store

ATTEMPTS = 5
"""How often metadata is read whose beginning is removed meanwhile."""


class ObservedReplica(NamedTuple):
    """A replica. `end_offset` is where a reader of its directory alone finds the end: its high watermark.
    `log_end_offset` is where its log ends, and `lag` how many offsets that is behind the leader's. None where
    the directory is not among those that were given, or can't be read.
    """

    id: int
    directory: str | None
    end_offset: int | None
    log_end_offset: int | None = None
    lag: int | None = None


class ObservedPartition(NamedTuple):
    """A partition: its state in the metadata, and its replicas in preferred order."""

    topic: str
    partition: int
    state: PartitionRegistration
    replicas: tuple[ObservedReplica, ...]


def observe(paths: Sequence[str]) -> list[ObservedPartition]:
    """Return all partitions of the store of which `paths` are directories or the witness; one that is missing
    is passed over. The directory that knows most of the metadata is believed.

    Raises StorageError where none of them belongs to a replicated store, CorruptRecordError where none can be
    read.
    """
    with ExitStack() as opened:
        stores = {store_id: opened.enter_context(store) for store_id, store in _directories(paths)}
        image = _newest(stores.values(), paths)
        return [
            ObservedPartition(*key, state, _replicas(stores, key, state))
            for key, state in sorted(image.partitions.items())
        ]


def _directories(paths: Iterable[str]) -> Iterator[tuple[int, Store]]:
    """Yield the id and a reader of each directory that is there."""
    files = Files()
    for path in paths:
        properties = read_properties(files, path) if files.exists(path) else None
        if properties is not None:
            yield properties.node_id, open_store(path, mode="r")


def _newest(stores: Iterable[Store], paths: Sequence[str]) -> MetadataImage:
    failed: list[SegstoreError] = []
    images = []
    for store in stores:
        try:
            images.append(image_of(store))
        except SegstoreError as error:
            failed.append(error)
    if images:
        return max(images, key=lambda image: image.next_offset)
    if failed:
        raise copy_of(failed[0])
    told = "no directory of a replicated store; `segstore.open_replicated` makes one"
    raise StorageError(errno.ENOENT, told, ", ".join(paths))


def image_of(store: Store) -> MetadataImage:
    """Return the metadata that a directory has: a snapshot, and the log behind it. A live writer may remove
    both meanwhile, once a newer snapshot is there: then they are read again. Raises CorruptRecordError,
    CorruptCheckpointError, UnsupportedVersionError, StorageError, OSError.
    """
    for _ in range(ATTEMPTS):
        with suppress(OffsetOutOfRangeError, CorruptCheckpointError, FileNotFoundError):
            return _read_image(store)
    return _read_image(store)


def _read_image(store: Store) -> MetadataImage:
    image, log = MetadataImage(), store.partition(CLUSTER_METADATA, 0)
    directory = names.below(store.path, names.partition_dir(CLUSTER_METADATA, 0))
    at, files = log.start_offset, Files()
    snapshots = Snapshots(files, directory)
    found = snapshots.newest(at, log.end_offset)
    if found is None and at > 0:
        raise no_snapshot(at, snapshots)
    if found is not None:
        at = found.end_offset
        for each in records_of(files, snapshots.path(found)):
            image.apply(each, at - 1)
    while at < log.end_offset:
        records = log.read(at)
        for record in records:
            if record.value is None:
                raise CorruptRecordError(store.path, 0, record.offset, "a metadata record without a value")
            image.apply(decode(record.value), record.offset)
        at = records.next_offset
    return image


def _replicas(
    stores: dict[int, Store], key: PartitionKey, state: PartitionRegistration
) -> tuple[ObservedReplica, ...]:
    """Return the replicas, as they were at about one moment: a follower may have got more than the leader had
    when that was looked at.
    """
    found = [_replica(stores, key, each) for each in state.replicas]
    end = next((each.log_end_offset for each in found if each.id == state.leader), None)
    return tuple(
        each
        if end is None or each.log_end_offset is None
        else each._replace(lag=max(end - each.log_end_offset, 0))
        for each in found
    )


def _replica(stores: dict[int, Store], key: PartitionKey, broker: int) -> ObservedReplica:
    store = stores.get(broker)
    if store is None:
        return ObservedReplica(broker, None, None)
    try:
        log = store.partition(*key)
        return ObservedReplica(broker, store.path, log.end_offset, log.log_end_offset)
    except SegstoreError:  # it has not heard of the partition yet
        return ObservedReplica(broker, store.path, None)
