"""The last appends of a partition's leader, which are kept in memory so that followers in this process need
not read them from the leader's disk.

Nothing is on disk; batches that are not kept here are read from the log. Threads: any, without a lock,
because each operation of a deque is atomic. Only the holder of the append token adds and clears appends. A
batch is kept only after the last moment at which its append could be undone, and `clear` is called before the
log is cut.
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
"""The most appends that all partitions of this process keep together. Each has at most CHUNK_BYTES."""
COPIED = CHUNK_BYTES // 8
"""Appends up to this many bytes are copied, and their buffers released; a larger pooled buffer is kept."""


class Recent(NamedTuple):
    """Contiguous whole batches of a log, up to `next_offset`. `epochs` has a pair of leader epoch and base
    offset for the first batch, and for each batch that begins an epoch.
    """

    data: bytes | memoryview
    next_offset: int
    epochs: tuple[tuple[int, int], ...]


class _Append:
    """One append. `data` is None after the append was released."""

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
        """Keep appended chunks, whose batch headers have their final offsets and leader epochs. The memory of
        a kept chunk does not return to the pool. Chunks that are not kept, or were copied, are released.
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
        """Return the kept appends from `offset` up to at most `end_offset`. They have at most `max_bytes`,
        but the first append may be larger. Return None if no kept append begins at `offset`, or if the
        append that begins there ends above `end_offset`.
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
        """Release the appends below `offset`; a follower that lacks these records reads them from the log."""
        kept = self._kept
        with suppress(IndexError):  # another thread has cleared the deque
            while kept and kept[0].next_offset <= offset:
                kept.popleft().data = None

    def clear(self) -> None:
        """Release all appends; the caller holds the append token."""
        self.drop_below(INT64_MAX)


def _data_of(chunk: Encoded) -> bytes | memoryview | None:
    """Return bytes of a chunk that never change again. A small chunk is copied, and then released. If a large
    chunk's memory comes from the pool, that memory is returned without a copy. Return None for a large chunk
    whose memory belongs to the caller of the append.
    """
    if chunk.size <= COPIED:
        data = bytes(chunk.data)
        chunk.release()
        return data
    return chunk.data if chunk.pooled else None
