"""Applies the batch headers of segments to producer state, and writes the `.txnindex` files.

Only `.txnindex` files are written. A segment gets this file at its first abort. The file is synced after the
log, so if the file differs from the control batches in the log, the file is wrong. Brokers read the file;
segstore's readers don't. Threads: the owner of the state calls `replay` and `take_in`; the holder of the
partition's append token (the lock for appends) changes index files; `mend` is called before the partition is
used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from segstore import names
from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.files import Files
from segstore.index.txn_index import ENTRY_SIZE, AbortedTxn, format_entries, parse
from segstore.logger import Logger
from segstore.records import batch_type, decode, scan
from segstore.records.control import ABORT, parse_control
from segstore.records.header import NO_EPOCH
from segstore.storage.producers.producer_state import ProducerState
from segstore.storage.segment.batch_scan import BAD, walk_past_damage
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray


def replay(
    state: ProducerState,
    segment: Segment,
    end: int,
    damaged: dict[int, CorruptRecordError] | None = None,
) -> list[AbortedTxn]:
    """Apply the batches in the segment's first `end` bytes to `state`, unless they were applied before.
    Return the transactions that these batches abort. `damaged` is passed to `take_in`.
    """
    aborted: list[AbortedTxn] = []
    files, handle = segment.pool.files, segment.handle
    for step in walk_past_damage(files, handle, end, check_crcs=False, sparse=True):
        aborted += take_in(state, segment, step.headers, damaged)
    return aborted


def take_in(
    state: ProducerState,
    segment: Segment,
    memory: Any,
    damaged: dict[int, CorruptRecordError] | None = None,
) -> list[AbortedTxn]:
    """Apply batches of a segment to `state`, and return the transactions that they abort. `memory` is the
    memory of an array of `seg_batch` with the batch headers.

    If a transaction marker can't be read, CorruptRecordError is raised. But if `damaged` is given, the error
    is put into `damaged` under the marker's offset, and the marker counts as an abort.
    """

    def read_control(i: int) -> tuple[int, int]:
        batches = np.frombuffer(memory, batch_type())
        try:
            return read_marker(segment, batches[i : i + 1])
        except CorruptRecordError as error:
            if damaged is None:
                raise
            damaged[int(batches["base_offset"][i])] = error
            return ABORT, NO_EPOCH

    return state.update(memory, read_control)


def read_marker(segment: Segment, batch: NDArray[np.void]) -> tuple[int, int]:
    """Return (kind, coordinator epoch) of the transaction marker in a control batch. `batch` is an array with
    this one batch header. Raises CorruptRecordError.
    """
    position, size = int(batch["position"][0]), int(batch["size"][0])
    data = segment.pool.files.pread(segment.handle, size, position)
    whole, stop = scan(data, position)
    if not len(whole):
        raise CorruptRecordError(
            segment.path, position, int(batch["base_offset"][0]), BAD.get(stop.status, "the file was cut")
        )
    record = decode(data, whole, segment.path, position)[0]
    return parse_control(record.key, record.value, file=segment.path, position=position, offset=record.offset)


# --- aborts ------------------------------------------------------------------------------------

log = Logger("segstore")


def index_size(files: Files, segment: Segment) -> int:
    """Return the size in bytes of the whole entries in a segment's transaction index; 0 if there is no file.
    Raises OSError.
    """
    try:
        size = files.size(segment.file(names.TXN_INDEX))
    except FileNotFoundError:
        return 0
    return size - size % ENTRY_SIZE


def add_aborted(files: Files, segment: Segment, txns: Sequence[AbortedTxn]) -> None:
    """Add transactions to the `.txnindex` of the segment whose transaction markers aborted them. Raises
    OSError.
    """
    size = index_size(files, segment)
    with files.open(segment.file(names.TXN_INDEX), write=True, create=True) as handle:
        files.pwrite(handle, format_entries(txns), size)
    segment.unsynced_aborts = True


def cut_index(files: Files, segment: Segment, size: int) -> None:
    """Cut a segment's `.txnindex` to `size` bytes; remove the file if `size` is 0. Raises OSError."""
    path = segment.file(names.TXN_INDEX)
    if not files.exists(path):
        return
    if not size:
        files.unlink(path)
        return
    with files.open(path, write=True) as handle:
        files.truncate(handle, size)


def mend(
    files: Files,
    segments: list[Segment],
    end_offset: int,
    state: ProducerState,
    state_at: Callable[[int], ProducerState],
    synced: int,
) -> None:
    """Apply the batches of the segments up to the log's end, `end_offset`, to `state`. Rewrite each
    `.txnindex` file that is damaged, or differs from the aborts in a replayed segment. Raises OSError.

    `state_at(offset)` returns the state in the newest snapshot at or below this offset. A file's entries for
    transaction markers below the offset `synced` stay. An entry for a later marker stays only if the log has
    the marker, because a power cut may have removed the marker.
    """
    ends = [*[s.base_offset for s in segments[1:]], end_offset]
    for slot, segment in enumerate(segments):
        since, found = state.map_end_offset, None
        if ends[slot] > since:
            found = replay(state, segment, segment.size, {})
        path = segment.file(names.TXN_INDEX)
        data = files.read_file(path) if files.exists(path) else b""
        if not data and not found and (found is None or since <= segment.base_offset):
            continue  # the file need not be written, because no transaction was aborted in this segment
        held = parse(data, segment.base_offset)
        held = held[held["last_offset"] < ends[slot]]
        if found is None and len(held) * ENTRY_SIZE == len(data):
            continue
        if found is None or since > segment.base_offset:
            found = _aborted_in(state_at(segment.base_offset), segments[: slot + 1], ends)
        held = held[held["last_offset"] < synced]
        entries = [AbortedTxn(*fields[1:]) for fields in held.tolist()]
        right = format_entries(merged(entries, found))
        if right != data:
            _replace(files, segment, right)
        elif data:
            # The entries are right, but an earlier sync may have failed. They are written and synced again,
            # because they count as durable from now on.
            with files.open(path, write=True) as handle:
                files.pwrite(handle, data, 0)
                files.sync(handle)


def _aborted_in(state: ProducerState, segments: list[Segment], ends: list[int]) -> list[AbortedTxn]:
    """Replay all `segments`, and return the transactions that the transaction markers in the last segment
    abort.
    """
    found: list[AbortedTxn] = []
    for segment, end in zip(segments, ends, strict=False):
        found = replay(state, segment, segment.size, {}) if end > state.map_end_offset else []
    return found


def merged(held: list[AbortedTxn], found: list[AbortedTxn]) -> list[AbortedTxn]:
    """Return the entries `held`, from the file, and `found`, from the log, ordered by last offset. If both
    have an entry for a transaction, the result has the entry with the lower first offset, because compaction,
    deletion or repair may have removed the first batches from the log.
    """
    kept = {txn.last_offset: txn for txn in held}
    for txn in found:
        known = kept.get(txn.last_offset)
        if known is None or known.producer_id != txn.producer_id or known.first_offset > txn.first_offset:
            kept[txn.last_offset] = txn
    return [kept[last] for last in sorted(kept)]


def _replace(files: Files, segment: Segment, data: bytes) -> None:
    path = segment.file(names.TXN_INDEX)
    is_there = files.exists(path)
    # A missing file causes no warning, because the last segment of a restored log may have no file.
    if is_there:
        log.warning("%s did not say what its log says: made anew", path)
    if data:
        files.write_atomic(path, data)
    elif is_there:
        files.unlink(path)
