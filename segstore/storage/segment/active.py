"""The active segment of a partition: its log, offset index and time index while they are written.

`ActiveSegment` decides which batches fit; `_native/active.c` writes batches and indexes them, for this object
and for the log's tail. The log's writer (`storage/log/writer.py`) calls `ActiveSegment` to append, to roll
and to undo failed appends.

The end of the log is in one struct, `end` (`_native/contract/active.h`: `seg_end`). The `ActiveSegment` owns
this struct; only `mark` copies it.

Invariant: bytes of the log from `end.position` on belong to no batch; later appends overwrite these bytes, or
`rewind` or recovery cuts them off. Room in the indexes is reserved before the log is written, so that an
append to a full disk fails before the log has changed. Threads: one at a time, the holder of the partition's
append token.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from segstore import names
from segstore._native import ffi, held, lib
from segstore.config import TopicConfig
from segstore.errors import OffsetsExhaustedError
from segstore.files import Files, Handle
from segstore.index import ActiveOffsetIndex, ActiveTimeIndex
from segstore.index.builder import EMPTY, closing_entry
from segstore.index.sparse import MOST_RELATIVE
from segstore.integers import INT64_MAX
from segstore.records import BATCH_SIZE, Encoded
from segstore.records.encoded import checked
from segstore.storage.segment.batch_scan import walk
from segstore.storage.segment.native_tail import NativeTail
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Mark(Protocol):
    """A copy of the log's `seg_end`, which `recall` and `rewind` restore."""

    position: int
    next_offset: int
    rolled_ms: int
    state: Any


_record: Callable[[Any], Any] = partial(ffi.new, ffi.typeof("seg_end *"))


class ChunkPart(NamedTuple):
    """Consecutive batches of a chunk: `n` batches with `size` bytes. The first of these batches has number
    `first` in the chunk, and begins at byte `at` of the chunk. `stamp` is the LogAppendTime in ms that the
    batches get, -1 for none.
    """

    chunk: Encoded
    first: int
    n: int
    at: int
    size: int
    stamp: int = -1

    @classmethod
    def of(cls, chunk: Encoded, stamp: int) -> ChunkPart:
        """Return the part with all batches of a chunk."""
        return cls(chunk, 0, chunk.n, 0, chunk.size, stamp)

    @property
    def headers(self) -> Any:
        """Return a `seg_batch *` to the first header. The pointer is valid while the chunk exists."""
        return self.chunk.headers + self.first

    @property
    def memory(self) -> Any:
        """Return the memory of the headers. The chunk keeps this memory alive."""
        return ffi.buffer(self.headers, self.n * BATCH_SIZE)

    def split(self, n: int) -> tuple[ChunkPart, ChunkPart]:
        """Return two parts: the first `n` batches, and the batches after them."""
        headers, left = self.headers, self.n - n
        size = sum(headers[i].size for i in range(n))
        rest = self._replace(first=self.first + n, n=left, at=self.at + size, size=self.size - size)
        return self._replace(n=n, size=size), rest


