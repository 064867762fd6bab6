"""`SnapshotKeeper`: writes snapshots of the metadata into one voter's directory. If newer snapshots have the
same records, the keeper removes old snapshots, and the beginning of the log (Kafka: FileRawSnapshotWriter,
KafkaMetadataLog.maybeClean).

On disk are the `.checkpoint` files (the snapshots) and the log. The order of the steps is: make the snapshot
durable, wait until a majority of voters has snapshots with this end offset or larger ones, make the log start
offset durable, remove segments and older snapshots. Threads: the keeper has its own thread, so that no append
waits for a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from segstore.errors import IllegalStateError, SegstoreError
from segstore.logger import Logger
from segstore.storage.context import os_errors
from segstore.threads import Background, Latch, others_are_gone

if TYPE_CHECKING:
    from segstore.replication.metadata.metadata_log_config import MetadataLogConfig
    from segstore.replication.metadata.snapshots import MetadataSnapshot, MetadataSnapshots
    from segstore.storage.context import Clock
    from segstore.storage.log.replica import Replica
    from segstore.storage.segment.metadata_snapshot import SnapshotId

log = Logger("segstore")


class SnapshotKeeper:
    """The writer of one voter's snapshots. Its thread calls `kept` with the id of each durable snapshot.
    `covered` returns the largest offset for which a majority of voters has snapshots with this end offset or
    larger ones.
    """

    def __init__(
        self,
        voter: int,
        snapshots: MetadataSnapshots,
        replica: Replica,
        config: MetadataLogConfig,
        clock: Clock,
    ) -> None:
        self._voter, self._snapshots, self._replica, self._config = voter, snapshots, replica, config
        self._clock = clock
        self._kept: Callable[[SnapshotId], object] = lambda snapshot: None
        self._covered: Callable[[], int] = lambda: 0
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._wanted: MetadataSnapshot | None = None
        self._begun, self._over, self._ended = False, False, Latch()

    def listen(self, kept: Callable[[SnapshotId], object], covered: Callable[[], int]) -> None:
        """Set the callbacks `kept` and `covered`. Called once, before the first `keep` and `clean`."""
        self._kept, self._covered = kept, covered

    def keep(self, snapshot: MetadataSnapshot) -> None:
        """Queue a snapshot, which replaces an older queued snapshot. This voter's log must have all records
        that the snapshot was made from. Only one thread may call `keep` and `clean`.
        """
        self._wanted = snapshot
        self.clean()

    def clean(self) -> None:
        """Ask the keeper's thread to remove old snapshots."""
        if self._over or others_are_gone():
            return
        self._asked.put(True)
        if not self._begun:
            try:
                Background(self._run, f"segstore-snapshots-{self._voter}").start()
                self._begun = True
            except IllegalStateError as error:  # The next call tries to start the thread again.
                log.warning("voter %d keeps no snapshot of the metadata: %s", self._voter, error)

    def stop(self) -> None:
        """Stop the thread. If a snapshot is queued, it is not written."""
        self._over = True
        self._asked.put(False)

    def ended(self, seconds: float) -> bool:
        """Wait for the thread's end for at most `seconds`. Return whether the thread has ended."""
        return not self._begun or others_are_gone() or self._ended.wait(seconds)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._asked.get() and not self._over:
                self._work()
        finally:
            self._ended.open()

    def _work(self) -> None:
        """Write the queued snapshot, if there is one. Then remove old snapshots."""
        wanted, self._wanted = self._wanted, None
        try:  # An error is only logged: the log still has all records that the snapshot was made from.
            with os_errors():
                if wanted is not None:
                    self._snapshots.write(wanted)
                    self._kept(wanted.id)
                self._clean()
        except SegstoreError as error:
            log.warning("voter %d can't keep a snapshot of the metadata: %s", self._voter, error)

    def _clean(self) -> None:
        """Remove the oldest snapshots that exceed the retention settings, and the records of the log below
        the end offset of the oldest snapshot that remains.
        """
        while (pair := self._oldest()) is not None and self._breached(pair[0]):
            before = self._replica.start_offset
            self._replica.set_start_offset(pair[1].end_offset)
            if self._replica.start_offset == before:
                return
            self._snapshots.forget_before(self._replica.start_offset)

    def _oldest(self) -> tuple[SnapshotId, SnapshotId] | None:
        """Return (the oldest snapshot, the next undamaged snapshot whose end offset is not above
        `covered()`). Return None if one of the two does not exist.
        """
        ids, covered = self._snapshots.ids, self._covered()
        for following in ids[1:]:
            if following.end_offset <= covered and self._snapshots.is_sound(following):
                return ids[0], following
        return None

    def _breached(self, snapshot: SnapshotId) -> bool:
        """Return whether a snapshot must be removed because it is too old, or because the log and the
        snapshots are too large.
        """
        config, view = self._config, self._replica.written
        size = sum(map(view.end_of, range(len(view.segments))))
        size += sum(map(self._snapshots.size, self._snapshots.ids))
        if 0 <= config.retention_bytes < size:
            return True
        if config.retention_ms < 0:
            return False
        timestamp = self._snapshots.timestamp(snapshot)
        return timestamp is not None and self._clock() - timestamp > config.retention_ms
