"""Where offsets may be missing from a log without damage: compaction leaves out records, and whole batches.

On disk: reads a topic's settings and the cleaner's checkpoint, only when a gap was met.
Threads: any; what was found is replaced whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from segstore import names
from segstore.errors import SegstoreError
from segstore.files import Files
from segstore.storage.meta.offset_checkpoints import read_offsets
from segstore.storage.meta.small_files import NOT_A_FILE
from segstore.storage.meta.topics import TopicFiles, TopicInfo
from segstore.storage.segment.log_view import LogView

MayBeMissing = Callable[[int], bool]


class Gaps:
    """Whether a gap in a partition's offsets that begins at `offset` may be there."""

    def __init__(self, files: Files, root: str, topic: str, partition: int) -> None:
        self._files, self._root, self._key = files, root, (topic, partition)
        self._end = 0

    def __call__(self, offset: int) -> bool:
        if self._end >= 0 and offset >= self._end:
            self._end = self._look()  # settings change, and the cleaner goes on
        return self._end < 0 or offset < self._end

    def _look(self) -> int:
        """Below this offset there may be gaps; -1: anywhere. OSError that may pass."""
        try:
            info = TopicFiles(self._files, self._root).load()[0].get(self._key[0])
            if info is None:
                return -1
            path = os.path.join(self._root, names.CLEANER_OFFSETS)
            return info.gaps_end(self._key[1], read_offsets(self._files, path).get(self._key))
        except (SegstoreError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NOT_A_FILE:
                raise
            return -1  # what can't be told is not called damage


def forgets(before: TopicInfo, after: TopicInfo) -> bool:
    """Whether the settings told of gaps and no longer do. A broker's settings are never known again."""
    return before.gapped and not (after.gapped and before.ours)


def remembering(before: TopicInfo, after: TopicInfo, held: Mapping[int, tuple[LogView, int]]) -> TopicInfo:
    """`after`, saying up to where there may be gaps by the rules of `before`, in the one file of both: the
    cleaner's checkpoint does not know of compactions that were stopped. `held` are views and recovery points
    of the partitions now, in which no compaction begins any more; one without may have gaps anywhere.

    The cleaner leaves the active segment alone, and what is not synced; a broker's log may be a replica of a
    compacted one.
    """
    if not forgets(before, after):
        return after
    ends = dict(before.compacted)
    for number in before.partition_ids:
        end = names.MAX_OFFSET
        if number in held:
            view, flushed = held[number]
            end = min(view.bases[-1], flushed) if before.ours else view.end_offset
        ends[number] = max(end, ends.get(number, 0))
    return replace(after, compacted=tuple(sorted(ends.items())))
