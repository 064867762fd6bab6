"""Makes snapshots of the metadata when they are due (Kafka: SnapshotGenerator, SnapshotEmitter; KIP-630).

On disk are the snapshots, which the voters write. Threads: the controller's thread calls `look`. A second
thread encodes a copy of the image, so that the controller's thread does not wait for the encoding.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from segstore.errors import IllegalStateError
from segstore.logger import Logger
from segstore.replication.metadata.snapshots import make_snapshot
from segstore.storage.segment.metadata_snapshot import SnapshotId
from segstore.threads import Background

if TYPE_CHECKING:
    from segstore.replication.metadata.image import MetadataImage
    from segstore.replication.metadata.metadata_log import MetadataLog
    from segstore.storage.context import Clock

log = Logger("segstore")

CLEANING = 60.0
"""Seconds from one removal of old snapshots to the next (Kafka: KafkaRaftClient's snapshot cleaner)."""


class SnapshotGenerator:
    """Makes snapshots of the metadata when they are due by the settings of the metadata log."""

    def __init__(self, metadata_log: MetadataLog, clock: Clock) -> None:
        self._log, self._clock, self._config = metadata_log, clock, metadata_log.config
        self._made_at = self._cleaned_at = time.monotonic()
        self._making = False

    def look(self, image: MetadataImage) -> None:
        """If a snapshot is due, begin to make a snapshot of the image. If none is due, remove old snapshots
        if CLEANING seconds have passed since the last snapshot or removal. All records that the image was
        made from must be committed.
        """
        now = time.monotonic()
        if self._is_due(now) and not self._making:
            self._made_at, self._cleaned_at = now, now
            self._make(image)
        elif now - self._cleaned_at >= CLEANING:
            self._cleaned_at = now
            self._log.clean()

    def _is_due(self, now: float) -> bool:
        size, interval = self._log.uncovered_bytes, self._config.max_snapshot_interval_ms / 1000
        late = interval > 0 and now - self._made_at >= interval
        return size >= self._config.max_record_bytes_between_snapshots or (size > 0 and late)

    def _make(self, image: MetadataImage) -> None:
        snapshot, timestamp = SnapshotId(image.next_offset, self._log.epoch), self._log.last_timestamp
        image = image.copy()  # The controller goes on changing the original.

        def make() -> None:
            try:
                self._log.keep(make_snapshot(snapshot, image.records(), timestamp, self._clock()))
            except Exception:
                log.exception("a snapshot of the metadata can't be made")
            finally:
                self._making = False

        self._log.uncovered_bytes, self._making = 0, True
        try:
            Background(make, "segstore-snapshot").start()
        except IllegalStateError as error:
            self._making = False
            log.warning("no snapshot of the metadata is made: %s", error)
