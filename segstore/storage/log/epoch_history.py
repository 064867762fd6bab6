"""Derives leader epochs from the batches of a log, and checks `leader-epoch-checkpoint` against them.

Files on disk are only read. Threads: one, when the partition is opened.

Each batch header has the leader epoch that the batch was written under, so a lost checkpoint can be derived
from the headers, except for epochs without a batch. The CRC of a batch does not cover its epoch. So if a
batch has a lower epoch than an earlier batch, headers may be damaged. In that case, if the checkpoint can be
read, the epochs of the checkpoint are used, and not those of the batches.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from segstore._native import ffi
from segstore.errors import CorruptCheckpointError, CorruptRecordError
from segstore.files import Files
from segstore.storage.log.open import Opened
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.meta.small_files import reason, unreadable
from segstore.storage.segment.batch_scan import walk_past_damage
from segstore.storage.segment.segment import Segment


def load_epochs(
    files: Files, path: str, opened: Opened, *, replicated: bool = False
) -> tuple[LeaderEpochs, str]:
    """Return the leader epochs of a log, and a message about a fault of the checkpoint file, "" for none.
    Raises OSError.

    If the log is empty, a checkpoint without entries has no fault. If the log is `replicated`, a checkpoint
    without entries also has no fault if all batches lie below the log start offset, or if no batch of the
    last segment has an epoch.
    """
    empty = opened.end_offset == (opened.start_offset if replicated else opened.segments[0].base_offset)
    if replicated and not empty:
        empty = not derive(files, opened.segments[-1:])[0]
    try:
        epochs = LeaderEpochs.load(files, path)
        wrong = _contradiction(epochs, opened) if epochs.entries or empty else "no epoch is in it"
    except (CorruptCheckpointError, OSError) as error:
        epochs, wrong = LeaderEpochs(files, path), reason(unreadable(error, path))
    if not wrong:
        return epochs, ""
    history, rises = derive(files, opened.segments)
    if epochs.entries and not rises:
        return epochs, ""
    return LeaderEpochs(files, path, history), wrong


def derive(files: Files, segments: list[Segment]) -> tuple[list[tuple[int, int]], bool]:
    """Return the pairs of leader epoch and start offset that the batches of a log give, and whether no batch
    has a lower epoch than an earlier batch. Raises OSError.
    """
    found: list[tuple[int, int]] = []
    rises = True
    for segment in segments:
        for epoch, base in _runs(files, segment):
            if not found or epoch > found[-1][0]:
                found.append((epoch, base))
            rises &= epoch >= found[-1][0]
    return found, rises


def _runs(files: Files, segment: Segment) -> Iterator[tuple[int, int]]:
    """Yield (leader epoch, base offset) for each batch that has a leader epoch."""
    for step in walk_past_damage(files, segment.handle, segment.size, check_crcs=False, sparse=True):
        batches = step.batches
        epochs, bases = batches["leader_epoch"].tolist(), batches["base_offset"].tolist()
        yield from ((epoch, base) for epoch, base in zip(epochs, bases, strict=True) if epoch >= 0)


def _contradiction(epochs: LeaderEpochs, opened: Opened) -> str:
    """Return a message if a batch has another epoch than the checkpoint gives for the offset of the batch,
    else "". Only batches at both ends of the log, and around the start of each epoch, are compared.
    """
    starts = [start for _, start in epochs.entries if opened.start_offset < start < opened.end_offset]
    beside = [at for start in starts for at in (start - 1, start)]
    for offset in [opened.start_offset, *beside, max(opened.end_offset - 1, opened.start_offset)]:
        batch = _batch_at(opened.segments, offset)
        if batch is None or batch.leader_epoch < 0:
            continue
        base = max(int(batch.base_offset), opened.start_offset)
        known = epochs.epoch_for_offset(base)
        if known != batch.leader_epoch:
            epoch = "no epoch" if known is None else f"epoch {known}"
            return f"{epoch} for offset {base}, but its batch has epoch {batch.leader_epoch}"
    return ""


def _batch_at(segments: list[Segment], offset: int) -> Any:
    """Return the header of the batch that holds `offset`, or of the next batch in that offset's segment.
    Return None if there is no such batch, or if damage prevents the search.
    """
    slot = max(bisect.bisect_right(segments, offset, key=attrgetter("base_offset")) - 1, 0)
    segment, header = segments[slot], ffi.new("seg_batch *")
    if not slot:  # The first batch of the log often holds `offset`. Then no index is read.
        last = segment.header_at(0, segment.size, header)
        if last is not None and last >= offset:
            return header
    try:
        return segment.locate(offset, segment.size)
    except CorruptRecordError:
        return None
