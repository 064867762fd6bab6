"""Encoded batches in buffers of a small pool, and how they get their offsets; nothing is on disk.

An Encoded belongs to one thread at a time; the pool to all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from segstore._native import held, lib
from segstore.errors import InvalidArgumentError, RecordTooLargeError
from segstore.records.codecs import MAX_PLAIN
from segstore.records.header import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, batch_ptr

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_BYTES = 1 << 20
_POOLED = 4


@dataclass(frozen=True)
class Template:
    """Header fields that all batches of an `encode` share (see `seg_template`).

    `attributes` has no codec; `base_sequence` counts on from batch to batch; `base_offset` is needed only
    where `assign` is not called afterwards.
    """

    attributes: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    base_sequence: int = NO_SEQUENCE
    base_offset: int = 0
    leader_epoch: int = 0
    delete_horizon: int = -1


PLAIN = Template()


class _Pool:
    """Buffers of CHUNK_BYTES whose pages are already in memory. A list's own steps are atomic: there is no
    lock within which a signal handler could run, and append.
    """

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        if size <= CHUNK_BYTES and self._free:
            try:
                return self._free.pop()
            except IndexError:
                """Another thread took the last one."""
        return np.empty(max(size, CHUNK_BYTES), np.uint8)

    def give(self, buffer: NDArray[np.uint8]) -> None:
        if len(buffer) == CHUNK_BYTES and len(self._free) < _POOLED:
            self._free.append(buffer)


pool = _Pool()


class Encoded:
    """Whole batches, one after the other: `buffer[:size]`, headers in `batches` (positions from 0).

    `ptr` and `headers` are the addresses of buffer and batches for C. After `release` the buffer belongs to
    the pool again and must not be touched; an Encoded that is never released is simply freed.
    """

    __slots__ = ("_pooled", "batches", "buffer", "headers", "ptr", "size")

    def __init__(self, buffer: NDArray[np.uint8], size: int, batches: NDArray[np.void]) -> None:
        self.buffer, self.size, self.batches, self._pooled = buffer, size, batches, True
        self.ptr, self.headers = held("uint8_t *", buffer), batch_ptr(batches)

    @property
    def data(self) -> memoryview:
        """The bytes to write, as a writable view."""
        return self.buffer.data[: self.size]

    @property
    def records(self) -> int:
        """The number of records in all batches."""
        return int(self.batches["count"].sum())

    def release(self) -> None:
        """Give the buffer back to the pool; a second call does nothing."""
        if self._pooled:
            self._pooled = False
            pool.give(self.buffer)


def assign(
    encoded: Encoded, base_offset: int, leader_epoch: int, append_time: int = -1, position: int = 0
) -> int:
    """Give the batches their offsets, from `base_offset` on, and file positions, from `position` on; returns
    the next offset.

    `append_time` >= 0 (ms) makes the batches LogAppendTime with that timestamp.
    """
    offset = lib.seg_assign(
        encoded.ptr, encoded.size, encoded.headers, len(encoded.batches),
        base_offset, leader_epoch, append_time, position,
    )  # fmt: skip
    checked(offset)
    return int(offset)


def check_plain(size: int) -> None:
    """Raises RecordTooLargeError for a batch of one record that is larger, uncompressed, than a reader
    allows.
    """
    if size > MAX_PLAIN:
        raise RecordTooLargeError(
            f"the record makes a batch of {size:,} bytes before compression: allowed are {MAX_PLAIN:,}"
        )


def checked(size: int) -> None:
    """Raises the error for a negative result of an encoding call of C."""
    if size == lib.SEG_E_COLUMN:
        raise InvalidArgumentError("a column's offsets point outside its data, or fall")
    if size == lib.SEG_E_NULL:
        raise InvalidArgumentError("a header has no name: allowed is str")
    if size == lib.SEG_E_TOO_LARGE:
        raise RecordTooLargeError(f"a record does not fit a batch: allowed are {MAX_PLAIN:,} bytes")
    if size < 0:
        raise InvalidArgumentError(f"columns can't be encoded: {size}")
