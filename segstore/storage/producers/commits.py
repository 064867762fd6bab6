"""Which transactions a partition's markers tell to be committed: what a power cut left of a decision.

On disk: reads the batch headers of the log, and the markers. Threads: any; a function without state.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from segstore.errors import CorruptRecordError
from segstore.logger import Logger
from segstore.records import CONTROL_FLAG
from segstore.records.control import COMMIT
from segstore.storage.producers.replay import read_marker
from segstore.storage.segment.batch_scan import walk_past_damage
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.storage.store.partition_log import PartitionLog

log = Logger("segstore")


def committed(source: PartitionLog, producer_ids: Collection[int]) -> set[tuple[int, int]]:
    """(producer id, epoch) of each transaction of these producers that has a marker of a commit, which has
    the next epoch (KIP-890). Where commits left the epoch as it was, nothing is told: there an epoch may have
    many transactions. StorageError.
    """
    found: set[tuple[int, int]] = source._with_view(lambda view: _committed(view, producer_ids))
    return found


def _committed(view: LogView, producer_ids: Collection[int]) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    last: dict[int, int] = {}  # epoch of the last records, by producer
    wanted = np.array(sorted(producer_ids), np.int64)
    for slot in range(view.slot(view.start_offset), len(view.segments)):
        segment, end = view.segments[slot], view.end_of(slot)
        for step in walk_past_damage(segment.pool.files, segment.handle, end, check_crcs=False, sparse=True):
            theirs = step.batches[np.isin(step.batches["producer_id"], wanted)]
            for at, batch in enumerate(theirs):
                producer_id, epoch = int(batch["producer_id"]), int(batch["producer_epoch"])
                if not batch["attributes"] & CONTROL_FLAG:
                    last[producer_id] = epoch
                elif last.get(producer_id, -1) < epoch and _commits(segment, theirs[at : at + 1]):
                    found.add((producer_id, epoch - 1))
    return found


def _commits(segment: Segment, marker: NDArray[np.void]) -> bool:
    """One that compaction has emptied, or that is damaged, tells nothing."""
    try:
        return bool(marker["count"][0]) and read_marker(segment, marker)[0] == COMMIT
    except CorruptRecordError as error:
        log.warning("a marker can't be read: %s", error)
        return False
