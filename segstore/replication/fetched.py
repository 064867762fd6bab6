"""`FetchedBatches`: the batches of a fetch answer, after the check of their CRCs.

Nothing is on disk. Threads: any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from segstore.integers import INT64_MAX
from segstore.records import Encoded
from segstore.records.encoded import pool
from segstore.replication.core.messages import FetchedSpan
from segstore.storage.log.replica import checked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _fetched(batches: NDArray[np.void]) -> FetchedSpan:
    bases, epochs = batches["base_offset"], batches["leader_epoch"]
    first = [0, *(1 + (epochs[1:] != epochs[:-1]).nonzero()[0]).tolist()]
    pairs = tuple((int(epochs[at]), int(bases[at])) for at in first)
    return FetchedSpan(int(batches["last_offset"][-1]) + 1, pairs)


class Nothing:
    """The result of a read of the leader's log if it has no batch between the fetch offset and the log end
    offset.
    """


NOTHING = Nothing()


class FetchedBatches(NamedTuple):
    """Batches of a fetch answer, with valid CRCs. If the bytes of the batches are in memory of the pool,
    `buffer` is that memory. If the bytes are in other memory, `buffer` is None.
    """

    chunk: Encoded
    fetched: FetchedSpan
    buffer: NDArray[np.uint8] | None = None

    def below(self, offset: int) -> Encoded:
        """Return the batches below `offset`. `offset` must be the base offset of a batch, or the offset after
        the last batch, or higher.
        """
        if offset >= self.fetched.next_offset:
            return self.chunk
        batches = self.chunk.batches
        return Encoded.of(self.chunk.data, batches[: int(batches["base_offset"].searchsorted(offset))])

    def release(self) -> None:
        """Return `buffer` to the pool. Called after the batches were appended."""
        if self.buffer is not None:
            pool.give(self.buffer)


def brought(
    data: bytes | memoryview, end_offset: int = INT64_MAX, buffer: NDArray[np.uint8] | None = None
) -> FetchedBatches | None:
    """Return the complete batches in `data` that are below `end_offset`, None if there are none. `data` are
    the records of a fetch answer. Raises CorruptRecordError.
    """
    chunk = checked(data, end_offset)
    return None if chunk is None else FetchedBatches(chunk, _fetched(chunk.batches), buffer)
