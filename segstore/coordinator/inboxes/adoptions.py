"""`Adoptions`: adopts a manifest in a replicated store, as a transaction.

1. The manifest's id is looked up among the adopted ids. If it is new, topics, partitions and every staged
file are checked.
2. A producer is initialized with a transactional id made of the manifest's id. The initialization fences an
earlier attempt that died or hangs, and aborts the earlier attempt's transaction (KIP-98). If the earlier
attempt may have been committed, the ids are read again.
3. The batches are appended to the leaders with acks="all", with the producer's id and sequences.
4. The id is written into `__segstore_adopted`, in the same transaction. All in-sync replicas sync the records
and the id.
5. The transaction is committed. If the process crashes before the commit is in `__transaction_state`, the
next attempt or the next open of the store aborts the transaction. If the process crashes later, the next
attempt or the next open completes the transaction.
6. The markers are written, and become visible in all partitions at once. Then the markers are synced.

So the records and the id are committed together, whichever replica leads. Aborted records stay in the logs,
as in Kafka; read_committed readers skip them.

On disk: the partitions, through their leaders. Staged files are read outside of all locks, so a directory
that hangs stops only its own inbox. Threads: any.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from segstore._native import lib
from segstore.arrays import np
from segstore.coordinator.inboxes.adopted_topic import PARTITION, AdoptedTopic
from segstore.coordinator.java_hash import partition_among
from segstore.coordinator.retriable import passes
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.state_log import Identity
from segstore.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    NotLeaderOrFollowerError,
    SegstoreError,
    StagedFilesError,
    StorageError,
    StoreClosedError,
    TransactionalIdNotFoundError,
)
from segstore.files.reserve import NO_ROOM
from segstore.integers import INT64_MAX
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.records import TRANSACTIONAL_FLAG, Encoded, Template
from segstore.records.encoded import checked
from segstore.replication.replicated_writer import ReplicatedWriter
from segstore.storage.inbox.adopt import check_staged
from segstore.storage.inbox.known_ids import Adoption, check_again
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import Manifest
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.inbox.verify import chunks_of, open_staged, verify
from segstore.storage.log.append import append
from segstore.storage.meta.topic_info import ADOPTED, TRANSACTION_STATE
from segstore.storage.producers.append_info import claim_of
from segstore.storage.producers.producer_state import SEQUENCES
from segstore.threads import Latch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.storage.store.partition_log import PartitionLog
    from segstore.storage.store.store import Store

log = Logger("segstore")

TRANSACTIONAL_ID = "__segstore_adopted/"
"""The prefix of the transactional id of an adoption; the manifest's id follows."""
PATIENCE = 20.0
"""Seconds for which an adoption is tried again while leaders are elected, or while an earlier transaction is
being completed.
"""
PAUSE = 0.05
TAKE_OVER = 30.0
"""Seconds that an adoption waits for an earlier adoption of the same id. After this time the earlier adoption
counts as hanging, and is fenced.
"""

_FENCED = (InvalidProducerEpochError, TransactionalIdNotFoundError, InvalidTxnStateError)


def _moves(error: Exception) -> bool:
    """Return whether a retry may help. `error` is then a temporary failure of a disk, the loss of a leader,
    or an earlier transaction that is being completed.
    """
    if isinstance(error, StorageError):  # an OSError of a staged file is no StorageError, and is not retried
        return passes(error) and error.errno not in NO_ROOM
    return isinstance(error, NotLeaderOrFollowerError | ConcurrentTransactionsError)


def side_of(store: Store) -> ReplicatedWriter:
    """Return the writer of a replicated store. Raises StoreClosedError."""
    side = store.writer()
    assert isinstance(side, ReplicatedWriter)
    return side


class FencedAdoptionError(ConcurrentTransactionsError):
    """An adoption was fenced by another adoption of the same id. The fenced adoption is not retried at
    once.
    """


