"""Owns the topic `__transaction_state`: a compacted log of what is known of each transactional id.

Partition: Java's hash of the id, modulo the number of partitions (Kafka: TransactionStateManager). The topic
is made when the first id is, with Kafka's settings; a broker's becomes ours with the first write.
Threads: any for `append`; `load` once, before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from segstore.coordinator.java_hash import partition_of
from segstore.coordinator.transaction import schema
from segstore.coordinator.transaction.metadata import TransactionMetadata
from segstore.coordinator.unreadable import Unreadable, warn
from segstore.errors import CorruptRecordError, UnsupportedVersionError
from segstore.mutex import Mutex
from segstore.storage.log.validator import append_one
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

TOPIC = "__transaction_state"


class TransactionStateLog:
    """Reads and writes it; holds nothing of it."""

    def __init__(self, store: Store) -> None:
        self._store, self._making = store, Mutex()
        self._newer: dict[str, str] = {}
        """Why a transactional id can't be used: its last record is of a newer version."""

    def load(self) -> dict[str, TransactionMetadata]:
        """The last of each transactional id that can be read; one warning for each partition with records
        that are passed over. CorruptRecordError, StorageError.
        """
        found: dict[str, TransactionMetadata] = {}
        for log in self._logs():
            unreadable: dict[bytes, Unreadable] = {}
            for transactional_id, metadata in self._records(log, unreadable):
                if metadata is None:
                    found.pop(transactional_id, None)
                else:
                    found[transactional_id] = metadata
            warn(log, "a transaction's", unreadable.values())
            self._keep_newer(unreadable, found)
        return found

    def _keep_newer(
        self, unreadable: Mapping[bytes, Unreadable], found: dict[str, TransactionMetadata]
    ) -> None:
        for key, each in unreadable.items():
            if each.newer:
                name = schema.decode_key(key) or ""
                self._newer[name] = each.reason
                found.pop(name, None)

    def committed(self, producer_ids: Collection[int]) -> set[tuple[int, int]]:
        """Producer id and epoch of each transaction of theirs that was decided to be committed, as far as
        compaction has left that. CorruptRecordError, StorageError.
        """
        each = (metadata for log in self._logs() for _, metadata in self._records(log, {}))
        told = {metadata.committed for metadata in each if metadata is not None}
        return {each for each in told if each is not None and each[0] in producer_ids}

    def _logs(self) -> Iterator[PartitionLog]:
        info = self._store.topics().get(TOPIC)
        for partition in () if info is None else info.partition_ids:
            yield self._store.partition(TOPIC, partition)

    def _records(
        self, log: PartitionLog, unreadable: dict[bytes, Unreadable]
    ) -> Iterator[tuple[str, TransactionMetadata | None]]:
        """In order. `unreadable` has those that can't be read, by key, unless a later one of the key can."""
        offset, end = log.start_offset, log.end_offset
        while offset < end:
            records = log.read(offset)
            for record in records:
                key = record.key or b""
                try:
                    made = schema.decode(key, record.value, log._name, record.offset)
                except UnsupportedVersionError as error:
                    unreadable[key] = Unreadable(record.offset, str(error), newer=True)
                except CorruptRecordError as error:
                    unreadable[key] = Unreadable(record.offset, str(error.__cause__))
                else:
                    unreadable.pop(key, None)
                    if made is not None:
                        yield made
            offset = records.next_offset

    def unreadable(self, log: PartitionLog) -> list[Unreadable]:
        """Of one partition. CorruptRecordError, StorageError."""
        found: dict[bytes, Unreadable] = {}
        for _ in self._records(log, found):
            pass
        return list(found.values())

    def append(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        """Write what is known now; None: the id is forgotten. StorageError: nothing was written.
        UnsupportedVersionError where that would overwrite a record of a newer version.
        """
        if transactional_id in self._newer:
            raise UnsupportedVersionError(
                f"transactional_id {transactional_id!r}: its last record is not understood: "
                f"{self._newer[transactional_id]}"
            )
        value = None if metadata is None else schema.encode_value(metadata)
        log = self._log(transactional_id)._writing()
        append_one(log, value, schema.encode_key(transactional_id), (), None)

    def sync(self, transactional_id: str) -> None:
        """Make what was written of it durable. StorageError."""
        self._log(transactional_id).flush()

    def epoch(self, transactional_id: str) -> int:
        """The coordinator's epoch: the leader epoch of the id's partition."""
        return self._log(transactional_id)._writing().writer.epoch

    def _log(self, transactional_id: str) -> PartitionLog:
        info = self._store.topics().get(TOPIC)
        if info is None or not info.ours:
            info = self._make()
        return self._store.partition(TOPIC, partition_of(transactional_id, info.partitions))

    def _make(self) -> TopicInfo:
        with self._making:
            info = self._store.topics().get(TOPIC)
            if info is not None and info.ours:
                return info  # another thread has made it
            return self._make_ours(new=info is None)

    def _make_ours(self, *, new: bool) -> TopicInfo:
        config = self._store._writer().config
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": config.transaction_state_log_segment_bytes,
        }
        if new:
            return self._store._create_topic(TOPIC, config.transaction_state_log_num_partitions, settings)
        return self._store._alter_topic(TOPIC, settings)
