"""Converts batches of a log to the form in which a producer sends batches: with base offset 0, and the
producer's id and sequence. Nothing is on disk. The functions have no state, and are safe from any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.records.column import WIDE_OFFSETS, Column, HeaderColumns
from segstore.records.columns import Columns
from segstore.records.encoded import Template, checked
from segstore.records.header import batch_ptr, batch_type
from segstore.records.lazy_columns import ByteColumn
from segstore.records.records import Records

if TYPE_CHECKING:
    from numpy.typing import NDArray


def produced(data: memoryview, batch: np.void, template: Template) -> bytearray:
    """Return the one batch in `data`, whose header is `batch`, with a template's offset, leader epoch,
    producer and sequence, and a new CRC. The records of the batch stay unchanged, whether compressed or not.
    """
    made, header = bytearray(data), np.empty(1, batch_type())
    header[0] = batch
    one = header[0]
    one["last_offset"] += template.base_offset - one["base_offset"]
    one["base_offset"], one["leader_epoch"] = template.base_offset, template.leader_epoch
    one["producer_id"], one["producer_epoch"] = template.producer_id, template.producer_epoch
    one["base_sequence"] = template.base_sequence
    with ffi.from_buffer("uint8_t[]", made) as view:
        checked(lib.seg_seal(view, len(made), batch_ptr(header)))
    return made


def columns_of(records: Records) -> Columns:
    """Return the records as columns to encode, without their offsets. No Python object is made per record."""
    headers = records.headers
    flat = None
    if headers.present:
        counts, names, values = headers.flat()
        flat = HeaderColumns(_ends(counts), _column(names), _column(values))
    stamps = np.ascontiguousarray(records.timestamps)
    return Columns(_column(records.values), _column(records.keys), stamps, flat)


def _ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _column(column: ByteColumn) -> Column:
    n = len(column)
    at, lengths = np.ascontiguousarray(column.at), np.ascontiguousarray(column.lengths)
    offsets = np.empty(n + 1, np.int64)
    data = np.empty(max(int(np.maximum(lengths, 0).sum()), 1), np.uint8)
    arena = held("uint8_t[]", column.arena) if column.arena else ffi.NULL
    done = lib.seg_gather(
        arena, len(column.arena), held("int64_t[]", at), held("int64_t[]", lengths), n, 1,
        held("uint8_t[]", data), len(data), held("uint8_t *", offsets),
    )  # fmt: skip
    checked(done)
    nulls = lengths < 0
    validity = np.packbits(~nulls, bitorder="little") if nulls.any() else None
    return Column(WIDE_OFFSETS, n, data, offsets, validity)
