"""Writes whose outcome is not known: a partition's appends are made and time out, until the test decides."""

from __future__ import annotations

from segstore.errors import RequestTimedOutError
from segstore.storage.log.partition import Partition


class Undecided:
    """The other replicas of a partition, which answer nothing: readers don't see what is appended from now
    on.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        with partition.token:
            partition.acks = self
            partition.visible.begin_replica(partition.visible.log_end_offset)

    def check(self, acks: int) -> None:
        """Refuse nothing."""

    def wait(self, end_offset: int, acks: int, timeout_ms: float) -> None:
        raise RequestTimedOutError("the records were appended, and are not committed yet")

    def shown(self) -> None:
        """Do nothing."""

    def failed(self, error: Exception) -> None:
        """Do nothing."""

    def commit(self) -> None:
        """Let readers see all that was appended, and appends go well from now on."""
        with self._partition.token:
            self._partition.acks = None
            self._partition.visible.end_replica()
