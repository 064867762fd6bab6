"""How a partition's transactions ended: for who reads the log as it is and judges the records himself.

On disk: reads the control batches of the logs, through `transactions`. Threads: any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from segstore.records import TRANSACTIONAL_FLAG, Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.storage.store.partition_log import PartitionLog

COMMITTED, ABORTED, OPEN = range(3)


class Outcomes(NamedTuple):
    """`aborted`: a row for each AbortedTxn, by last offset; `ongoing`: of each producer with an open
    transaction, where it began.
    """

    aborted: NDArray[np.int64]
    ongoing: dict[int, int]

    def of(self, records: Records) -> NDArray[np.int8]:
        """For each record COMMITTED, which records outside of transactions are too, ABORTED or OPEN."""
        batches = records.batches
        found = np.full(len(batches), COMMITTED, np.int8)
        if not (batches["attributes"] & TRANSACTIONAL_FLAG).any():
            return found[records.batch_indexes()]
        inside = (batches["attributes"] & TRANSACTIONAL_FLAG) != 0
        bases, producers = batches["base_offset"], batches["producer_id"]
        for producer_id, first in self.ongoing.items():
            found[inside & (producers == producer_id) & (bases >= first)] = OPEN
        near = (self.aborted[:, 2] >= bases[0]) & (self.aborted[:, 1] <= batches["last_offset"][-1])
        for producer_id, first, last, _ in self.aborted[near].tolist():
            found[inside & (producers == producer_id) & (bases >= first) & (bases <= last)] = ABORTED
        return found[records.batch_indexes()]


def outcomes(log: PartitionLog) -> Outcomes:
    """As of the log's present end. StorageError, CorruptRecordError."""
    found: Outcomes = log._with_view(log._aborted.outcomes)
    return found
