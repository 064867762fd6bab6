"""Appends a producer's batches in pieces. One call of C appends all pieces.

On disk are record batches; each piece is an append of its own. Threads: any. A call of C that returns while
another thread runs Python waits up to 5 ms for the interpreter's lock, and the producer could send some MB
during that wait. So one call appends many pieces. Each piece is small enough to stay in a core's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.errors import StorageError, copy_of
from segstore.records import Columns, Template, batch_type
from segstore.records.encode import c_template
from segstore.records.encoded import pool
from segstore.storage.log.append import undone

if TYPE_CHECKING:
    from segstore.storage.log.partition import Writable

PIECE_BYTES = 1 << 20


class Pieces(NamedTuple):
    """The appended batches. `offsets` are their base offsets, and `size` is the sum of their bytes on disk.
    `append_times` are the timestamps in ms that the log gave the batches, each -1 if the records keep their
    own. `error` is the disk's error at the next piece, or None.
    """

    offsets: list[int]
    append_times: list[int]
    size: int
    error: StorageError | None


NOTHING = Pieces([], [], 0, None)


def append_pieces(
    log: Writable, columns: Columns, cuts: Sequence[int], compression: str | None, template: Template
) -> Pieces:
    """Append batches by one call of C. C stops early if Python must append; return the appended batches. The
    caller appends the remaining records by `append_batches`. A batch ends before each record whose number is
    in `cuts`; no batch is above `PIECE_BYTES`, nor above the topic's limits.

    Appends nothing if the topic has replicas, flush.messages or flush.ms, if the batches get a codec, or if
    the columns have no timestamps. Raises the errors of `append_batches` for wrong records, and for a log
    that can't be written.
    """
    partition = log.partition_for_write()
    tail, validator = partition.tail.native, partition.validator
    if tail.is_flushed or partition.acks is not None:
        return NOTHING
    if validator.codec_for(compression)[0] or columns.timestamps is None:
        return NOTHING
    validator.check(*columns.span, columns.keys.has_nulls, partition.context.clock())
    batches, ends, buffer = (
        np.empty(len(cuts) + 1, batch_type()),
        np.array(cuts, np.int64),
        pool.take(PIECE_BYTES),
    )
    done = ffi.new("int64_t[2]")
    answer = lib.seg_tail_encode(
        tail.c, columns.keys.c, columns.values.c, columns.headers.c if columns.headers else ffi.NULL,
        held("int64_t *", columns.timestamps), columns.n, held("int64_t *", ends) if cuts else ffi.NULL,
        len(cuts), c_template(template, 0), held("uint8_t *", buffer), PIECE_BYTES,
        held("seg_batch *", batches), lib.SEG_NOW if tail.clock is None else tail.clock(), done, done + 1,
    )  # fmt: skip
    pool.give(buffer)
    error = None
    if lib.SEG_E_ROOM < answer < 0:  # a write has failed
        try:
            undone(partition.tail, answer, PIECE_BYTES)
        except StorageError as refused:
            # a copy is kept, because the traceback of `refused` refers to the records
            error = copy_of(refused)
    taken = batches[: done[0]]
    stamps = taken["max_timestamp"].tolist() if tail.c.stamps else [-1] * len(taken)
    return Pieces(taken["base_offset"].tolist(), stamps, done[1], error)
