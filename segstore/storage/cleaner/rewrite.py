"""Writes the batches of some segments anew, without what is superseded (Kafka: Cleaner.cleanInto).

On disk: the `.cleaned` files of an `Output`. Threads: the cleaning thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from segstore._native import ffi, held, lib
from segstore.records import BATCH, HEADER_SIZE, batch_ptr
from segstore.records.codecs import compress
from segstore.records.header import CODEC_MASK
from segstore.storage.cleaner.offset_map import OffsetMap, checked, columns
from segstore.storage.cleaner.output import Output
from segstore.storage.cleaner.policy import Policy
from segstore.storage.cleaner.reading import Piece, pieces
from segstore.storage.cleaner.segment_reader import Stretch
from segstore.storage.cleaner.throttle import Throttle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.storage.segment.segment import Segment

_GROWTH = 16
"""Bytes that a record may become larger by: its varints."""


@dataclass
class Counts:
    """`changed`: batches that are not as they were; `keyless`: records that went for want of a key."""

    records_before: int = 0
    records_after: int = 0
    changed: int = 0
    keyless: int = 0


class Rewriter:
    """One pass: the map tells which records stay, the policy which batches; horizons are in ms."""

    def __init__(self, offsets: OffsetMap, policy: Policy, now_ms: int, new_horizon_ms: int) -> None:
        self._map, self._policy = offsets, policy
        self._how = ffi.new("seg_cleaning *")
        self._how.now, self._how.new_horizon = now_ms, new_horizon_ms
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._stretch: Stretch | None = None
        self.counts = Counts()

    def rewrite(self, segment: Segment, output: Output, chunk: int, throttle: Throttle) -> None:
        """Append what stays of a segment. CorruptRecordError, OSError, CleaningStopped."""
        position = self._pass_plain(segment, output, chunk, throttle)
        for piece in pieces(segment, position, chunk, throttle):
            data, batches = self._compact(segment, piece)
            if len(batches):
                throttle(len(data))
                output.add(data, batches)

    def _pass_plain(self, segment: Segment, output: Output, chunk: int, throttle: Throttle) -> int:
        """The plain batches that come first, where they stay plain: up to which byte of the segment."""
        if self._policy.compresses:
            return 0
        if self._stretch is None:
            self._stretch = Stretch(chunk, throttle.at_once)
        stretch, how, counts = self._stretch, self._how, self.counts
        stretch.begin(segment, 0)
        while not stretch.is_over:
            before = stretch.position
            data, batches = stretch.compact(self._map, self._policy.retained, how)
            if stretch.position == before:
                break
            throttle(stretch.position - before)
            counts.records_before += how.records_before
            counts.records_after += how.records
            counts.changed += how.changed
            counts.keyless += how.keyless
            if len(batches):
                throttle(len(data))
                output.add(data, batches)
        return stretch.position

    def _compact(self, segment: Segment, piece: Piece) -> tuple[memoryview, NDArray[np.void]]:
        """What stays of the batches of a piece, one after the other, compressed as it is to be."""
        n, records, how, counts = len(piece.batches), piece.records, self._how, self.counts
        policies = self._policy.policies(segment, piece.batches)
        codecs = self._policy.codecs(piece.batches)
        keep, keyless = self._map.keep(records)
        out, capacity = self._room(len(piece.data) + len(records.arena) + _GROWTH * (len(records) + 8 * n))
        batches, made = np.empty(n, BATCH), np.empty(n, np.uint8)
        used = lib.seg_compact(
            piece.data, len(piece.data), piece.position, records.arena, len(records.arena),
            batch_ptr(piece.batches), _bytes(policies), _bytes(codecs), n, columns(records), how,
            _bytes(keep), out, capacity, batch_ptr(batches), _bytes(made),
        )  # fmt: skip
        checked(used)
        counts.records_before += len(records)
        counts.records_after += how.records
        counts.changed += how.changed
        counts.keyless += keyless
        batches, made = batches[: how.batches], made[: how.batches]
        data = self._buffer.data[:used]
        packed = (made == lib.SEG_REWRITTEN) & (batches["attributes"] & CODEC_MASK != 0)
        return self._compressed(data, batches, packed) if packed.any() else (data, batches)

    def _room(self, size: int) -> tuple[Any, int]:
        if len(self._buffer) < size:
            self._buffer = np.empty(size, np.uint8)
        return held("uint8_t *", self._buffer), len(self._buffer)

    def _compressed(
        self, data: memoryview, batches: NDArray[np.void], packed: NDArray[np.bool_]
    ) -> tuple[memoryview, NDArray[np.void]]:
        """The same with the batches compressed that were written plain, sealed."""
        parts: list[Any] = []
        headers = batch_ptr(batches)
        codecs = (batches["attributes"] & CODEC_MASK).tolist()
        spans = zip(batches["position"].tolist(), batches["size"].tolist(), packed.tolist(), strict=True)
        for i, (at, size, plain) in enumerate(spans):
            part: Any = data[at : at + size]
            if plain:
                squeezed = compress(codecs[i], part[HEADER_SIZE:], self._policy.level[codecs[i]])
                headers[i].size = HEADER_SIZE + len(squeezed)
                part = bytearray(HEADER_SIZE) + bytearray(squeezed)
                checked(lib.seg_seal(ffi.from_buffer("uint8_t[]", part), len(part), headers + i))
            parts.append(part)
        batches["position"] = batches["size"].cumsum(dtype=np.int64) - batches["size"]
        return memoryview(b"".join(parts)), batches


def _bytes(array: NDArray[np.uint8]) -> Any:
    return held("uint8_t *", array)
