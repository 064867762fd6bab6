"""Owns `.segstore/producer-ids`: up to where producer ids were handed out, in blocks of 1,000.

Its form is `storage.producer_id_file`'s; it has the first id that no block has. It is written and synced
before the first id of a block is used (Kafka: ProducerIdManager). Where it is missing, or is no such line,
ids go on above all that any partition or transaction knows: two producers with one id would take each
other's batches for duplicates. Threads: any; one lock.
"""

from __future__ import annotations

from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.errors import SegstoreError, StorageError
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.context import os_errors
from segstore.storage.log import transaction_markers
from segstore.storage.meta.producer_id_file import (
    damage,
    producer_id_path,
    read_producer_id,
    write_producer_id,
)
from segstore.storage.store.store import Store

log = Logger("segstore")

BLOCK = 1000
_LAST = (1 << 63) - 1 - BLOCK


class ProducerIds:
    """Producer ids that nobody had before; one of these a store."""

    def __init__(self, store: Store) -> None:
        self._store, self._files = store, store._context.files
        self._lock = Mutex()
        self._next = self._end = 0

    def next(self, above: int = -1) -> int:
        """A new producer id, larger than `above`. StorageError: none was given, asking again may help."""
        with self._lock:
            if self._next == self._end or self._next <= above:
                self._take_block(above)
            self._next += 1
            return self._next - 1

    def close(self) -> None:
        """What is left of the block is not used."""

    def _take_block(self, above: int) -> None:
        with os_errors():
            first = read_producer_id(self._files, self._store.path)
            if first is None:
                # What was handed out here may be in no log yet.
                above, first = max(above, self._known(), self._end - 1), 0
            if above >= first:
                first = (above // BLOCK + 1) * BLOCK
            if first > _LAST:
                raise StorageError(f"there is no producer id above {above}")
            self._make_way()
            write_producer_id(self._files, self._store.path, first + BLOCK)
        self._next, self._end = first, first + BLOCK

    def _make_way(self) -> None:
        """The file may have been damaged since the store was opened: that is told. OSError."""
        wrong, context = damage(self._files, self._store.path), self._store._context
        if wrong:
            path = producer_id_path(self._store.path)
            context.tell(path, wrong, f"made anew{context.make_way(path)}")

    def _known(self) -> int:
        """The largest id that the logs know."""
        found = [-1]
        for topic, info in self._store.topics().items():
            for partition in info.partition_ids:
                try:
                    found.append(transaction_markers.max_producer_id(self._store.partition(topic, partition)))
                except StorageError:
                    raise
                except SegstoreError as error:  # nobody can write there either
                    log.warning("producer ids of %s-%d are not known: %s", topic, partition, error)
        for known in TransactionStateLog(self._store).load().values():
            found += [known.producer_id, known.previous_producer_id, known.next_producer_id]
        return max(found)