class Adoptions:
    """Adopts manifests: appends the batches of a manifest's staged files in one transaction. A store has one
    `Adoptions`.
    """

    def __init__(self, store: Store) -> None:
        """Read the adopted ids. Raises CorruptRecordError, StorageError, NotLeaderOrFollowerError."""
        self._store = store
        if ADOPTED in store.topics():
            # The coordinator aborts transactions of earlier processes when it starts.
            shared(store, TransactionCoordinator)
        self.ids = AdoptedTopic(store)
        self._lock, self._over = Mutex(), Latch()
        self._under_way: dict[str, Latch] = {}
        self._unsettled: dict[str, Adoption] = {}
        """Committed adoptions, by id, whose records may not be visible or durable yet."""

    def close(self) -> None:
        """Stop the retries of adoptions."""
        self._over.open()

    # --- attempts -------------------------------------------------------------------------------

    def adopt(self, folder: Folder, manifest: Manifest) -> Adoption:
        """Adopt a manifest: append the batches of its staged files, which are in the inbox `folder`, unless
        an earlier call has done so. Return the adoption when its records are visible, and durable on all
        in-sync replicas.

        Raises UnknownTopicOrPartitionError, StagedFilesError, RecordTooLargeError, InvalidRecordError,
        OffsetsExhaustedError or IdempotencyConflictError if the manifest can never be adopted. Raises other
        errors if it can't be adopted now.
        """
        until = time.monotonic() + PATIENCE
        with self._alone(manifest.id):
            while True:
                try:
                    return self._attempt(folder, manifest)
                except FencedAdoptionError:
                    raise
                except (SegstoreError, OSError) as error:
                    if not _moves(error) or time.monotonic() >= until or self._over.wait(PAUSE):
                        raise
                    log.info("%r is adopted again: %s", manifest.id, error)

    @contextmanager
    def _alone(self, id_: str) -> Iterator[None]:
        """Wait until no other thread adopts this id, for at most TAKE_OVER seconds, and then run a block."""
        mine, until = Latch(), time.monotonic() + TAKE_OVER
        while (other := self._under_way.setdefault(id_, mine)) is not mine:
            if not other.wait(max(until - time.monotonic(), 0.0)):
                self._under_way[id_] = mine  # the earlier attempt hangs: `begin` fences its transaction
        try:
            yield
        finally:
            if self._under_way.get(id_) is mine:
                del self._under_way[id_]
            mine.open()

    def _attempt(self, folder: Folder, manifest: Manifest) -> Adoption:
        if self._over.is_open:
            raise StoreClosedError(f"{self._store.path} is being closed")
        transaction = _Transaction(self._store, manifest.id)
        known = self.ids.find(manifest.id)
        if known is None:
            by_partition = self._checked(folder, manifest)
            with transaction.fenced():
                transaction.begin()
                known = self._again(manifest.id)
                if known is None:
                    known = self._run(transaction, folder, manifest, by_partition)
        self._settle(transaction, known)
        check_again(known, manifest.records, manifest.source)
        return known

    def _again(self, id_: str) -> Adoption | None:
        """Return the adoption of the manifest with this id, or None if it was not adopted. Called after
        earlier attempts were fenced.
        """
        with self._lock:
            # An earlier attempt may have been committed before it was fenced. No earlier attempt can be
            # committed after this load.
            if self.ids.in_doubt:
                self.ids.load(self._store)
            return self.ids.find(id_)

    def _checked(self, folder: Folder, manifest: Manifest) -> dict[TopicPartition, list[StagedFile]]:
        topics, found = self._store.writer().topics, dict[TopicPartition, list[StagedFile]]()
        for file in manifest.files:
            check_staged(folder, topics, file)
            config = topics[file.topic].settings
            verify(folder.files, folder.staged(file), file, config, INT64_MAX)
            found.setdefault(TopicPartition(file.topic, file.partition), []).append(file)
        return dict(sorted(found.items()))

    def _run(
        self,
        transaction: _Transaction,
        folder: Folder,
        manifest: Manifest,
        by_partition: Mapping[TopicPartition, list[StagedFile]],
    ) -> Adoption:
        """Append the batches and the id, commit, and return the adoption. If this fails before the commit,
        abort the transaction.
        """
        store, ids = self._store, self.ids
        spans: dict[tuple[str, int], tuple[int, int]] = {}
        try:
            logs = {at: store.partition(*at) for at in by_partition}
            own = TopicPartition(ADOPTED, PARTITION)
            ids.log(store)
            transaction.add([*logs, own])
            for at, part in logs.items():
                spans[at.topic, at.partition] = _append(transaction, folder, part, by_partition[at])
            spanned = sum(end - first for first, end in spans.values())
            others = spanned - manifest.records
            adoption = Adoption(manifest.id, store.context.clock(), spans, others, manifest.source)
            with self._lock:
                records = ids.records(adoption)
            with transaction.appending(own) as template:
                ids.write(store, records, template)
            side_of(store).sync([*logs, own])
        except BaseException:
            transaction.abort()
            raise
        try:
            transaction.commit()
        except BaseException:
            # The commit may have been written. If so, the next attempt, or the next open of the store,
            # completes the transaction.
            ids.in_doubt = True
            raise
        with self._lock:
            self._unsettled[adoption.id] = adoption
            ids.keep(adoption)
        return adoption

    def _settle(self, transaction: _Transaction, adoption: Adoption) -> None:
        """Write and sync the transaction's markers, unless they are already synced."""
        if adoption.id not in self._unsettled:
            return
        transaction.complete()
        partitions = [at for at in adoption.offsets if at[0] in self._store.topics()]
        side_of(self._store).sync([*partitions, (ADOPTED, PARTITION), transaction.state])
        self._unsettled.pop(adoption.id, None)


