"""Tells other processes what of a partition is visible: its slot in `.segstore/ends`.

On disk: through `ends`. Threads: any; the caller holds what keeps a view and its publication together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from segstore.storage.meta.published_ends import Ends, EndsWriter

if TYPE_CHECKING:
    from segstore.storage.log.visibility import Visible


class Publisher:
    """Of one partition, under the leader epoch that its writer has."""

    def __init__(self, ends: EndsWriter, key: int, epoch: int) -> None:
        self._ends, self._key, self._epoch = ends, key, epoch
        self.lock = ends.lock  # under which the ends of all partitions are published
        self._slots = [ends.claim(key)]

    def publish(self, it: Visible) -> None:
        """Publish a partition's view."""
        self._ends.publish(self._slots, [self._ends_of(it)])

    @staticmethod
    def publish_all(partitions: Sequence[Visible]) -> None:
        """Publish the views of partitions of one store at once."""
        publishers = [it.publisher for it in partitions]
        slots = [publisher._slots[0] for publisher in publishers]
        ends = [publisher._ends_of(it) for publisher, it in zip(publishers, partitions, strict=True)]
        if publishers:
            publishers[0]._ends.publish(slots, ends)

    def _ends_of(self, it: Visible) -> Ends:
        view = it.view
        # The complement of the recovery point is published where a sync has failed.
        synced = it.flusher.recovery_point ^ -int(it.flusher.failed)
        end = view.end_offset
        return Ends(
            self._key, view.start_offset, end, end, view.stable_offset, synced, it.layout, self._epoch
        )
