"""What the batches are that a follower has fetched. Nothing is on disk. Threads: any."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from segstore.integers import INT64_MAX
from segstore.records import Encoded, bring_up, is_old, scan
from segstore.records.encoded import pool
from segstore.replication.core.messages import FetchedSpan
from segstore.storage.log.replica import checked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def nothing(before: int) -> int:
    """Return the bytes of no batches."""
    return 0


def describe(data: bytes | memoryview) -> tuple[FetchedSpan | None, Callable[[int], int]]:
    """Return what these batches are, and a function that gives the bytes of those that begin below an
    offset. Raises CorruptRecordError where a wrapper of messages comes first, and is damaged.
    """
    batches, _ = scan(data, check_crcs=False)  # the append checks them
    if not len(batches):
        return None, nothing
    bases = batches["base_offset"]
    if is_old(batches[:1]):  # where messages of a broker begin: a wrapper does not say it
        bases[0] = bring_up(data, batches[:1])[1]["base_offset"][0]
    sizes = batches["size"]

    def below(before: int) -> int:
        return int(sizes[: int(bases.searchsorted(before))].sum())

    return _fetched(batches), below


def _fetched(batches: NDArray[np.void]) -> FetchedSpan:
    bases, epochs = batches["base_offset"], batches["leader_epoch"]
    first = [0, *(1 + (epochs[1:] != epochs[:-1]).nonzero()[0]).tolist()]
    pairs = tuple((int(epochs[at]), int(bases[at])) for at in first)
    return FetchedSpan(int(batches["last_offset"][-1]) + 1, pairs)


class Nothing:
    """What an answer brings where the leader has no batch up to its end."""


NOTHING = Nothing()


class FetchedBatches(NamedTuple):
    """Batches that came with an answer, and whose CRCs hold. `buffer` is memory of the pool in which they
    lie, and which `release` gives back.
    """

    chunk: Encoded
    fetched: FetchedSpan
    buffer: NDArray[np.uint8] | None = None

    def below(self, offset: int) -> Encoded:
        """Return those that begin below an offset, with which one begins."""
        if offset >= self.fetched.next_offset:
            return self.chunk
        batches = self.chunk.batches
        return Encoded.of(self.chunk.data, batches[: int(batches["base_offset"].searchsorted(offset))])

    def release(self) -> None:
        """Give the memory back, once they are written."""
        if self.buffer is not None:
            pool.give(self.buffer)


def brought(
    data: bytes | memoryview, end_offset: int = INT64_MAX, buffer: NDArray[np.uint8] | None = None
) -> FetchedBatches | None:
    """Return what came, of which all from `end_offset` on is left out; None where that is not one whole
    batch. Raises CorruptRecordError.
    """
    chunk = checked(data, end_offset)
    return None if chunk is None else FetchedBatches(chunk, _fetched(chunk.batches), buffer)