class _Transaction:
    """The transaction of one attempt to adopt a manifest."""

    def __init__(self, store: Store, id_: str) -> None:
        self._store, self._id = store, TRANSACTIONAL_ID + id_
        self._identity: Identity = (-1, -1)

    @property
    def _coordinator(self) -> TransactionCoordinator:
        return shared(self._store, TransactionCoordinator)

    @property
    def state(self) -> tuple[str, int]:
        """Return (topic, partition) of the `__transaction_state` partition that has this
        transaction's state.
        """
        ids = self._store.topics()[TRANSACTION_STATE].partition_ids
        count = self._store.writer().config.transaction_state_log_num_partitions
        return TRANSACTION_STATE, partition_among(self._id, ids, count)

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """Run a block. If it raises one of the errors _FENCED, raise FencedAdoptionError in its place."""
        try:
            yield
        except _FENCED as error:
            raise FencedAdoptionError(f"another one adopts the same id: {error}") from error

    def begin(self) -> None:
        """If a transaction of the id is open, abort it. Get a producer epoch that fences all earlier
        producers of the id. Raises StorageError, and ConcurrentTransactionsError if the transaction can't be
        aborted yet.
        """
        longest = self._store.writer().config.transaction_max_timeout_ms
        self._identity = self._coordinator.init_producer_id(self._id, longest)

    def add(self, partitions: list[TopicPartition]) -> None:
        """Add partitions to the transaction."""
        self._coordinator.add_partitions(self._id, self._identity, partitions)

    @contextmanager
    def appending(self, at: TopicPartition) -> Iterator[Template]:
        """Run a block, which may append records with the yielded template. The transaction can't be committed
        or aborted during the block.
        """
        with self._coordinator.appending(self._id, self._identity, [at]):
            yield Template(TRANSACTIONAL_FLAG, *self._identity, 0)

    def commit(self) -> None:
        """Commit the transaction. When this returns, `__transaction_state` has the commit. After an error the
        outcome is unknown.
        """
        self._coordinator.end(self._id, self._identity, True)

    def complete(self) -> None:
        """Write the missing markers. Raises ConcurrentTransactionsError if the markers can't be written
        now.
        """
        with suppress(TransactionalIdNotFoundError):  # the id has expired, so the transaction was complete
            self._coordinator.complete(self._id)

    def abort(self) -> None:
        """Abort the transaction. If this fails, the next attempt aborts the transaction, or the coordinator
        does so after the transaction's timeout.
        """
        try:
            self._coordinator.end(self._id, self._identity, False)
        except (SegstoreError, OSError) as error:
            log.info("%r is aborted later: %s", self._id, error)


# --- batches -----------------------------------------------------------------------------------


def _append(
    transaction: _Transaction, folder: Folder, to: PartitionLog, files: list[StagedFile]
) -> tuple[int, int]:
    """Append the batches in the files to the partition's leader, in chunks of some megabytes; return (first
    offset, end offset).
    """
    at, first, end, sequence = TopicPartition(to.topic, to.partition), -1, -1, 0
    for file in files:
        # All in-sync replicas have a chunk before the next chunk is appended, so that a new leader has all
        # earlier chunks.
        for buffer, batches, size in _chunks(folder, file):
            with transaction.appending(at) as template:
                template = template._replace(base_sequence=sequence)
                chunk, records = _with_producer(buffer, batches, size, template), int(batches["count"].sum())
                written = append(to.partition_for_write(), [chunk], records, claim_of(template, True))
            first = written if first < 0 else first
            end, sequence = written + records, (sequence + records) % SEQUENCES
    return first, end


def _chunks(folder: Folder, file: StagedFile) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.void], int]]:
    """Yield (buffer with whole batches, their headers, size in bytes) for each chunk of a file. Raises
    StagedFilesError, OSError.
    """
    path, done = folder.staged(file), 0
    with open_staged(folder.files, path) as handle:
        # The CRCs are checked here, because the caller changes the batches.
        for buffer, batches, size in chunks_of(folder.files, handle, file.size, check_crcs=True):
            yield buffer, batches, size
            done += size
    if done != file.size:
        raise StagedFilesError(f"{path}: the batch at byte {done} is damaged, or none")


def _with_producer(
    buffer: NDArray[np.uint8], batches: NDArray[np.void], size: int, template: Template
) -> Encoded:
    """Return the batches with the producer's id, epoch and sequences in their headers, and with new CRCs."""
    starts = np.concatenate(([0], np.cumsum(batches["count"], dtype=np.int64)[:-1]))
    batches["producer_id"], batches["producer_epoch"] = template.producer_id, template.producer_epoch
    batches["base_sequence"] = (template.base_sequence + starts) % SEQUENCES
    batches["attributes"] |= template.attributes
    encoded = Encoded(buffer, size, batches)
    encoded.pooled = False  # the file's next chunk is read into this buffer, so the pool must not get it
    at = 0
    for number in range(len(batches)):
        checked(lib.seg_seal(encoded.ptr + at, size - at, encoded.headers + number))
        at += int(batches["size"][number])
    return encoded
