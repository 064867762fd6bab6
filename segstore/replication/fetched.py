"""What the batches are that a follower has fetched. Nothing is on disk. Threads: any."""

from __future__ import annotations

from collections.abc import Callable

from segstore.records import bring_up, is_old, scan
from segstore.replication.core.messages import Fetched


def nothing(before: int) -> int:
    """Return the bytes of no batches."""
    return 0


def describe(data: bytes | memoryview) -> tuple[Fetched | None, Callable[[int], int]]:
    """Return what these batches are, and a function that gives the bytes of those that begin below an
    offset. Raises CorruptRecordError where a wrapper of messages comes first, and is damaged.
    """
    batches, _ = scan(data, check_crcs=False)  # the append checks them
    if not len(batches):
        return None, nothing
    bases, epochs = batches["base_offset"], batches["leader_epoch"]
    if is_old(batches[:1]):  # where messages of a broker begin: a wrapper does not say it
        bases[0] = bring_up(data, batches[:1])[1]["base_offset"][0]
    first = [0, *(1 + (epochs[1:] != epochs[:-1]).nonzero()[0]).tolist()]
    pairs = tuple((int(epochs[at]), int(bases[at])) for at in first)
    sizes = batches["size"]

    def below(before: int) -> int:
        return int(sizes[: int(bases.searchsorted(before))].sum())

    return Fetched(int(batches["last_offset"][-1]) + 1, pairs), below
