"""Bugs that are planted in the engine of the recorded process, and must be found."""

from __future__ import annotations

from collections.abc import Callable

from segstore.storage.log.flusher import Flusher
from segstore.storage.log.recovery import PartitionRecovery


class Synced(tuple[int, int]):
    """Names of a directory that are always those which were synced last."""

    def __ne__(self, other: object) -> bool:
        return False


def no_sync_of_the_directory() -> None:
    """A flush behind a roll syncs the files, and not the directory that has their names."""

    def names_synced(self: Flusher) -> Synced:
        return Synced((0, self._segments.removals))

    Flusher._names_synced = property(names_synced, lambda self, names: None)  # type: ignore[assignment]


def no_writing_again() -> None:
    """A recovery syncs what it has read, and does not write it again first: a failed sync has left the pages
    clean, and a second sync does nothing for them.
    """
    PartitionRecovery._write_back = lambda self, segment: None  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    "a directory that is not synced after a roll": no_sync_of_the_directory,
    "bytes of a failed sync that are not written again": no_writing_again,
}
