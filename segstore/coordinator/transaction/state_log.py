"""`TransactionStateLog` and `Entries`: the state of each transactional id, on disk and in memory.

On disk: owns the topic `__transaction_state`, compacted. An id's partition is Java's hash of the id, modulo
the number of partitions (Kafka: TransactionStateManager). The topic is created for the first id, with Kafka's
settings. A topic that a broker has created gets these settings at the first write.
Threads: any for `append`; `load` is called once, before the first `append`. Each `TransactionEntry` has a
lock of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from functools import partial

from segstore.coordinator.java_hash import partition_among
from segstore.coordinator.loader import UnreadableRecord, committed, load_last, warn
from segstore.coordinator.transaction import schema
from segstore.coordinator.transaction.metadata import TransactionMetadata, TransactionState
from segstore.errors import (
    CorruptRecordError,
    InvalidPidMappingError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionalIdNotFoundError,
    UnsupportedVersionError,
)
from segstore.mutex import Mutex
from segstore.storage.log.append import append_record
from segstore.storage.meta.topic_info import MADE_WITH, TRANSACTION_STATE
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.scans.scan import reads
from segstore.storage.store.last_records import LastRecord
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

TOPIC = TRANSACTION_STATE


class States:
    """The last state of each transactional id. `newer` maps each id whose last record has a newer version to
    the error's text; the ids in `newer` can't be used.
    """

    def __init__(self) -> None:
        self.known: dict[str, TransactionMetadata] = {}
        self.newer: dict[str, str] = {}

    def replay(
        self, where: str, key: bytes, record: LastRecord, producer_id: int | None = None
    ) -> UnreadableRecord | None:
        """Apply a record; return an UnreadableRecord if the record can't be decoded, else None."""
        try:
            made = schema.decode(key, record.value, where, record.at)
        except UnsupportedVersionError as error:
            name = schema.decode_key(key) or ""
            self.newer[name] = str(error)
            self.known.pop(name, None)
            return UnreadableRecord(record.at, str(error), newer=True)
        except CorruptRecordError as error:
            return UnreadableRecord(record.at, str(error.__cause__))
        if made is not None:
            self._put(*made)
        return None

    def _put(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        if metadata is None:
            self.known.pop(transactional_id, None)
        else:
            self.known[transactional_id] = metadata


def _judge(where: str, key: bytes, record: LastRecord, producer_id: int | None) -> UnreadableRecord | None:
    return States().replay(where, key, record, producer_id)


def _load(log: PartitionLog, states: States) -> list[UnreadableRecord]:
    return load_last(log, partial(states.replay, log._name), partial(_judge, log._name))


class TransactionStateLog:
    """Reads and writes the topic `__transaction_state`; keeps no states in memory."""

    def __init__(self, store: Store) -> None:
        self._store, self._making = store, Mutex()
        self._logs_by_id: dict[str, PartitionLog] = {}
        """The partition log that has the state of each transactional id, by id."""
        self._newer: dict[str, str] = {}
        """Maps each transactional id whose last record has a newer version to the error's text. Such an id
        can't be used.
        """

    def load(self) -> dict[str, TransactionMetadata]:
        """Return the last state of each transactional id; log one warning for each partition with records
        that are skipped. Raises CorruptRecordError, StorageError, and OffsetNotAvailableError if a replicated
        log does not show all committed records yet.
        """
        states = States()
        for log in self._logs():
            junk = committed(log, log.await_committed, partial(_load, log, states))
            warn(log, "a transaction's", junk)
        self._newer |= states.newer
        return states.known

    def unreadable(self, log: PartitionLog) -> list[UnreadableRecord]:
        """Return each record of one partition that is the latest of its key and can't be decoded. Raises
        CorruptRecordError, StorageError.
        """
        return _load(log, States())

    def committed(self, producer_ids: Collection[int]) -> set[tuple[int, int]]:
        """Return (producer id, epoch) of each transaction of these producers that was committed, except if
        compaction has removed its records. Raises CorruptRecordError, StorageError.
        """
        commits = {metadata.committed for log in self._logs() for metadata in _all_states(log)}
        return {each for each in commits if each is not None and each[0] in producer_ids}

    def decided(self, producer_ids: Collection[int]) -> Iterator[TransactionMetadata]:
        """Yield the states PrepareCommit and PrepareAbort of these producers' transactions, in the order of
        the log, except states that compaction has removed. Raises CorruptRecordError, StorageError.
        """
        for log in self._logs():
            for m in _all_states(log):
                if m.producer_id in producer_ids and m.state.prepared:
                    yield m

    def _logs(self) -> Iterator[PartitionLog]:
        info = self._store.topics().get(TOPIC)
        for partition in () if info is None else info.partition_ids:
            yield self._store.partition(TOPIC, partition)

    def append(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        """Write a state; None writes a tombstone. Raises UnsupportedVersionError if the state would overwrite
        a record of a newer version. If StorageError is raised, nothing was written.
        """
        if transactional_id in self._newer:
            raise UnsupportedVersionError(
                f"transactional_id {transactional_id!r}: its last record is not understood: "
                f"{self._newer[transactional_id]}"
            )
        value = None if metadata is None else schema.encode_value(metadata)
        log, now = self._log(transactional_id), self._store.context.clock()
        headers = () if metadata is None else schema.encode_headers(metadata)
        key = schema.encode_key(transactional_id)
        try:
            append_record(log, value, key, headers, now)
        except RecordTooLargeError:
            if not headers:
                raise
            # The headers make the record too large. The transaction can be completed without them.
            append_record(log, value, key, (), now)
        if metadata is None:
            self._logs_by_id.pop(transactional_id, None)

    def sync(self, transactional_id: str) -> None:
        """Make the id's states durable. Raises StorageError."""
        self._log(transactional_id).flush()

    def epoch(self, transactional_id: str) -> int:
        """Return the coordinator's epoch: the leader epoch of the id's partition."""
        return self._log(transactional_id).partition_for_write().writer.epoch

    def _log(self, transactional_id: str) -> PartitionLog:
        log = self._logs_by_id.get(transactional_id)
        if log is None or log.is_gone:
            log = self._logs_by_id[transactional_id] = self._open(transactional_id)
        return log

    def _open(self, transactional_id: str) -> PartitionLog:
        info = self._store.topics().get(TOPIC)
        if info is None or not info.ours:
            info = self._make()
        count = self._store.writer().config.transaction_state_log_num_partitions
        return self._store.partition(TOPIC, partition_among(transactional_id, info.partition_ids, count))

    def _make(self) -> TopicInfo:
        with self._making:
            info = self._store.topics().get(TOPIC)
            if info is not None and info.ours:
                return info  # another thread has created the topic
            return self._make_ours(new=info is None)

    def _make_ours(self, *, new: bool) -> TopicInfo:
        config = self._store.writer().config
        settings = {**MADE_WITH[TOPIC], "segment.bytes": config.transaction_state_log_segment_bytes}
        if new:
            return self._store.own_topic(TOPIC, config.transaction_state_log_num_partitions, settings)
        return self._store._alter_topic(TOPIC, settings)


def _all_states(log: PartitionLog) -> Iterator[TransactionMetadata]:
    """Yield the states of all records that can be decoded, even if a later record of the same key replaces
    them.
    """
    for records in reads(log, log.start_offset, log.end_offset):
        for record in records:
            with contextlib.suppress(UnsupportedVersionError, CorruptRecordError):
                made = schema.decode(record.key, record.value, log._name, record.offset)
                if made is not None and made[1] is not None:
                    yield made[1]._replace(begins=schema.decode_begins(made[1], record.headers))


# --- entries -----------------------------------------------------------------------------------

# `Entries` has the state of each transactional id in memory, with a lock for each id (Kafka:
# TransactionStateManager). Memory equals the log. A write that timed out counts as failed, although replicas
# may commit it later: the state of that write is never used, and the id's next record replaces it.
# Threads: any. A thread that reads or changes an entry holds the entry's lock; `locked` acquires it. The lock
# of the table is held only while an entry is looked up, added or removed.

Identity = tuple[int, int]
"""A producer's identity: (producer id, epoch)."""


class TransactionEntry:
    """One transactional id; `metadata` is the state in the log, or None if the id has no record yet.

    `orphan` is True if an ongoing transaction must be aborted: the producer's process has ended, or the
    transaction has been open for too long. `last` is the identity that the current producer had before its
    present epoch. The producer may still use the `last` identity if it missed the answer to its last request,
    or does not know that its transaction timed out (Kafka: lastProducerEpoch).
    """

    __slots__ = ("last", "lock", "metadata", "orphan", "transactional_id")

    def __init__(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        self.transactional_id, self.metadata = transactional_id, metadata
        self.orphan = metadata is not None and not metadata.remote
        self.last = None if metadata is None else metadata.last_ended
        self.lock = Mutex()

    @property
    def known(self) -> TransactionMetadata:
        """Return `metadata`, which must not be None."""
        assert self.metadata is not None
        return self.metadata

    def has_ended(self, identity: Identity) -> bool:
        """Return whether the last transaction that was committed or aborted was a transaction of the producer
        `identity`.
        """
        return self.metadata is not None and self.metadata.last_ended == identity

    def check(self, identity: Identity) -> TransactionMetadata:
        """Return the state. Raises TransactionalIdNotFoundError if the id has no record yet,
        InvalidPidMappingError if the producer id of `identity` is not the current one, and
        ProducerFencedError if the epoch of `identity` is not the current one.
        """
        if self.metadata is None:
            raise TransactionalIdNotFoundError(f"transactional_id {self.transactional_id!r} has no producer")
        known = self.metadata
        if (known.producer_id, known.producer_epoch) != identity:
            kind = ProducerFencedError if known.producer_id == identity[0] else InvalidPidMappingError
            raise kind(
                f"producer {identity[0]} of epoch {identity[1]} is fenced: {self.transactional_id!r} "
                f"has gone on to producer {known.producer_id} of epoch {known.producer_epoch}"
            )
        return known


class Entries:
    """All transactional ids of a store, initialized with the loaded states."""

    def __init__(self, log: TransactionStateLog, loaded: Mapping[str, TransactionMetadata]) -> None:
        self._log, self._lock = log, Mutex()
        self._entries = {name: TransactionEntry(name, metadata) for name, metadata in loaded.items()}

    @contextlib.contextmanager
    def locked(self, transactional_id: str, make: bool = False) -> Iterator[TransactionEntry]:
        """Run a block with the entry of the id. No other thread reads or changes the entry during the block.
        If the entry is missing and `make` is True, create it; if `make` is False, raise
        TransactionalIdNotFoundError.
        """
        while True:
            with self._lock:
                entry = self._entries.get(transactional_id)
                if entry is None:
                    if not make:
                        raise TransactionalIdNotFoundError(
                            f"there is no transactional_id {transactional_id!r}: it may have expired"
                        )
                    entry = self._entries[transactional_id] = TransactionEntry(transactional_id, None)
            with entry.lock:
                if self._entries.get(transactional_id) is entry:  # False if the id expired during the wait
                    yield entry
                    return

    def may_be_decided(self, transactional_id: str) -> bool:
        """Return whether the transaction may be in PrepareCommit or PrepareAbort. Takes no lock."""
        entry = self._entries.get(transactional_id)
        return entry is None or entry.metadata is None or entry.metadata.state.prepared

    def all(self) -> list[TransactionEntry]:
        """Return the present entries. None of their locks is acquired."""
        with self._lock:
            return list(self._entries.values())

    # --- with the entry's lock held -------------------------------------------------------

    def write(
        self, entry: TransactionEntry, metadata: TransactionMetadata, requester: Identity | None = None
    ) -> None:
        """Write a state to the log, then to memory, so that a failed write changes nothing. `requester` is
        the identity that this state replaces; the producer may repeat its request under this identity.
        """
        self._log.append(entry.transactional_id, metadata)
        entry.metadata, entry.orphan = metadata, False
        if metadata.state not in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            entry.last = requester  # producers with earlier identities may no longer repeat a request

    def sync(self, entry: TransactionEntry) -> None:
        """Make the entry's states durable against power loss. Raises StorageError."""
        self._log.sync(entry.transactional_id)

    def forget(self, entry: TransactionEntry, now: int) -> None:
        """Remove an expired id from the log and from memory."""
        self._log.append(entry.transactional_id, None)
        entry.metadata = entry.known.expired(now)
        with self._lock:
            self._entries.pop(entry.transactional_id, None)
