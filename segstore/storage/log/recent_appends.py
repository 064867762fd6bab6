"""What the leader of a partition has appended last, still in memory: followers in this process take it from
here, and need not have it read from the leader's disk.

Nothing of it is on disk: whatever is missing here is read from the log. Threads: any, and no lock: each step
of a deque is atomic. The holder of the append token adds and clears; a batch is only here once its append
stays, and `clear` comes before the log is cut.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from segstore.integers import INT64_MAX
from segstore.records import CHUNK_BYTES, Encoded

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 64
"""Appends of all partitions of this process that are kept at most, each of CHUNK_BYTES at most."""
COPIED = CHUNK_BYTES // 8
"""Up to so many bytes an append is copied, and its buffer given back; beyond, a pooled buffer is kept."""


class Recent(NamedTuple):
    """Whole batches that lie one behind the other in a log, up to `next_offset`. `epochs` has a pair of
    leader epoch and base offset for the first batch, and each one with which an epoch begins.
    """

    data: bytes | memoryview
    next_offset: int
    epochs: tuple[tuple[int, int], ...]


class _Append:
    """One append; `data` is None once it is let go of."""

    __slots__ = ("base_offset", "data", "epoch", "next_offset")

    def __init__(self, base_offset: int, next_offset: int, epoch: int, data: bytes | memoryview) -> None:
        self.base_offset, self.next_offset, self.epoch = base_offset, next_offset, epoch
        self.data: bytes | memoryview | None = data


_of_all: deque[_Append] = deque()


class RecentAppends:
    """The last appends of one log, in the order of their offsets."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[_Append] = deque()

    def keep(self, chunks: Iterable[Encoded]) -> None:
        """Keep what was appended, which has its offsets and its leader epoch. The memory of a chunk that is
        kept is not given back to the pool; others are released.
        """
        for chunk in chunks:
            data = _data_of(chunk)
            if data is None:
                chunk.release()
                continue
            batches = chunk.batches
            base, end = batches["base_offset"].item(0), batches["last_offset"].item(-1) + 1
            if self._kept and self._kept[-1].next_offset != base:
                self.clear()
            made = _Append(base, end, batches["leader_epoch"].item(0), data)
            self._kept.append(made)
            _of_all.append(made)
            while len(_of_all) > MOST:
                _of_all.popleft().data = None

    def take(self, offset: int, end_offset: int, max_bytes: int) -> Recent | None:
        """Return the append that begins at `offset`, whatever its size, and those behind it, up to
        `end_offset` and `max_bytes`; None where it is not here.
        """
        found: list[_Append] = []
        pieces: list[bytes | memoryview] = []
        left = max_bytes
        for each in list(self._kept):
            data = each.data
            if each.base_offset != offset:
                continue
            if data is None or each.next_offset > end_offset or (found and len(data) > left):
                break
            found.append(each)
            pieces.append(data)
            left, offset = left - len(data), each.next_offset
        if not found:
            return None
        epochs = {each.epoch: each.base_offset for each in reversed(found)}
        rising = tuple(sorted(epochs.items()))
        return Recent(pieces[0] if len(pieces) == 1 else b"".join(pieces), offset, rising)

    def drop_below(self, offset: int) -> None:
        """Let go of what lies below `offset`: who lacks it reads it from the log."""
        kept = self._kept
        with suppress(IndexError):  # another thread has cleared it meanwhile
            while kept and kept[0].next_offset <= offset:
                kept.popleft().data = None

    def clear(self) -> None:
        """Let go of all; the caller holds the append token."""
        self.drop_below(INT64_MAX)


def _data_of(chunk: Encoded) -> bytes | memoryview | None:
    """Return the bytes of a chunk, which nobody changes any more; None where its memory is another's, and
    large.
    """
    if chunk.size <= COPIED:
        data = bytes(chunk.data)
        chunk.release()
        return data
    return chunk.data if chunk.pooled else None
