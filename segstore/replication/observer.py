"""`Observer`: reads the metadata and the replicas of a replicated store from its directories, without opening
the store for writing (Kafka: an observer of the metadata log).

On disk nothing is locked or changed. An observer can read while a writer has the store open, and even if some
of the directories are missing. Threads: one.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from segstore import names
from segstore.closing import Closing
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
from segstore.replication.metadata.properties import MetaProperties, read_properties
from segstore.replication.metadata.records import decode
from segstore.replication.metadata.snapshots import MetadataSnapshots, no_snapshot, records_of
from segstore.replication.metadata.voters import FoundDirectory
from segstore.storage.meta.topic_info import CLUSTER_METADATA
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store
from segstore.storage.store.store import open as open_store

ATTEMPTS = 5
"""The largest number of repeated reads of the metadata. A read is repeated if a live writer has removed
records or snapshots during the read.
"""
MISSING = (errno.ENOENT, errno.ENOTDIR)


class ObservedReplica(NamedTuple):
    """A replica. `end_offset` is the high watermark that its directory has. `lag` is the leader's log end
    offset minus `log_end_offset`. A field is None if the directory is unknown or can't be read.
    """

    id: int
    directory: str | None
    end_offset: int | None
    log_end_offset: int | None = None
    lag: int | None = None


class ObservedPartition(NamedTuple):
    """A partition: its state in the metadata, and its replicas, the preferred leader first."""

    topic: str
    partition: int
    state: PartitionRegistration
    replicas: tuple[ObservedReplica, ...]


def observe(paths: Sequence[str]) -> list[ObservedPartition]:
    """Return all partitions of a replicated store. `paths` are the paths of its directories and its witness.
    A missing directory is skipped. The metadata are read from the directory whose metadata log has the
    largest (epoch of the last record, end offset).

    Raises StorageError if no directory belongs to a replicated store, and CorruptRecordError if no metadata
    log can be read.
    """
    with Observer(paths) as observer:
        image = observer.look()
        return [
            ObservedPartition(*key, state, _replicas(observer.stores, key, state))
            for key, state in sorted(image.partitions.items())
        ]


class _Directory(NamedTuple):
    """A directory that is open for reading. `identity` is the result of `Files.identity` for its
    `meta.properties`.
    """

    identity: tuple[int, ...]
    properties: MetaProperties
    store: Store


class Observer(Closing):
    """A reader of a replicated store's metadata, and a context manager. Each `look` skips the directories
    that can't be read at that time.
    """

    def __init__(self, paths: Sequence[str], files: Files | None = None) -> None:
        self.paths, self._files = tuple(paths), files or Files()
        self._open: dict[str, _Directory] = {}
        self.failed: dict[str, Exception] = {}
        """For each directory that can't be read: its path, and the error."""
        self._image, self._epoch = MetadataImage(), -1

    def close(self) -> None:
        """Close all directories."""
        while self._open:
            self._open.popitem()[1].store.close()

    @property
    def stores(self) -> dict[int, Store]:
        """Return the `Store` objects of the readable directories, by directory id."""
        return {each.properties.node_id: each.store for each in self._open.values()}

    @property
    def found(self) -> list[FoundDirectory]:
        """Return the readable directories, with the contents of their `meta.properties`."""
        return [FoundDirectory(path, properties=each.properties) for path, each in self._open.items()]

    def look(self) -> MetadataImage:
        """Return the current metadata. The next call applies new records of the metadata log to the same
        object, and returns it. If a directory was opened anew, a call returns a new object. Raises the errors
        of `observe`.
        """
        self.failed = {}
        for path in self.paths:
            try:
                self._look_at(path)
            except (SegstoreError, OSError) as error:
                self.lose(path, error)
        standings = {path: at for path in list(self._open) if (at := self._standing(path)) is not None}
        for path in sorted(standings, key=standings.__getitem__, reverse=True):
            try:
                return self._follow(self._open[path].store, standings[path][1])
            except (SegstoreError, OSError) as error:
                self._image, self._epoch = MetadataImage(), -1
                self.failed[path] = copy_of(error)
        raise self._nothing_read()

    def lose(self, path: str, error: Exception) -> None:
        """Close a directory that has failed. The next `look` tries to open the directory again."""
        self.failed[path] = copy_of(error)
        if (held := self._open.pop(path, None)) is not None:
            held.store.close()

    def _look_at(self, path: str) -> None:
        """Open the directory at `path`, unless this directory is open already. Raises OSError if it is
        missing.
        """
        identity = self._files.identity(names.below(path, names.META_PROPERTIES))
        held = self._open.get(path)
        if held is not None and held.identity == identity:
            return
        properties = read_properties(self._files, path)
        if properties is None:
            raise FileNotFoundError(errno.ENOENT, "no meta.properties", path)
        if held is not None:
            held.store.close()
        # The metadata are read anew, because all directories may have been replaced by older copies.
        self._image, self._epoch = MetadataImage(), -1
        self._open[path] = _Directory(identity, properties, open_store(path, mode="r", files=self._files))

    def _standing(self, path: str) -> tuple[int, int] | None:
        """Return (epoch of the last record, end offset) of a directory's metadata log, None if it can't be
        read. The log with the largest tuple has all committed records, if a majority of the logs is compared.
        """
        try:
            log = self._open[path].store.partition(CLUSTER_METADATA, 0)
            return _epoch_before(log, log.end_offset), log.end_offset
        except (SegstoreError, OSError) as error:
            self.failed[path] = copy_of(error)
            return None

    def _follow(self, store: Store, end: int) -> MetadataImage:
        """Apply the new records of a directory's metadata log to the image, and return it. If the log does
        not have the image's last record, or begins above the image's `next_offset`, read a new image from the
        log.
        """
        log, image = store.partition(CLUSTER_METADATA, 0), self._image
        goes_on = log.start_offset <= image.next_offset <= end
        if goes_on and _epoch_before(log, image.next_offset) == self._epoch:
            _take(log, image, end)
        else:
            self._image = image = image_of(store)
        self._epoch = _epoch_before(log, image.next_offset)
        return image

    def _nothing_read(self) -> SegstoreError:
        for error in self.failed.values():
            if getattr(error, "errno", None) not in MISSING:
                return error if isinstance(error, SegstoreError) else StorageError(*error.args)
        text = (
            "no directory of a replicated store; `segstore.open_replicated` makes one, and"
            " `segstore replicate` makes one of a store without replicas"
        )
        return StorageError(errno.ENOENT, text, ", ".join(self.paths))


