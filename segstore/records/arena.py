"""Compressed batches into one piece of memory; nothing on disk.

Functions without state: safe from any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from segstore.errors import CorruptRecordError
from segstore.records.codecs import DecompressError, bound, decompress_into, guess
from segstore.records.header import CODEC_MASK, CODECS, HEADER_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray


def corrupt(where: str, batch: np.void, reason: str) -> NoReturn:
    """Raise CorruptRecordError for a batch of file `where`."""
    raise CorruptRecordError(where, int(batch["position"]), int(batch["base_offset"]), reason)


def decompress_batches(
    buf: Any, batches: NDArray[np.void], where: str, position: int, limit: int, most: int
) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """The plain records of the batches of `buf`, which begins at `position`: arena, where each batch's
    lie in it, and their sizes. It ends with the batch that makes them `most` bytes or more.
    CorruptRecordError where one is damaged or above `limit`."""
    view = memoryview(buf)
    starts = (batches["position"] - (position - HEADER_SIZE)).tolist()
    ends = (batches["position"] - position + batches["size"]).tolist()
    codecs = (batches["attributes"] & CODEC_MASK).tolist()
    at, arena = [0], _Arena(sum(ends) - sum(starts))
    for i, (start, end, codec) in enumerate(zip(starts, ends, codecs, strict=True)):
        if codec >= len(CODECS):
            corrupt(where, batches[i], f"its codec {codec} is unknown")
        try:
            at.append(arena.add(codec, view[start:end], limit if codec else end - start))
        except DecompressError as e:
            corrupt(where, batches[i], str(e))
        if at[-1] >= most:
            break
    places = np.array(at, np.int64)
    return arena.bytes(), places[:-1], np.diff(places)


class _Arena:
    """A buffer that grows as batches are decompressed into it one after the other."""

    def __init__(self, size: int) -> None:
        self._buffer = np.empty(6 * size + 4096, np.uint8)
        self._used = 0

    def add(self, codec: int, data: memoryview, limit: int) -> int:
        """Append the plain bytes of `data`, at most `limit`; returns the bytes used so far."""
        room = guess(codec, data, limit)
        while True:
            self._reserve(room)
            n = decompress_into(codec, data, self._buffer.data[self._used :], limit)
            if n >= 0:
                self._used += n
                return self._used
            room = min(bound(codec, len(data), limit), 4 * max(room, len(self._buffer) - self._used))

    def _reserve(self, room: int) -> None:
        need = self._used + room
        if need > len(self._buffer):
            larger = np.empty(max(need, 2 * len(self._buffer)), np.uint8)
            larger[: self._used] = self._buffer[: self._used]
            self._buffer = larger

    def bytes(self) -> bytes:
        """What was added, as the bytes object that keys and values are cut from."""
        return self._buffer[: self._used].tobytes()
