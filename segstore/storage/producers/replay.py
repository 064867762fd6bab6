"""Feeds producer state with the batch headers of a segment. On disk: reads only. Threads: as the state's
owner.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from segstore.errors import CorruptRecordError
from segstore.index.txn_index import AbortedTxn
from segstore.records import decode, scan
from segstore.records.control import ABORT, parse_control
from segstore.records.header import NO_EPOCH
from segstore.storage.producers.producer_state import ProducerState
from segstore.storage.segment.batch_scan import BAD, walk_past_damage
from segstore.storage.segment.segment import Segment


def replay(
    state: ProducerState,
    segment: Segment,
    end: int,
    damaged: dict[int, CorruptRecordError] | None = None,
) -> list[AbortedTxn]:
    """Take in what is new to `state` in the segment's first `end` bytes: the transactions that it aborts.
    `damaged` as in `take_in`.
    """
    aborted: list[AbortedTxn] = []
    files, handle = segment.pool.files, segment.handle
    for step in walk_past_damage(files, handle, end, check_crcs=False, sparse=True):
        aborted += take_in(state, segment, step.batches, damaged)
    return aborted


def take_in(
    state: ProducerState,
    segment: Segment,
    batches: NDArray[np.void],
    damaged: dict[int, CorruptRecordError] | None = None,
) -> list[AbortedTxn]:
    """Take in batches of a segment: the transactions that they abort.

    A marker that can't be read is put into `damaged` by its offset, and counts as an abort; without that, its
    CorruptRecordError is raised.
    """

    def read_control(i: int) -> tuple[int, int]:
        try:
            return read_marker(segment, batches[i : i + 1])
        except CorruptRecordError as error:
            if damaged is None:
                raise
            damaged[int(batches["base_offset"][i])] = error
            return ABORT, NO_EPOCH

    return state.update(batches, read_control)


def read_marker(segment: Segment, batch: NDArray[np.void]) -> tuple[int, int]:
    """What `parse_control` says of a control batch (an array of one). CorruptRecordError."""
    position, size = int(batch["position"][0]), int(batch["size"][0])
    data = segment.pool.files.pread(segment.handle, size, position)
    whole, stop = scan(data, position)
    if not len(whole):
        raise CorruptRecordError(
            segment.path, position, int(batch["base_offset"][0]), BAD.get(stop.status, "the file was cut")
        )
    record = decode(data, whole, segment.path, position)[0]
    return parse_control(record.key, record.value, file=segment.path, position=position, offset=record.offset)