def image_of(store: Store) -> MetadataImage:
    """Return a directory's metadata: read the newest snapshot, and the records of the log after it. If a live
    writer removes this snapshot during the read, repeat the read. Raises CorruptRecordError,
    CorruptCheckpointError, UnsupportedVersionError, StorageError, OSError.
    """
    for _ in range(ATTEMPTS):
        with suppress(OffsetOutOfRangeError, CorruptCheckpointError, FileNotFoundError):
            return _read_image(store)
    return _read_image(store)


def _read_image(store: Store) -> MetadataImage:
    image, log = MetadataImage(), store.partition(CLUSTER_METADATA, 0)
    directory = names.below(store.path, names.partition_dir(CLUSTER_METADATA, 0))
    start, files = log.start_offset, store.context.files
    snapshots = MetadataSnapshots(files, directory)
    found = snapshots.newest(start, log.end_offset)
    if found is not None:
        for each in records_of(files, snapshots.path(found)):
            image.apply(each, found.end_offset - 1)
        image.next_offset = found.end_offset
    elif start > 0:
        raise no_snapshot(start, snapshots)
    _take(log, image, log.end_offset)
    return image


def _take(log: PartitionLog, image: MetadataImage, end: int) -> None:
    """Apply the records with `image.next_offset` <= offset < `end` of a metadata log to an image."""
    for record in log.scan(image.next_offset, end):
        if record.value is None:
            raise CorruptRecordError(log.topic, 0, record.offset, "a metadata record without a value")
        image.apply(decode(record.value), record.offset)


def _epoch_before(log: PartitionLog, offset: int) -> int:
    """Return the leader epoch of the record before `offset` in a metadata log, -1 if there is no such
    record.
    """
    return int(log.read(offset - 1, 0).leader_epochs[0]) if offset > log.start_offset else -1


def _replicas(
    stores: dict[int, Store], key: PartitionKey, state: PartitionRegistration
) -> tuple[ObservedReplica, ...]:
    """Return a partition's replicas. Compute the lag of each replica."""
    # The logs are read one after another. So the log end offset that was read from a follower may be above
    # the leader's. The lag is then 0.
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
    except SegstoreError:  # The directory does not have the partition yet.
        return ObservedReplica(broker, store.path, None)