class ActiveSegment:
    """The last segment of a partition, open for appending."""

    def __init__(
        self, segment: Segment, config: TopicConfig, next_offset: int, index_bytes: int | None = None
    ) -> None:
        """Open the files: `segment.size` bytes are valid, and `next_offset` is the offset after them. Raises
        OSError.
        """
        self.segment = segment
        self.end = _record(
            {
                "position": segment.size,
                "next_offset": next_offset,
                "base_offset": segment.base_offset,
                "rolled_ms": -1,  # in Kafka this is rollingBasedTimestamp
                "state": EMPTY,
            }
        )
        self.c = ffi.new("seg_active *", {"end": self.end, "interval": config.index_interval_bytes})
        """The `seg_active` that C appends to."""
        files: Files = segment.pool.files
        self._files = files
        # Kafka's segment.jitter.ms makes partitions that began at the same time roll at different times.
        self._jitter = random.random()
        self.configure(config)
        # `_born_ms` is the clock's time at the first batch, or at the first call of `outlived`.
        self._born_ms: int | None = None
        self._open_indexes(index_bytes or config.segment_index_bytes)

    @classmethod
    def reopened_at(cls, segment: Segment, config: TopicConfig, size: int, next_offset: int) -> ActiveSegment:
        """Open a segment whose first `size` bytes, and their index entries, are valid; the indexes may be
        larger than the current limit. Raises OSError.
        """
        segment.size = size
        segment.attach(None)
        return cls(segment, config, next_offset, index_bytes=MOST_RELATIVE)

    def configure(self, config: TopicConfig) -> None:
        """Use changed settings from the next append on."""
        most, jitter = config.max_segment_ms, config.segment_jitter_ms
        self.config = config
        self._by_clock = config.message_timestamp_type == "LogAppendTime"
        # This is the largest age of the segment, in ms. The jitter is always less than segment.ms (Kafka:
        # LogConfig.randomSegmentJitter), because with a largest age of 0 each record could get a segment of
        # its own.
        self._most_ms = most - int(self._jitter * min(jitter, most)) if jitter else most
        self.c.young_ms = self._most_ms
        self.c.most_position = config.segment_bytes

    # --- opening -----------------------------------------------------------------------

    def _open_indexes(self, index_bytes: int) -> None:
        segment = self.segment
        offsets, times = segment.indexes
        n_offsets, n_times = offsets.entries, times.entries
        last, position = offsets.entry(-1) if n_offsets else (-1, 0)
        timestamp, relative = times.entry(-1) if n_times else (-1, -1)
        self._offsets = ActiveOffsetIndex(
            self._files, segment.file(names.INDEX), index_bytes, self.end, self.c, n_offsets
        )
        self._times = ActiveTimeIndex(
            self._files, segment.file(names.TIME_INDEX), index_bytes, self.end, self.c, n_times
        )
        largest = timestamp, segment.base_offset + relative if n_times else -1
        size = self.end.position
        state = self.end.state
        state.bytes_since, state.last_time_entry = size - position if last >= 0 else size, timestamp
        state.max_timestamp, state.max_timestamp_offset = largest
        # A power cut may have lost time index entries, so the search for the largest timestamp begins at the
        # batch of the last remaining entry.
        told = offsets.lookup(relative) if n_times else None
        self._recall_largest(told[1] if told else 0)
        segment.attach((self._offsets, self._times), self.end)

    def _recall_largest(self, position: int) -> None:
        """Set the largest timestamp from the batches at byte `position` and after it. The batch of the last
        time index entry begins at `position`. Also set the first batch's timestamp, from which the segment's
        age counts.
        """
        state = self.end.state
        timestamp, offset = state.max_timestamp, state.max_timestamp_offset
        files, handle, end = self._files, self.handle, self.end.position
        for step in walk(files, handle, position, end, check_crcs=False, chunk=1 << 16, sparse=True):
            for header in step.c:
                if header.max_timestamp > timestamp:
                    timestamp, offset = header.max_timestamp, header.last_offset
        state.max_timestamp, state.max_timestamp_offset = timestamp, offset
        first = ffi.new("seg_batch *")
        if self.segment.header_at(0, end, first) is not None:
            self.end.rolled_ms = first.max_timestamp

    @property
    def handle(self) -> Handle:
        """Return the open log; open it first if the pool has closed it. The pool closes logs so that idle
        partitions hold no descriptor.
        """
        return self.segment.pool.get(self.segment.path, write=True)

    # --- appending ---------------------------------------------------------------------

    def mark(self) -> Mark:
        """Return a copy of the `seg_end` of the log, for `recall` and `rewind`."""
        mark: Mark = _record(self.end[0])
        return mark

    def room(
        self,
        part: ChunkPart,
        clock: Callable[[], int],
        as_is: bool = False,
        more: int = 0,
    ) -> int:
        """Return the number of leading batches of a part that fit into the segment, 0 if the log must roll
        first. Room for these batches, and for up to `more` batches after them, is reserved in the index
        files. If `as_is`, the batches will keep their own offsets. Raises OSError if the disk is full;
        nothing has changed then.

        The rules are those of org.apache.kafka.storage.internals.log.LogSegment.shouldRoll.
        """
        end = self.end
        if not end.position:
            self._born_ms = clock()
        elif self._is_old(part.headers, clock, as_is):
            return 0
        if self._offsets.is_full(1) or self._times.is_full(1):
            return 0
        spare = min(
            self._offsets.max_entries - end.offset_entries, self._times.max_entries - end.time_entries
        )
        n = self._fitting(part.headers, min(part.n, max(spare - 1, 1)), as_is)
        if n:
            ahead = min(n + more, max(spare - 1, n))
            self._offsets.reserve(ahead)
            self._times.reserve(ahead + 1)
        return n

    def _fitting(self, headers: Any, n: int, as_is: bool) -> int:
        """Return the number of leading batches, at most `n`, that fit into the segment's size and range of
        offsets.
        """
        end, left = self.end, self.config.segment_bytes - self.end.position
        last = end.next_offset - end.base_offset - 1
        for i in range(n):
            header = headers[i]
            left -= header.size
            if as_is:
                last = header.last_offset - end.base_offset
            else:
                last += header.last_offset - header.base_offset + 1
            # A leader's batch may be larger than segment.bytes of this log, if the leader's setting was
            # larger. Such a batch gets a segment of its own.
            is_alone = as_is and i == 0 and not end.position
            if (left < 0 and not is_alone) or last > MOST_RELATIVE:
                return i
        return n

    def _is_old(self, headers: Any, clock: Callable[[], int], as_is: bool) -> bool:
        rolled_ms = self.end.rolled_ms
        if rolled_ms < 0:
            return False
        # Kafka measures a segment's age by record timestamps if there are any, else by the clock. In a
        # LogAppendTime topic the records are about to get the clock's time as their timestamp, except in a
        # follower, whose records keep the leader's timestamps.
        latest = headers[0].max_timestamp
        if latest < 0 or (self._by_clock and not as_is):
            latest = clock()
        return bool(latest - rolled_ms > self._most_ms)

    def outlived(self, now_ms: int) -> bool:
        """Return whether the clock shows that the segment was begun more than segment.ms ago. Timestamps of
        records don't count here, because without new records they would never make the log roll. The age of a
        reopened segment counts from the first call.
        """
        if not self.end.position:
            return False
        if self._born_ms is None or now_ms < self._born_ms:  # the clock was set back
            self._born_ms = now_ms
        return now_ms - self._born_ms > self._most_ms

    def append(self, parts: Sequence[ChunkPart], judged: int, epoch: int, as_is: bool) -> int:
        """Append as many leading parts as fit, by one system call, and add their index entries; return the
        number of these parts. An earlier call of `room` has found that the first `judged` parts fit. The
        batches get the next offsets and the leader epoch `epoch`; if `as_is`, they keep their own offsets and
        epochs.

        Raises OffsetsExhaustedError, InvalidArgumentError; nothing has changed then. Raises OSError; bytes
        may have been written beyond the log's end then.
        """
        c = ffi.new("seg_part[]", len(parts))
        for i, (chunk, first, n, at, size, stamp) in enumerate(parts):
            part = c[i]
            part.data, part.len, part.batches, part.n = chunk.ptr + at, size, chunk.headers + first, n
            part.append_time = stamp
        handle = self.handle
        write = self._files.native_write(handle)
        done: int = lib.seg_active_append(self.c, handle.fd, write.c, c, len(parts), judged, epoch, as_is)
        if done < 0:
            write.check()
            self._raise(done, parts[0])
        return done

    def _raise(self, code: int, part: ChunkPart) -> None:
        """Raise the error for `code`, the negative result of C's append."""
        if code > lib.SEG_E_ROOM:
            raise OSError(-code, os.strerror(-code), self.segment.path)
        self._check_offsets(part)
        checked(code)

    def _check_offsets(self, part: ChunkPart) -> None:
        """Raise OffsetsExhaustedError if the part needs more offsets than are left."""
        need = sum(header.last_offset - header.base_offset + 1 for header in part.headers[0 : part.n])
        left = INT64_MAX - self.end.next_offset
        if need > left:
            raise OffsetsExhaustedError(
                f"{self.segment.directory} has {left:,} offsets left, and {need:,} are needed: the last one"
                f" that a record may have is {INT64_MAX - 1}"
            )

    def index(self, batches: NDArray[np.void]) -> None:
        """Add index entries for batches that lie in the log already, and move the log's end after them.
        Raises OSError; its errno is EOVERFLOW if an offset or a position doesn't fit the int32 of an index
        entry.
        """
        needed, first = ffi.new("int64_t[2]"), held("seg_batch *", batches)
        while (code := lib.seg_active_index(self.c, first, len(batches), needed)) == lib.SEG_E_ROOM:
            self._offsets.reserve(needed[0])
            self._times.reserve(needed[1] + 1)
        if code < 0:
            raise OSError(-code, os.strerror(-code), self.segment.path)

    def rewind(self, mark: Mark) -> None:
        """Go back to `mark`: cut the log and the indexes. Raises OSError if the disk refuses."""
        self.recall(mark)
        relative = mark.next_offset - self.segment.base_offset
        self._offsets.truncate_to(relative)
        self._times.truncate_to(relative)
        # A failed roll may have added the time index entry of a sealed segment. If that entry is still in the
        # index, the next roll must not add it a second time.
        last = self._times.entry(-1)[0] if self._times.entries else -1
        self.end.state.last_time_entry = last
        self._files.truncate(self.handle, mark.position)

    def recall(self, mark: Mark) -> None:
        """Set the log's end back to `mark`, in memory only. The files keep their bytes and index entries
        after `mark`, but those bytes belong to no batch then. The segment may have been sealed after `mark`
        was made.
        """
        end, self.segment.end = self.end, self.end
        end.state, end.rolled_ms = mark.state, mark.rolled_ms
        end.position, end.next_offset = mark.position, mark.next_offset

    # --- the native tail -----------------------------------------------------------------

    def bind(self, tail: NativeTail) -> None:
        """Make C append to this segment through `tail`."""
        tail.c.active = self.c
        tail.keep("active", (self.c, self.end, self._offsets, self._times))

    # --- sealing -----------------------------------------------------------------------

    def trim(self) -> None:
        """Add a time index entry with the largest timestamp, if there is none, and trim both index files
        (Kafka does so at a roll and at close). Raises OSError.
        """
        self._times.append(closing_entry(self.end.state, self.segment.base_offset))
        self._offsets.seal()
        self._times.seal()

    def seal(self) -> None:
        """Trim and seal the segment, which gets no more appends. Raises OSError."""
        self.trim()
        self.segment.size = self.end.position
        self.segment.sealed = True
        self.segment.attach(None)
