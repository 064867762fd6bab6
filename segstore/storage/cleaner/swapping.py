"""Puts new segments in place of old ones, so that a crash at any step is finished or undone at the next open.

On disk, in this order, in the partition's directory:

1. `.cleaned` is renamed to `.swap`, the last segment first, and that is synced. A crash before the last
   rename is undone, as a `.cleaned` is left; from then on it is finished (`storage.loader`).
2. Readers of this process see the new segments, through the files that are open: the names do not matter.
3. The old ones become `.deleted`, the oldest first: what a crash leaves of them has nothing that was taken
   back by what is gone. `.swap` loses its suffix, the directory is synced.
4. Readers in other processes are told to look again; `.deleted` files go after file.delete.delay.ms.

Threads: the cleaning thread; no segment is removed, and no topic's directory renamed, meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from segstore import names
from segstore.storage.cleaner.output import SUFFIXES
from segstore.storage.cleaner.throttle import CleaningStopped
from segstore.storage.loader import scan_directory
from segstore.storage.segment import Segment
from segstore.storage.writer import bury_segment

if TYPE_CHECKING:
    from segstore.storage.partition import Partition


def swap(partition: Partition, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    """`new` are finished `.cleaned` ones. CleaningStopped where `old` are not all there any more; OSError."""
    with partition.names_held():
        if not partition.lies_in(old):
            raise CleaningStopped
        for segment in reversed(new):
            _rename(segment, names.CLEANED, names.SWAP)
        partition.context.files.sync_dir(partition.directory)
        for segment in old:
            segment.retire()
        partition.replace(old, new)
        try:
            _put_in_place(partition, old, new)
        except OSError as error:
            # What is half done can only be finished by the loader: nothing else may touch it before.
            partition.unsettled = error
            raise


def remove_strays(partition: Partition) -> None:
    """Remove what a failed try has left, whose originals are in place: beside the next swap it would be taken
    for a part of that. OSError.
    """
    files = partition.context.files
    with partition.names_held():
        for base, suffixes in scan_directory(files, partition.directory).items():
            for suffix in suffixes:
                if suffix.endswith((names.SWAP, names.CLEANED)):
                    files.unlink(os.path.join(partition.directory, names.segment_file(base, suffix)))


def _rename(segment: Segment, before: str, after: str) -> None:
    files = segment.pool.files
    for suffix in SUFFIXES:
        source = segment.file(suffix + before)
        if suffix != names.TXN_INDEX or files.exists(source):
            files.rename(source, segment.file(suffix + after))


def _put_in_place(partition: Partition, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    context = partition.context
    buried = [path for segment in old for path in bury_segment(segment)]
    for segment in new:
        _rename(segment, names.SWAP, "")
        context.pool.forget(segment.path)
        segment.release()
    context.files.sync_dir(partition.directory)
    partition.relist({s.base_offset for s in old} - {s.base_offset for s in new})
    context.graveyard.put(buried, partition.config.file_delete_delay_ms)
