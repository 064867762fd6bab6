"""Reads a segment for the cleaner, some batches at a time, decoded. On disk: reads only.

Threads: the cleaning thread. Memory: a chunk as stored, and one decompressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from segstore.errors import CorruptRecordError
from segstore.records import Records, decode
from segstore.storage.segment.batch_scan import BAD, walk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.storage.segment.segment import Segment

MOST_PLAIN = 8 << 20
"""Decompressed bytes at which a piece ends; one batch may be more."""


class Piece(NamedTuple):
    """Whole batches: `data` holds them, from byte `position` of the segment on; `records` are theirs."""

    data: bytes
    position: int
    batches: NDArray[np.void]
    records: Records


Wanted = Callable[["NDArray[np.void]"], "NDArray[np.bool_]"]


def pieces(
    segment: Segment,
    start: int,
    chunk: int,
    throttle: Callable[[int], None],
    wanted: Wanted | None = None,
) -> Iterator[Piece]:
    """All batches of a segment from byte `start` on, every CRC checked, or those that are `wanted`.

    CorruptRecordError where one is damaged: nothing is compacted over what can't be read.
    """
    files, handle, end, at = segment.pool.files, segment.handle, segment.size, start
    offset = segment.base_offset
    for step in walk(files, handle, start, end, check_crcs=True, chunk=chunk, least=segment.base_offset):
        at, batches = step.stop.position, step.batches
        throttle(at - step.position)
        if len(batches):
            offset = step.stop.last_offset + 1
        if wanted is not None:
            batches = batches[wanted(batches)]
        while len(batches):
            records = decode(step.data, batches, segment.path, step.position, most=MOST_PLAIN)
            n = len(records.batches)
            yield Piece(step.data, step.position, batches[:n], records)
            batches = batches[n:]
        reason = BAD.get(step.stop.status, "")
    if at < end:
        raise CorruptRecordError(segment.path, at, offset, reason or "the file was cut")
