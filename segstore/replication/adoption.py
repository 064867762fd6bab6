"""Adopts a plain store (a store without replicas) as a directory of a replicated store. No record is copied:
each partition has one replica at first, in that directory. Kafka has no counterpart.

During the adoption the file `.segstore/plain-epochs.json` is on disk. Threads: one. A crash may make it
necessary to repeat a step. The steps are:
1. The directory is opened as a plain store, and closed cleanly. Opening it recovers the store, and appends
   staged records. The leader epochs of all partitions are written into `plain-epochs.json`, because a replica
   forgets an epoch that has no batch (R7), and no epoch may be begun twice (R2).
2. Each directory gets a `meta.properties`. After that each directory gets a metadata log, the plain store
   before all others: until then a process could open it as a plain store, and append to it.
3. One batch of the metadata log registers the directories, and creates the topics with their settings and
   partitions. If the metadata log has no registrations when the store is opened, this step is repeated.
4. `plain-epochs.json` is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from segstore import names
from segstore.config import StoreConfig
from segstore.errors import CorruptCheckpointError, InvalidArgumentError, StorageError, copy_of
from segstore.files import Files
from segstore.replication.core.controller import Controller, PartitionDecision
from segstore.replication.core.effects import Effects, Persist
from segstore.replication.core.registration import NO_LEADER, PartitionRegistration
from segstore.replication.kept_records import records_of_files
from segstore.replication.metadata.image import PartitionKey
from segstore.replication.metadata.records import MetadataRecord, TopicRecord
from segstore.replication.quorum_controller import Decision
from segstore.replication.settings import ReplicationConfig
from segstore.replication.topic_admin import settings_of
from segstore.storage.context import Clock
from segstore.storage.meta.clean_shutdown import read_marker
from segstore.storage.meta.framed import seal, unseal
from segstore.storage.meta.small_files import unreadable
from segstore.storage.meta.topic_info import CLUSTER_METADATA, TopicInfo
from segstore.storage.store.store import open_context
from segstore.storage.store.writer import StoreWriter

_LONGEST = 1 << 26  # bytes

Epochs = dict[str, dict[str, int]]
"""Leader epochs by topic name and partition number. The partition numbers are strings, because keys of JSON
objects are.
"""


# --- before the directory gets `meta.properties` -----------------------------------------------


def settle(root: str, settings: StoreConfig, files: Files, clock: Clock, file_mode: int | None) -> None:
    """Recover a plain store, write its leader epochs, and close it cleanly: the first step of an adoption.

    Raises InvalidArgumentError if a topic has no settings of segstore, because a Kafka broker made it, if a
    topic has no id, or if staged records can't be appended now. Raises StorageError if the store can't be
    closed cleanly. If a topic or partition can't be opened, raises the error that opening it raises.
    """
    writer = StoreWriter(open_context(root, settings, clock, files, file_mode), settings)
    try:
        for info in writer.topics.values():
            _check_topic(root, info)
        waiting = writer.inbox.waiting()
        if waiting:
            raise InvalidArgumentError(
                f"{root}: what was staged and sealed can't be adopted now: {', '.join(waiting)}; the log "
                "says why"
            )
        write_epochs(files, root, _epochs(writer))
    finally:
        writer.close()
    if read_marker(files, root) is None:
        raise StorageError(None, "the store could not be closed cleanly: `segstore check` says why", root)


def _check_topic(root: str, info: TopicInfo) -> None:
    wrong = info.error or info.lost
    if wrong is not None:
        raise copy_of(wrong)
    if info.ours and not info.topic_id:
        raise InvalidArgumentError(
            f"{root}: topic {info.name!r} has no topic id, since an old broker made it, and replicas "
            "need one: copy its records to a new topic (`segstore export`, `segstore import`)"
        )
    if not info.ours:
        raise InvalidArgumentError(
            f"{root}: topic {info.name!r} is a broker's, and has no settings of segstore's: `alter_topic` "
            "gives it some"
        )


def _epochs(writer: StoreWriter) -> Epochs:
    """Open all partitions of the store, and return the latest leader epoch of each partition."""
    return {
        info.name: {str(n): writer.partition(info.name, n).epochs.current for n in info.partition_ids}
        for info in writer.topics.values()
    }


# --- plain-epochs.json -------------------------------------------------------------------------


def write_epochs(files: Files, root: str, epochs: Epochs) -> None:
    """Write `plain-epochs.json`, durably. Raises OSError."""
    files.write_atomic(_path(root), seal({"version": 1, "epochs": epochs}))


def read_epochs(files: Files, root: str) -> Epochs:
    """Return the leader epochs in `plain-epochs.json`. Raises StorageError, and CorruptCheckpointError if the
    file is damaged or missing.
    """
    path = _path(root)
    try:
        held, checked = unseal(files.read_file(path, _LONGEST))
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise CorruptCheckpointError(path, 0, "it is missing, and the directory has topics") from None
        if isinstance(error, OSError):
            raise unreadable(error, path) from error
        raise CorruptCheckpointError(path, 0, str(error)) from error
    if not checked or held["version"] != 1:
        raise CorruptCheckpointError(path, 0, "it has no checksum, or another version than 1")
    epochs: Epochs = held["epochs"]
    return epochs


def forget_epochs(files: Files, root: str) -> None:
    """Remove `plain-epochs.json`, if it exists. Raises OSError."""
    if files.exists(_path(root)):
        files.unlink(_path(root))
        files.sync_dir(names.below(root, names.OURS))


def _path(root: str) -> str:
    return names.below(root, f"{names.OURS}/{names.PLAIN_EPOCHS}")


# --- the batch of the metadata log -------------------------------------------------------------


class Adopted(NamedTuple):
    """The content of a plain store that becomes the data directory with the broker id `broker`: the topics,
    the leader epochs of the partitions, and `kept`, the metadata records of quotas, credentials, group
    settings and producer ids.
    """

    broker: int
    topics: tuple[TopicInfo, ...]
    epochs: Mapping[PartitionKey, int]
    kept: Sequence[MetadataRecord]

    def decision(self, core: Controller, settings: ReplicationConfig) -> Decision:
        """Return the metadata records of all topics. At first the partitions have no leader. When the broker
        is registered and unfenced, the controller elects its replicas, under new leader epochs (R25).
        """
        records: list[MetadataRecord] = [*self.kept]
        effects: Effects = ()
        for info in self.topics:
            records += [TopicRecord(info.name, info.topic_id), *settings_of(info)]
            for number in info.partition_ids:
                key = PartitionKey(info.name, number)
                made = PartitionDecision(key, self._registration(key))
                core.settings[key] = settings.topic_settings(info)
                core.apply(made)
                effects += (Persist(made),)
        return Decision(records, effects)

    def _registration(self, key: PartitionKey) -> PartitionRegistration:
        replicas = (self.broker,)
        return PartitionRegistration(replicas, replicas, NO_LEADER, leader_epoch=self.epochs[key])


def find_adopted(writers: Mapping[int, StoreWriter]) -> Adopted | None:
    """Return the content of the only directory that has topics, None if no directory has topics. Raises
    CorruptCheckpointError, StorageError.
    """
    for broker, writer in writers.items():
        topics = tuple(info for info in writer.topics.values() if info.name != CLUSTER_METADATA)
        if topics:
            files, root = writer.context.files, writer.context.root
            epochs = dict(_latest(writer, topics, read_epochs(files, root)))
            return Adopted(broker, topics, epochs, records_of_files(files, root))
    return None


def _latest(
    writer: StoreWriter, topics: Iterable[TopicInfo], known: Epochs
) -> Iterable[tuple[PartitionKey, int]]:
    for info in topics:
        for number in info.partition_ids:
            own = writer.partitions.replica(info.name, number).epochs
            before = known.get(info.name, {}).get(str(number), 0)
            yield PartitionKey(info.name, number), max([before, *(epoch for epoch, _ in own)])
