"""`ProducerIds`: hands out producer ids; owns `.segstore/producer-ids`, up to where they were handed out,
in blocks of 1,000.

On disk: the file, in the form of `storage.meta.producer_id_file`, has the first id that no block has. It is
written and synced before the first id of a block is used (Kafka: ProducerIdManager). Where the file is
missing or damaged, ids go on above all that any partition or transaction knows: two producers with one id
would take each other's batches for duplicates. Threads: any; one lock.
"""

from __future__ import annotations

from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.errors import SegstoreError, StorageError
from segstore.integers import INT64_MAX
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
_LAST = INT64_MAX - BLOCK


class ProducerIds:
    """Hands out producer ids that no producer had before; a store has one."""

    def __init__(self, store: Store) -> None:
        self._store, self._files = store, store._context.files
        self._lock = Mutex()
        self._next = self._end = 0

    def next(self, above: int = -1) -> int:
        """Return a new producer id, above `above`. Raises StorageError, after which a retry may help."""
        with self._lock:
            if self._next == self._end or self._next <= above:
                self._take_block(above)
            self._next += 1
            return self._next - 1

    def close(self) -> None:
        """Drop the rest of the block, which is never used."""

    def _take_block(self, above: int) -> None:
        with os_errors():
            first = read_producer_id(self._files, self._store.path)
            if first is None:
                # Ids that were handed out in this process may be in no log yet.
                above, first = max(above, self._known(), self._end - 1), 0
            if above >= first:
                first = (above // BLOCK + 1) * BLOCK
            if first > _LAST:
                raise StorageError(f"there is no producer id above {above}")
            self._make_way()
            write_producer_id(self._files, self._store.path, first + BLOCK)
        self._next, self._end = first, first + BLOCK

    def _make_way(self) -> None:
        """Move aside a file that was damaged since the store was opened, and log that. Raises OSError."""
        wrong, context = damage(self._files, self._store.path), self._store._context
        if wrong:
            path = producer_id_path(self._store.path)
            context.tell(path, wrong, f"made anew{context.make_way(path)}")

    def _known(self) -> int:
        """Return the largest producer id in the logs."""
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
