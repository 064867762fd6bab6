"""`ProducerIds`: allocates producer ids, in blocks of 1,000.

On disk: `storage.store.kept_files` stores the first id after the last block. This id is made durable before
the first id of the block is used (Kafka: ProducerIdManager). If the file that has this id is missing or
damaged, new ids are larger than the largest id in any partition or transaction. If new ids were smaller, two
producers could have the same id, and their batches would count as duplicates. Threads: any; one lock.
"""

from __future__ import annotations

from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.errors import SegstoreError, StorageError
from segstore.integers import INT64_MAX
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.context import os_errors
from segstore.storage.log import transaction_markers
from segstore.storage.store.store import Store

log = Logger("segstore")

BLOCK = 1000
_LAST = INT64_MAX - BLOCK


class ProducerIds:
    """Allocates producer ids that no producer had before. A store has one `ProducerIds`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Mutex()
        self._next = self._end = 0

    def next(self, above: int = -1) -> int:
        """Return a new producer id, larger than `above`. Raises StorageError, after which a retry
        may help.
        """
        with self._lock:
            if self._next == self._end or self._next <= above:
                self._take_block(above)
            self._next += 1
            return self._next - 1

    def close(self) -> None:
        """Do nothing: the ids that are left in the block are never used."""

    def _take_block(self, above: int) -> None:
        kept = self._store.writer().kept
        with os_errors():
            first = kept.producer_id()
            if first is None:
                # `_end` counts too, because ids that this process has allocated may be in no log yet.
                above, first = max(above, self._known(), self._end - 1), 0
            if above >= first:
                first = (above // BLOCK + 1) * BLOCK
            if first > _LAST:
                raise StorageError(f"there is no producer id above {above}")
            kept.set_producer_id(first + BLOCK)
        self._next, self._end = first, first + BLOCK

    def _known(self) -> int:
        """Return the largest producer id in any log, or -1 if there is none."""
        found = [-1]
        for topic, info in self._store.topics().items():
            for partition in info.partition_ids:
                try:
                    found.append(transaction_markers.max_producer_id(self._store.partition(topic, partition)))
                except StorageError:
                    raise
                except SegstoreError as error:  # the partition is skipped: appends to it raise `error`, too
                    log.warning("producer ids of %s-%d are not known: %s", topic, partition, error)
        for known in TransactionStateLog(self._store).load().values():
            found += [known.producer_id, known.previous_producer_id, known.next_producer_id]
        return max(found)
