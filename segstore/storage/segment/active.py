"""The active segment of a partition: its log, offset index and time index while they are written.

It says what fits, gives batches their offsets, hands their bytes to what writes them, and indexes them;
`storage/log/writer.py` appends to it, rolls, and takes back what fails.

Where the log ends is in one record, `end`, which C moves too, while the log's tail is lent
(`_native/contract/log.h`: `seg_end`). It lives as long as its `ActiveSegment`, and nothing copies it.

Invariant: bytes of the log from `end.position` on belong to no batch; they are overwritten, or cut off by
`rewind` or recovery. Room in the indexes is reserved before the log is written, so that a full disk shows
there first. Threads: one at a time, the holder of the partition's append token.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from segstore import names
from segstore._native import ffi, lib
from segstore.config import TopicConfig
from segstore.errors import OffsetsExhaustedError
from segstore.files import Files, Handle
from segstore.files.gathered_write import Write
from segstore.index import ActiveOffsetIndex, ActiveTimeIndex, IndexBuilder
from segstore.index.builder import EMPTY
from segstore.index.sparse import MOST_RELATIVE
from segstore.integers import INT64_MAX
from segstore.records import Encoded
from segstore.records.encoded import checked
from segstore.storage.segment.batch_scan import walk
from segstore.storage.segment.native_tail import NativeTail
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Mark(Protocol):
    """A copy of the record (`seg_end`), to go back to."""

    position: int
    next_offset: int
    rolled_ms: int
    state: Any


_record: Callable[[Any], Any] = partial(ffi.new, ffi.typeof("seg_end *"))


class Writes(Protocol):
    """Takes writes: an open file, the bytes, and their position."""

    def append(self, write: Write, /) -> None: ...


class ActiveSegment:
    """The last segment of a partition, open for appending."""

    def __init__(
        self, segment: Segment, config: TopicConfig, next_offset: int, index_bytes: int | None = None
    ) -> None:
        """Open the files: `segment.size` bytes are valid, and `next_offset` is the offset behind them. Raises
        OSError.
        """
        self.segment = segment
        self.end = _record(
            {
                "position": segment.size,
                "next_offset": next_offset,
                "base_offset": segment.base_offset,
                "rolled_ms": -1,  # Kafka: rollingBasedTimestamp
                "state": EMPTY,
            }
        )
        files: Files = segment.pool.files
        self._files = files
        state = ffi.addressof(self.end, "state")
        self._builder = IndexBuilder(segment.base_offset, config.index_interval_bytes, state)
        # Kafka's segment.jitter.ms: partitions that began together don't all roll together.
        self._jitter = random.random()
        self.configure(config)
        self._born_ms: int | None = None  # by the clock: when the first batch came, or was found
        self._open_indexes(index_bytes or config.segment_index_bytes)

    @classmethod
    def reopened_at(cls, segment: Segment, config: TopicConfig, size: int, next_offset: int) -> ActiveSegment:
        """Open a segment of which the first `size` bytes are valid, its indexes too, whatever limit is set
        for these now. Raises OSError.
        """
        segment.size = size
        segment.attach(None)
        return cls(segment, config, next_offset, index_bytes=MOST_RELATIVE)

    def configure(self, config: TopicConfig) -> None:
        """Use changed settings from the next append on."""
        most, jitter = config.max_segment_ms, config.segment_jitter_ms
        self.config = config
        self._by_clock = config.message_timestamp_type == "LogAppendTime"
        # How old the segment may become, in ms. The jitter takes off less than that, whatever is set (Kafka:
        # LogConfig.randomSegmentJitter): else each record would get a segment of its own.
        self._most_ms = most - int(self._jitter * min(jitter, most)) if jitter else most
        # A batch that is so much later than the first one needs no second look; by the clock each one does.
        self._young_ms = -1 if self._by_clock else self._most_ms

    # --- opening -----------------------------------------------------------------------

    def _open_indexes(self, index_bytes: int) -> None:
        segment = self.segment
        offsets, times = segment.indexes
        n_offsets, n_times = offsets.entries, times.entries
        last, position = offsets.entry(-1) if n_offsets else (-1, 0)
        timestamp, relative = times.entry(-1) if n_times else (-1, -1)
        self._offsets = ActiveOffsetIndex(
            self._files, segment.file(names.INDEX), index_bytes, self.end, n_offsets
        )
        self._times = ActiveTimeIndex(
            self._files, segment.file(names.TIME_INDEX), index_bytes, self.end, n_times
        )
        largest = timestamp, segment.base_offset + relative if n_times else -1
        size = self.end.position
        self._builder.state = (size - position if last >= 0 else size, *largest, timestamp)
        # A power cut may have taken time index entries: the largest timestamp is looked for from the last
        # one's batch on.
        told = offsets.lookup(relative) if n_times else None
        self._recall_largest(told[1] if told else 0)
        segment.attach((self._offsets, self._times), self.end)

    def _recall_largest(self, position: int) -> None:
        """Find the largest timestamp, which may lie behind the last time index entry's batch, at `position`
        or behind it; and the timestamp of the first batch, by which a roll is due.
        """
        since, timestamp, offset, entry = self._builder.state
        files, handle, end = self._files, self.handle, self.end.position
        for step in walk(files, handle, position, end, check_crcs=False, chunk=1 << 16, sparse=True):
            for batch in step.batches[["max_timestamp", "last_offset"]].tolist():
                if batch[0] > timestamp:
                    timestamp, offset = batch
        self._builder.state = since, timestamp, offset, entry
        first = ffi.new("seg_batch *")
        if self.segment.header_at(0, end, first) is not None:
            self.end.rolled_ms = first.max_timestamp

    @property
    def handle(self) -> Handle:
        """Return the open log. It is not kept, so that idle partitions hold no descriptor."""
        return self.segment.pool.get(self.segment.path, write=True)

    # --- appending ---------------------------------------------------------------------

    def mark(self) -> Mark:
        """Return a copy of the record, for `recall` and `rewind`."""
        mark: Mark = _record(self.end[0])
        return mark

    def room(
        self, batches: NDArray[np.void], nbytes: int, clock: Callable[[], int], as_is: bool = False
    ) -> int:
        """Return how many of these batches, `nbytes` in all, which get the next offsets, or keep their own
        (`as_is`), fit into the segment; 0: roll first. For these there is room in the indexes, on disk, when
        this returns. Raises OSError where the disk has none; nothing has changed then.

        As org.apache.kafka.storage.internals.log.LogSegment.shouldRoll.
        """
        n, end = len(batches), self.end
        position = end.position
        if not position:
            self._born_ms = clock()
        elif not (0 <= batches["max_timestamp"].item(0) - end.rolled_ms <= self._young_ms) and self._is_old(
            batches, clock, as_is
        ):
            return 0
        # One entry less than C would make: `_room_for_some` decides at the end of an index.
        if (
            n < end.offset_room - end.offset_entries
            and n <= end.time_room - end.time_entries
            and position + nbytes <= self.config.segment_bytes
        ):
            more = np.add.reduce(batches["last_offset"] - batches["base_offset"]) + n - 1
            ahead = end.next_offset - end.base_offset + more
            if as_is:
                ahead = batches["last_offset"].item(-1) - end.base_offset
            if ahead <= MOST_RELATIVE:
                return n
        return self._room_for_some(batches, as_is)

    def _room_for_some(self, batches: NDArray[np.void], as_is: bool) -> int:
        if self._offsets.is_full(1) or self._times.is_full(1):
            return 0
        end = self.end
        spare = min(
            self._offsets.max_entries - end.offset_entries, self._times.max_entries - end.time_entries
        )
        n = min(len(batches), max(spare - 1, 1))
        ends = batches["size"][:n].cumsum(dtype="int64")
        n = int(ends.searchsorted(self.config.segment_bytes - end.position, side="right"))
        if as_is:
            # segment.bytes was larger when the leader wrote a larger batch: that gets its own segment.
            n = n if end.position else max(n, 1)
            last = batches["last_offset"][:n] - end.base_offset
        else:
            offsets = batches["last_offset"][:n] - batches["base_offset"][:n] + 1
            last = offsets.cumsum() - 1 + (end.next_offset - end.base_offset)
        n = int(last.searchsorted(MOST_RELATIVE, side="right"))
        if n:
            self._offsets.reserve(n)
            self._times.reserve(n + 1)
        return n

    def _is_old(self, batches: NDArray[np.void], clock: Callable[[], int], as_is: bool) -> bool:
        rolled_ms = self.end.rolled_ms
        if rolled_ms < 0:
            return False
        # Kafka measures by record timestamps where there are any, else by the clock, which also stamps
        # the records of a LogAppendTime topic; those of a follower come with their leader's stamp.
        latest = int(batches["max_timestamp"][0])
        if latest < 0 or (self._by_clock and not as_is):
            latest = clock()
        return bool(latest - rolled_ms > self._most_ms)

    def outlived(self, now_ms: int) -> bool:
        """Return whether the segment was begun more than segment.ms ago by the clock, whatever its records
        say: an idle log must not keep old records for ever. The age of a reopened segment counts from the
        first call of this.
        """
        if not self.end.position:
            return False
        if self._born_ms is None or now_ms < self._born_ms:  # the clock was set back
            self._born_ms = now_ms
        return now_ms - self._born_ms > self._most_ms

    def append(
        self,
        batches: NDArray[np.void],
        headers: Any,
        chunk: Encoded,
        at: int,
        size: int,
        epoch: int,
        stamp: int,
        out: Writes,
    ) -> None:
        """Append batches for which there is room: those with these `headers`, `size` bytes from byte `at` of
        the chunk on. They get the next offsets, the leader epoch, and with a `stamp` of 0 ms or more
        LogAppendTime; `out` gets the write of their bytes, and the indexes their entries.

        Raises OffsetsExhaustedError, InvalidArgumentError; nothing has changed then.
        """
        end = self.end
        position = end.position
        after = lib.seg_assign(
            chunk.ptr + at, size, headers, len(batches), end.next_offset, epoch, stamp, position
        )
        if after < 0:
            self._check_offsets(batches)
            checked(after)
        handle = self.segment.pool.get(self.segment.path, write=True)
        out.append((handle, chunk.buffer.data[at : at + size], position))
        self.appended(batches, position + size, after)

    def append_as_is(
        self, batches: NDArray[np.void], chunk: Encoded, at: int, size: int, out: Writes
    ) -> None:
        """Append batches for which there is room, as `append` does; they keep their offsets and epochs."""
        position = self.end.position
        handle = self.segment.pool.get(self.segment.path, write=True)
        out.append((handle, chunk.buffer.data[at : at + size], position))
        moved = batches.copy()
        moved["position"] += position - at
        self.appended(moved, position + size, int(moved["last_offset"][-1]) + 1)

    def _check_offsets(self, batches: NDArray[np.void]) -> None:
        """Raises OffsetsExhaustedError where too few offsets are left."""
        need = int((batches["last_offset"] - batches["base_offset"] + 1).sum())
        left = INT64_MAX - self.end.next_offset
        if need > left:
            raise OffsetsExhaustedError(
                f"{self.segment.directory} has {left:,} offsets left, and {need:,} are needed: the last one"
                f" that a record may have is {INT64_MAX - 1}"
            )

    def appended(self, batches: NDArray[np.void], size: int, next_offset: int) -> None:
        """Index these batches, which lie in the log, and move the end behind them: to byte `size`."""
        offset_entries, time_entries = self._builder.add(batches)
        if offset_entries:
            self._offsets.append(offset_entries)
            self._times.append(time_entries)
        end = self.end
        if end.rolled_ms < 0:
            end.rolled_ms = int(batches["max_timestamp"][0])
        end.position, end.next_offset = size, next_offset

    def rewind(self, mark: Mark) -> None:
        """Go back to `mark`: cut the log and the indexes. Raises OSError where the disk refuses that."""
        self.recall(mark)
        relative = mark.next_offset - self.segment.base_offset
        self._offsets.truncate_to(relative)
        self._times.truncate_to(relative)
        # A roll that failed may have left its closing time index entry, which is right, and must not come
        # twice.
        last = self._times.entry(-1)[0] if self._times.entries else -1
        self.end.state.last_time_entry = last
        self._files.truncate(self.handle, mark.position)

    def recall(self, mark: Mark) -> None:
        """Let the log end at `mark` in memory, so that the bytes behind belong to no batch again; also where
        the segment was sealed since. The indexes keep their entries.
        """
        end, self.segment.end = self.end, self.end
        end.state, end.rolled_ms = mark.state, mark.rolled_ms
        end.position, end.next_offset = mark.position, mark.next_offset

    # --- the native tail -----------------------------------------------------------------

    def lend(self, tail: NativeTail) -> None:
        """Lend a tail the record of this segment, the memory of its indexes, and what rolls it. C moves the
        record from then on.
        """
        c, offsets, times = tail.c, self._offsets.view, self._times.view
        c.end, c.offset_index, c.time_index = self.end, offsets.pointer, times.pointer
        c.most_position, c.young_ms = self.config.segment_bytes, self._most_ms
        c.interval = self._builder.interval_bytes
        tail.keep(self.end, offsets, times)

    # --- sealing -----------------------------------------------------------------------

    def trim(self) -> None:
        """Add the closing time index entry and trim both index files, as Kafka does at a roll and at close.
        Raises OSError.
        """
        closing = self._builder.last_time_entry()
        self._times.append(closing)
        self._offsets.seal()
        self._times.seal()

    def seal(self) -> None:
        """Trim the segment, to which nothing will be appended any more. Raises OSError."""
        self.trim()
        self.segment.size = self.end.position
        self.segment.sealed = True
        self.segment.attach(None)
