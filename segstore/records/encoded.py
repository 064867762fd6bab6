"""`Encoded`: encoded batches in a buffer of a small pool; `Template`: header fields that batches share.
Nothing is on disk.

An Encoded belongs to one thread at a time; the pool is shared by all threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, held, lib, unset
from segstore.arrays import np
from segstore.errors import InvalidArgumentError, RecordTooLargeError
from segstore.records.codecs import MAX_PLAIN
from segstore.records.header import BATCH_SIZE, NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, batch_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_BYTES = 2 << 20
"""Largest number of plain bytes that one call of C encodes. With 1 MiB, an append of 10,000 records of 100
bytes needed two calls, and a tenth more time.
"""
_POOLED = 3  # an append may encode this many chunks before it waits for other appends


class Template(NamedTuple):
    """Header fields that all batches of an `encode` share (see `seg_template`).

    `attributes` has no codec; `base_sequence` rises from batch to batch; `base_offset` matters only if no log
    assigns the offsets later.
    """

    attributes: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    base_sequence: int = NO_SEQUENCE
    base_offset: int = 0
    leader_epoch: int = 0
    delete_horizon: int = -1


PLAIN = Template()


class _BufferPool:
    """A pool of buffers of CHUNK_BYTES whose pages are already in memory."""

    def __init__(self) -> None:
        # No lock guards the list: a signal handler could interrupt the thread that holds the lock, append
        # records, and wait for the lock for ever. Each of the list's methods is atomic.
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        if size <= CHUNK_BYTES and self._free:
            try:
                return self._free.pop()
            except IndexError:
                """Another thread has taken the last buffer."""
        return np.empty(max(size, CHUNK_BYTES), np.uint8)

    def give(self, buffer: NDArray[np.uint8]) -> None:
        if len(self._free) < _POOLED:
            self._free.append(buffer)


pool = _BufferPool()


class Encoded:
    """Whole batches, one after the other, in `buffer[:size]`. `batches` has the headers of the batches, with
    positions in `buffer`.

    `ptr` and `headers` are the addresses of the buffer and of the headers, for C. If `pooled`, `release`
    gives the buffer back to the pool, and the buffer must not be used afterwards. If an Encoded is never
    released, its buffer is freed.
    """

    __slots__ = ("buffer", "headers", "n", "pooled", "ptr", "size")

    def __init__(self, buffer: NDArray[np.uint8], size: int, batches: NDArray[np.void]) -> None:
        self.buffer: Any = buffer
        self.size, self.n = size, len(batches)
        self.pooled = len(buffer) == CHUNK_BYTES
        self.ptr = held("uint8_t *", buffer)
        self.headers = held("seg_batch *", batches) if self.n else ffi.NULL

    @classmethod
    def alone(cls, room: int) -> Encoded:
        """Return an Encoded with uninitialized memory for one batch of up to `room` bytes."""
        made = cls.__new__(cls)
        made.ptr, made.headers = unset("uint8_t[]", room), unset("seg_batch *")
        made.buffer, made.size, made.n, made.pooled = ffi.buffer(made.ptr), room, 1, False
        return made

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview, batches: NDArray[np.void]) -> Encoded:
        """Return an Encoded over whole batches, which lie in `data` from its first byte on. Offsets can be
        assigned only if `data` is writable.
        """
        made = cls(np.frombuffer(data, np.uint8), int(batches["size"].sum()), batches)
        made.pooled = False
        return made

    @property
    def data(self) -> memoryview:
        """Return the bytes to write, as a writable view."""
        return memoryview(self.buffer)[: self.size]

    @property
    def batches(self) -> NDArray[np.void]:
        """Return the headers as an array of `batch_type`."""
        headers = ffi.buffer(self.headers, self.n * BATCH_SIZE) if self.n else b""
        return np.frombuffer(headers, batch_type())

    @property
    def records(self) -> int:
        """Return the number of records in all batches."""
        return int(self.batches["count"].sum())

    def release(self) -> None:
        """Give the buffer back to the pool; a second call does nothing."""
        if self.pooled:
            self.pooled = False
            pool.give(self.buffer)


def check_plain(size: int) -> None:
    """Raise RecordTooLargeError for a batch of one record with more than MAX_PLAIN bytes before
    compression.
    """
    if size > MAX_PLAIN:
        raise RecordTooLargeError(
            f"the record makes a batch of {size:,} bytes before compression: allowed are {MAX_PLAIN:,}"
        )


def checked(size: int) -> None:
    """Raise an error if `size`, the result of an encoding call of C, is negative."""
    if size == lib.SEG_E_COLUMN:
        raise InvalidArgumentError("a column's offsets point outside its data, or fall")
    if size == lib.SEG_E_NULL:
        raise InvalidArgumentError("a header has no name: allowed is str")
    if size == lib.SEG_E_TOO_LARGE:
        raise RecordTooLargeError(f"a record does not fit a batch: allowed are {MAX_PLAIN:,} bytes")
    if size < 0:
        raise InvalidArgumentError(f"columns can't be encoded: {size}")
