"""Writes the snapshots of the metadata into one voter's directory, and removes what they make needless
(Kafka: FileRawSnapshotWriter, KafkaMetadataLog.maybeClean).

On disk are the `.checkpoint` files and the beginning of the log. In order: the snapshot is durable under its
name; a majority of voters has one that reaches as far; the log start offset is durable; segments and older
snapshots go. Threads: one of its own, beside that which appends: no append waits for a snapshot.
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
    """The keeper of one voter. `kept` is called in its thread with each snapshot that is durable here;
    `covered` tells up to which offset a majority of voters has a snapshot.
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
        """Take who is to be told, and asked; called once, before `keep` and `clean`."""
        self._kept, self._covered = kept, covered

    def keep(self, snapshot: MetadataSnapshot) -> None:
        """Have a snapshot written, which takes the place of one that waits to be; this voter's log has all
        that it covers. This and `clean` are called by one thread.
        """
        self._wanted = snapshot
        self.clean()

    def clean(self) -> None:
        """Have what is needless removed."""
        if self._over or others_are_gone():
            return
        self._asked.put(True)
        if not self._begun:
            try:
                Background(self._run, f"segstore-snapshots-{self._voter}").start()
                self._begun = True
            except IllegalStateError as error:  # the next one tries again
                log.warning("voter %d keeps no snapshot of the metadata: %s", self._voter, error)

    def stop(self) -> None:
        """Let the thread end: what waits to be written is left out."""
        self._over = True
        self._asked.put(False)

    def ended(self, seconds: float) -> bool:
        """Wait for the thread's end; return whether it has ended."""
        return not self._begun or others_are_gone() or self._ended.wait(seconds)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._asked.get() and not self._over:
                self._work()
        finally:
            self._ended.open()

    def _work(self) -> None:
        """Write what is wanted, and clean. A disk that refuses costs nothing but room: the log has it all."""
        wanted, self._wanted = self._wanted, None
        try:
            with os_errors():
                if wanted is not None:
                    self._snapshots.write(wanted)
                    self._kept(wanted.id)
                self._clean()
        except SegstoreError as error:
            log.warning("voter %d can't keep a snapshot of the metadata: %s", self._voter, error)

    def _clean(self) -> None:
        """Remove the oldest snapshots, and the log before the next ones, as far as retention asks for it."""
        while (pair := self._oldest()) is not None and self._breached(pair[0]):
            before = self._replica.start_offset
            self._replica.set_start_offset(pair[1].end_offset)
            if self._replica.start_offset == before:
                return
            self._snapshots.forget_before(self._replica.start_offset)

    def _oldest(self) -> tuple[SnapshotId, SnapshotId] | None:
        """Return the oldest snapshot, and the next one that is sound, None where a majority of voters has
        none that reaches so far.
        """
        ids, covered = self._snapshots.ids, self._covered()
        for following in ids[1:]:
            if following.end_offset <= covered and self._snapshots.is_sound(following):
                return ids[0], following
        return None

    def _breached(self, snapshot: SnapshotId) -> bool:
        """Return whether a snapshot goes, by its age or the size of all."""
        config, view = self._config, self._replica.written
        size = sum(map(view.end_of, range(len(view.segments))))
        size += sum(map(self._snapshots.size, self._snapshots.ids))
        if 0 <= config.retention_bytes < size:
            return True
        if config.retention_ms < 0:
            return False
        timestamp = self._snapshots.timestamp(snapshot)
        return timestamp is not None and self._clock() - timestamp > config.retention_ms
