"""Feeds producer state with the batch headers of a segment. On disk: reads only. Threads: as the state's
owner.
"""

from __future__ import annotations

from segstore.index.txn_index import AbortedTxn
from segstore.records import decode
from segstore.storage.producer_state import ProducerState, parse_control
from segstore.storage.segment import Segment
from segstore.storage.walk import Step, walk_past_damage


def replay(state: ProducerState, segment: Segment, end: int) -> list[AbortedTxn]:
    """Take in what is new to `state` in the segment's first `end` bytes: the transactions that it aborts."""
    aborted: list[AbortedTxn] = []
    files, handle = segment.pool.files, segment.handle
    for step in walk_past_damage(files, handle, end, check_crcs=False, sparse=True):
        aborted += _take_in(state, segment, step)
    return aborted


def _take_in(state: ProducerState, segment: Segment, step: Step) -> list[AbortedTxn]:
    def read_control(i: int) -> tuple[int, int]:
        batch = step.batches[i : i + 1]
        position, size = int(batch["position"][0]), int(batch["size"][0])
        data = segment.pool.files.pread(segment.handle, size, position)
        record = decode(data, batch, segment.path, position)[0]
        return parse_control(
            record.key, record.value, file=segment.path, position=position, offset=record.offset
        )

    return state.update(step.batches, read_control)
