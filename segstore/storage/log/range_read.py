"""The fast path to many records: a read is one call of C, which searches the index, reads, checks CRCs and
decodes.

Files on disk are only read. Threads: any, without locks, because each call has working memory of its own. The
slow path is `read.py`. It handles all cases, and it alone handles compressed batches, gaps, damage, the end
of a segment and errors. If both paths find records, they find the same records.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from segstore import read_buffers
from segstore._native import ffi, held, unset
from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.records import BATCH_SIZE, CONTROL_FLAG, Records, batch_type, decode
from segstore.records.records import OFFSET, ROWS, first_at
from segstore.storage.log.point_read import leave
from segstore.storage.log.read import without_control
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADERS = 1 << 14
"""The most batches of a read."""
_RECORD_BYTES = 32
"""The fewest bytes per record that `_room` assumes. If a segment has fewer bytes per offset, compaction has
usually removed records from it.
"""

_BYTES, _INT64S = map(ffi.typeof, ("uint8_t[]", "int64_t *"))


class _Range:
    """The working memory of one call: a `seg_range`, the `seg_segment` that is read, and the records per byte
    of the last read.
    """

    __slots__ = ("batches", "c", "density", "of", "segment")

    def __init__(self) -> None:
        # The memory is not zeroed, because pages that were never written take no physical memory.
        self.batches = unset("seg_batch[]", _HEADERS)
        self.c = ffi.new("seg_range *", {"batches": self.batches, "room": _HEADERS})
        self.segment = ffi.new("seg_segment *")
        self.of = ffi.buffer(self.segment)
        self.density = 0.0


_unused: list[_Range] = []
"""Working memory for the next calls. A call takes one object, and puts it back when it ends. There may be
several objects, because a signal handler may interrupt a read, and make a read itself.
"""


def read_range(view: LogView, offset: int, limit: int, max_bytes: int, check_crcs: bool) -> Records | None:
    """Return the records from `offset` on, without control records; None if the slow path must be taken. The
    records are those of whole batches, which together have at most `max_bytes`, and begin below offset
    `limit`.
    """
    segments, bases, _, below, end, _ = view
    slot = bisect_right(bases, offset, 1)
    segment = segments[slot - 1]
    is_last = slot == len(bases)
    if not is_last:  # the next read continues in the next segment
        end, below = segment.final_size, min(bases[slot], below)
    try:
        found = _unused.pop()
    except IndexError:
        found = _Range()
    c, size, records = found.c, max_bytes, None
    if is_last and check_crcs and c.of_segment == segment.number and c.next_offset == offset:
        size = min(size, end - c.next_position)  # the log may have fewer than `size` bytes from here on
    if c.left != segment.number and read_buffers.LEAST <= size <= end:
        memory = read_buffers.unset(size)
        if memory is not None:
            records = _read(found, segment, end, below, offset, limit, memory[1], check_crcs)
            read_buffers.keep(*memory)
    _unused.append(found)
    return records


def _read(
    found: _Range,
    segment: Segment,
    end: int,
    below: int,
    offset: int,
    limit: int,
    data: bytes,
    check_crcs: bool,
) -> Records | None:
    size = len(data)
    room = _room(found, segment, end, below, size)
    matrix = read_buffers.matrix(ROWS, room)
    try:
        handle, _index = segment.handle, segment.fill(found.segment, found.of, end, below)
        done = segment.pool.files.read_range(
            handle, found.segment, offset, limit, check_crcs,
            held(_BYTES, data), size, held(_INT64S, matrix), room, found.c,
        )  # fmt: skip
    except (OSError, CorruptRecordError) as error:
        leave(error)
        return None
    return _records(found, segment, offset, data, matrix) if done else None


def _room(found: _Range, segment: Segment, end: int, below: int, size: int) -> int:
    """Return the number of records for which a read of `size` bytes needs room: somewhat more than the
    density of the last read suggests.
    """
    density = found.density
    if found.c.of_segment != segment.number:
        density = min((below - segment.base_offset) / end, 1 / _RECORD_BYTES)
    return int(density * size * 1.0625) + 64


def _records(
    found: _Range, segment: Segment, offset: int, data: bytes, matrix: NDArray[np.int64]
) -> Records | None:
    c = found.c
    n, position = c.records, c.position
    batches = np.frombuffer(bytearray(ffi.buffer(c.batches, c.n_batches * BATCH_SIZE)), batch_type())
    found.density = n / len(data)
    if n > matrix.shape[1]:  # the records are smaller than `_room` expected, and not all fit into the matrix
        try:
            records = decode(data, batches, segment.path, position, from_offset=offset)
        except CorruptRecordError:
            return None
    else:
        matrix = matrix[:, :n]
        if n and offset > matrix.item(OFFSET, 0) and (skip := first_at(matrix, offset)):
            matrix = matrix[:, skip:]
        records = Records(data, matrix, c.next_offset, batches, c.with_headers > 0)
    return without_control(records) if c.attributes & CONTROL_FLAG else records
