"""A partition to which a guest appends. A guest is a process beside the host of a shared store. A guest
appends and syncs by itself; the host does the other work on the log, for example a roll.

C appends as in a host (`_native/append.c`), with the log's lock held. If C can't append, `GuestPartition`
removes the obstacle: it opens the files of another generation of the log (after a roll), cuts bytes that this
process wrote beyond the end of a sealed segment, or sends a request to the host. Then `GuestPartition` tries
the append again. On disk the active segment's log and indexes are written.

Threads: any. `token` is held while C gets the files that it appends to; C appends without the token.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from segstore import names
from segstore._native import ffi, held, lib, seg_tail_flush
from segstore.arrays import np
from segstore.errors import HostUnavailableError, StorageError, StoreClosedError, is_refusal
from segstore.integers import INT64_MAX
from segstore.mutex import Mutex
from segstore.records import Encoded
from segstore.storage.context import StoreContext, os_errors, wall_clock
from segstore.storage.log.validator import LogValidator
from segstore.storage.producers.append_info import ExpectedEnd, ProducerAppendInfo
from segstore.storage.segment import index_files
from segstore.storage.segment.native_tail import NativeTail
from segstore.storage.segment.segment import Segment
from segstore.storage.shared.refused_calls import refused_in_guest
from segstore.storage.shared.verdicts import MemberRequest

if TYPE_CHECKING:
    from segstore.config import TopicConfig
    from segstore.storage.log.read_only_partition import ReadOnlyPartition

MOST_AT_ONCE = 4 << 20
"""A guest itself writes appends of up to this many bytes. A longer append would hold the log's lock too
long.
"""
NEVER = INT64_MAX


class GuestSide(Protocol):
    """The parts of a guest's store that its partitions use."""

    def share_of(self, key: int) -> tuple[int, Any] | None:
        """Return the number of a partition's slot in the shared file, and a new `seg_share` for its log.
        Return None if the host has not opened the log yet.
        """

    def ask(self, what: int, request: MemberRequest) -> None:
        """Send a request to the host, and wait for its answer. `what` is a SEG_ASKS constant. Raises the
        errors of `Asking.ask`.
        """

    @property
    def patience(self) -> float:
        """Return the seconds that an append waits for the host. After that time the append raises
        `unavailable()`.
        """

    def unavailable(self) -> HostUnavailableError:
        """Return the error for an append that has waited too long for the host."""

    @property
    def ends(self) -> tuple[Any, int]:
        """Return a writable memory mapping of `.segstore/ends`, the file of published log ends, and the size
        of the mapping.
        """

    def slot_of(self, key: int) -> int:
        """Return the number of a partition's slot in `.segstore/ends`. Raises StoreClosedError if the
        partition has no slot, because its topic was deleted or is just being created.
        """

    def led(self, topic: str, partition: int, key: int) -> Any:
        """If this process is the host now, return the `Partition` to which it appends, else None. Raises
        StoreClosedError if the topic was deleted.
        """

    def stage(self, topic: str, partition: int, key: int, chunks: Iterable[Encoded]) -> int:
        """Send records to the host, which appends them and makes all visible at the same moment. Return the
        first offset.
        """


class GuestTail:
    """The tail of a guest's partition, with the methods of `Tail` that appends use."""

    has_standby = False

    def __init__(self, native: NativeTail, path: Callable[[], str], end: Callable[[], int]) -> None:
        self.native, self._path, self._end = native, path, end
        self.token = Mutex()

    def flush(self) -> bool:
        """Make the appended records durable by one call of C; return False if the host must sync."""
        return self.native.is_open and self.flush_to(self._end())

    def flush_to(self, upto: int) -> bool:
        """Make the records below `upto` durable by one call of C; return False if the host must sync."""
        code: int = seg_tail_flush(self.native.address, upto)
        return code >= 0

    def torn(self, number: int, need: int) -> BaseException:
        """Return the error to raise for an append by C, which failed with errno `number`. None of the
        append's records are in the log.
        """
        raised = self.native.write.raised()
        if raised is not None and not is_refusal(raised):
            return raised
        return StorageError(number, os.strerror(number), self._path())


class GuestFlushing:
    """Applies flush.messages and flush.ms to the appends of this process."""

    def __init__(self, context: StoreContext, flush: Callable[[int], None]) -> None:
        self._context, self._flush = context, flush
        self._planned = False
        self._messages = self._ms = NEVER
        self.synced: Callable[[], int]

    def bind(self, tail: NativeTail, config: TopicConfig) -> None:
        """Use the settings in `config` from now on. If C may sync the log, C applies flush.messages. If not,
        `flush_if_due` applies flush.messages.
        """
        self._messages, self._ms = config.flush_messages, config.flush_ms
        self.synced = lambda: int(tail.c.share.log.synced)
        by_messages = self._messages != NEVER
        by_c = by_messages and tail.syncs
        tail.c.flush_messages = self._messages if by_c else 0
        tail.flush_left = self.flush_if_due if by_c else None
        tail.on_append = self.flush_if_due if self._ms != NEVER or (by_messages and not by_c) else None

    def flush_if_due(self, after: int) -> None:
        """Apply flush.messages and flush.ms to an append that ends at offset `after`. Raises StorageError."""
        if self._messages != NEVER and after - self.synced() >= self._messages:
            self._flush(after)
        elif self._ms != NEVER and not self._planned:
            self._plan()

    def _as_planned(self) -> None:
        self._planned = False
        if self._context.closed:
            return
        try:
            self._flush(NEVER)
        except StoreClosedError:
            pass  # the topic was deleted
        except HostUnavailableError:  # another process may become the host, so the flush is planned again
            self._plan()
            raise

    def _plan(self) -> None:
        self._planned = True
        try:
            self._context.scheduler.after(self._ms / 1000, self._as_planned)
        except BaseException:  # if this is Ctrl-C, the next append plans the flush anew
            self._planned = False
            raise


class GuestPartition:
    """Appends to one partition in a guest, a process beside the host of a shared store. `follower` reads the
    partition. `topic_config()` returns the topic's current settings.
    """

    acks = None

    def __init__(
        self,
        context: StoreContext,
        side: GuestSide,
        topic: str,
        partition: int,
        key: int,
        follower: ReadOnlyPartition,
        topic_config: Callable[[], TopicConfig],
    ) -> None:
        self.context, self._side, self.follower = context, side, follower
        self.topic, self.partition, self._key = topic, partition, key
        self.directory = follower.directory
        self._topic_config = topic_config
        clock = None if context.clock is wall_clock else context.clock
        self.tail = GuestTail(NativeTail(clock, context.here_for_c, 0), lambda: self._path, self._shared_end)
        self.token = self.tail.token
        self.flushing = GuestFlushing(context, self._flush)
        self._path = self.directory
        self._settings = -1
        self._use(topic_config())
        self._end = ffi.new("seg_end *")
        self._active = ffi.new("seg_active *", {"end": self._end})
        self.tail.native.c.active = self._active
        self._share: Any = None
        self._slot = -1

    def for_write(self) -> Any:
        """Return the partition to append to. If this process has become the host, return the host's
        `Partition`. If not, return this object, with the topic's current settings.
        """
        led = self._side.led(self.topic, self.partition, self._key)
        share = self._share
        # If the settings have changed, the log stays closed until the next append opens the log with the new
        # settings.
        if led is None and (share is None or not share.log.open or share.log.settings != self._settings):
            self._use(self._topic_config())
        return led or self

    # --- the end of the log -----------------------------------------------------------------

    @property
    def visible(self) -> GuestPartition:
        """Return this object, which has `log_end_offset` and `start_offset`, like a `Visible`."""
        return self

    @property
    def log_end_offset(self) -> int:
        """Return the offset that the next record gets."""
        return self.follower.view.end_offset

    def _shared_end(self) -> int:
        """Return the log end offset from the shared file, or `log_end_offset` if the shared file lacks it."""
        now, share = ffi.new("seg_shared_end *"), self._share
        if share is not None and share.log.key == self._key and lib.seg_shared_now(share.log, now):
            return int(now.end.next_offset)
        return self.log_end_offset

    @property
    def start_offset(self) -> int:
        """Return the log start offset."""
        return self.follower.view.start_offset

    @property
    def writer(self) -> Any:
        """Raise IllegalStateError, because only the host has a writer."""
        raise refused_in_guest("this call")

    admin = naming = producers = epochs = writer

    @property
    def log_start(self) -> Any:
        """Raise IllegalStateError, because only the host moves the log start offset."""
        raise refused_in_guest("delete_records()")

    def put(self, chunks: Iterable[Encoded], claim: ProducerAppendInfo | ExpectedEnd | None = None) -> int:
        """Append chunks that the fast path could not append; return the first offset. Raises
        OffsetMismatchError, HostUnavailableError, StorageError, StoreClosedError, ForkedError; nothing is
        appended then.
        """
        if isinstance(claim, ProducerAppendInfo):
            raise refused_in_guest("a producer with an id")
        ready, size = [], 0
        for chunk in (stream := iter(chunks)):
            ready.append(chunk)
            size += chunk.size
            if size > MOST_AT_ONCE:
                return self._long(chain(ready, stream), claim)
        if size > self.config.segment_bytes and sum(chunk.n for chunk in ready) > 1:
            return self._long(ready, claim)
        whole = ready[0] if len(ready) == 1 else joined(ready)
        return self._append(whole, -1 if claim is None else claim.offset, claim)

    def _long(self, chunks: Iterable[Encoded], claim: ExpectedEnd | None) -> int:
        if claim is not None:
            raise refused_in_guest("append_batch with expected_offset and more than 4 MiB")
        return self._side.stage(self.topic, self.partition, self._key, chunks)

    def _append(self, chunk: Encoded, expected: int, claim: ExpectedEnd | None) -> int:
        native, tried = self.tail.native, False
        until = time.monotonic() + self._side.patience
        while True:
            self._remove_obstacle(chunk, tried)
            now = lib.SEG_NOW if native.clock is None else native.clock()
            first = int(
                lib.seg_tail_write(
                    native.c, chunk.ptr, chunk.size, chunk.headers, chunk.n, expected, now, False
                )
            )
            if first >= 0:
                chunk.release()
                return first
            if first != lib.SEG_SLOW:
                raise self.tail.torn(-first, chunk.size)
            if self._share is not None and self._share.comes_again:
                continue  # a signal has interrupted the wait for another process's lock
            # The host has made room for each try, but other processes have used it before this append.
            if tried and time.monotonic() > until:
                raise self._side.unavailable()
            tried = True
            if claim is not None and not self._obstacle():
                claim.check(self.log_end_offset)

    # --- obstacles to C's appends -----------------------------------------------------------

    def _obstacle(self) -> str:
        """Return the name of the obstacle to an append by C, "" for none."""
        share = self._share
        if share is None or share.log.key != self._key:
            return "log"
        if share.log.failed:
            return "fence"
        if share.waited_for:
            return "lock"
        if share.log.aways != share.aways:
            return "sealed"
        if not share.log.open:
            return "open"
        now = ffi.new("seg_shared_end *")
        if not lib.seg_shared_now(share.log, now) or now.generation != share.generation:
            return "files"
        return "" if self.tail.native.is_open else "files"

    def _remove_obstacle(self, chunk: Encoded, tried: bool) -> None:
        """Remove the obstacle to an append by C, or ask the host to remove the obstacle. If no obstacle is
        found, but C has failed to append once (`tried`), ask the host to make room for the append.
        """
        self.context.check_writable()
        obstacle = self._obstacle()
        if obstacle == "log":
            self._find_log()
        elif obstacle == "fence":
            raise self._fenced()
        elif obstacle == "lock":
            word, self._share.waited_for = self._share.waited_for, 0
            self._side.ask(lib.SEG_ASKS_AWAY, MemberRequest(self._slot, self._key, word=word))
        elif obstacle == "sealed":
            with os_errors():
                self._cut_sealed()
        elif obstacle == "files":
            with os_errors():
                self._bind()
        elif obstacle == "open" or tried:
            self._side.ask(lib.SEG_ASKS_READY, self._request(chunk))

    def _fenced(self) -> StorageError:
        number = self._share.log.failed
        message = f"{self.directory} is fenced for writing until the host reopens it: a sync failed"
        return StorageError(number, f"{message}: {os.strerror(number)}", self._path)

    def _request(self, chunk: Encoded) -> MemberRequest:
        headers, n = chunk.headers, chunk.n
        offsets = sum(headers[i].last_offset - headers[i].base_offset + 1 for i in range(n))
        generation, when = self._share.generation, self._when(int(headers[0].max_timestamp))
        return MemberRequest(self._slot, self._key, generation, 0, chunk.size, n, offsets, when)

    def _when(self, timestamp: int) -> int:
        """Return the time in ms that C uses at an append to decide whether the segment is too old."""
        clock = self.tail.native.clock
        if self.tail.native.c.stamps and clock is not None:
            return int(clock())
        return wall_clock() if self.tail.native.c.stamps or timestamp < 0 else timestamp

    def _find_log(self) -> None:
        """Set the slot and the `seg_share` of the log from the shared file, or ask the host to open the
        log.
        """
        with self.token:
            self.tail.native.pause()
            found = self._side.share_of(self._key)
            if found is not None and found[1].log.key == self._key:
                self._slot, share = found
                self._share = share
                native = self.tail.native
                native.share(share, self._side)
                memory, native.c.ends_len = self._side.ends
                native.keep("ends", memory)
                native.c.ends = memory
                return
        self._slot = self._side.slot_of(self._key)
        self._side.ask(lib.SEG_ASKS_READY, MemberRequest(self._slot, self._key))

    def _cut_sealed(self) -> None:
        """Cut the bytes that this process may have written beyond the ends of sealed segments after it lost
        its lock on the log [A4].
        """
        share, sealed = self._share, ffi.new("seg_sealed *")
        with self.token:
            self.tail.native.pause()
            aways = share.log.aways
            while (number := lib.seg_share_sealed(share, 0, False, sealed)) >= 0:
                cut_sealed(self.context, self.directory, sealed, self.config.index_interval_bytes)
                lib.seg_share_let_go(share, number)
            if number != -errno.EAGAIN:  # EAGAIN means that the host has made no next segment yet
                share.aways = aways
        if number == -errno.EAGAIN:
            self._side.ask(lib.SEG_ASKS_READY, MemberRequest(self._slot, self._key))

    def _bind(self) -> None:
        """Open the files of the log's generation, and let C append to them. Raises OSError, StorageError."""
        with self.token:
            self.context.check_writable()  # the store may have been closed before `token` was taken
            native, share = self.tail.native, self._share
            native.pause()
            now = ffi.new("seg_shared_end *")
            if not lib.seg_shared_now(share.log, now) or now.is_sealed or not share.log.open:
                return
            try:
                self._open_files(now)
            except FileNotFoundError:
                if not self.context.files.exists(self.directory):
                    raise StoreClosedError(f"{self.directory}: the topic was deleted") from None
                return  # the log has rolled, so the next try opens newer files
            log, active = share.log, self._active
            active.most_position, active.young_ms, active.interval = (
                log.most_position,
                log.young_ms,
                log.interval,
            )
            settings = int(log.settings)
            if settings != self._settings:
                self._use(self._topic_config())
                self._settings = settings
            self.validator.bind(native)
            self.flushing.bind(native, self.config)
            share.generation, share.current = now.generation, 0
            native.begin()

    def _open_files(self, now: Any) -> None:
        stem = os.path.join(self.directory, names.segment_file(now.end.base_offset, ""))
        context, native = self.context, self.tail.native
        path = stem + names.LOG
        context.pool.forget(path)  # a roll may have given another file the name `path`
        handle = context.pool.get(path, write=True)
        offsets = self._map(stem + names.INDEX, now.end.offset_room, 8)
        times = self._map(stem + names.TIME_INDEX, now.end.time_room, 12)
        native.bind(handle, context.files.native_write(handle), context.files.native_sync(handle))
        self._active.offset_index, self._active.time_index = offsets, times
        native.keep("indexes", (offsets, times))
        self._path = path

    def _map(self, path: str, entries: int, size: int) -> Any:
        """Map an index file with room for `entries` entries of `size` bytes. Raises OSError."""
        with self.context.files.open(path, write=True) as handle:
            length = max(entries * size, 1)
            try:
                return held("uint8_t[]", self.context.files.map(handle, length, write=True))
            # EINVAL: the file is shorter than `length`. A check of the file's size before the call would not
            # help, because a roll could trim the file after the check.
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                message = "The index has less room than its log says"
                raise FileNotFoundError(errno.ENOENT, message, path) from None

    def _use(self, config: TopicConfig) -> None:
        self.config, self.validator = config, LogValidator(config)

    # --- syncs, closing ---------------------------------------------------------------------

    def flush(self) -> None:
        """Make all visible records durable. Raises StorageError, HostUnavailableError."""
        self._flush(NEVER)

    def _flush(self, upto: int) -> None:
        self.context.check_writable()
        if self._share is None:
            self._find_log()
            if self._share is None:
                self._find_log()
        end = min(upto, self._shared_end())
        if self._is_durable(end):
            return
        if self._obstacle() == "files":  # C can sync after the files are open
            with os_errors():
                self._bind()
        if not self.tail.native.is_open or not self.tail.flush_to(end):
            if self._obstacle() == "fence":
                raise self._fenced()
            self._side.ask(lib.SEG_ASKS_SYNC, MemberRequest(self._slot, self._key, offsets=end))

    def _is_durable(self, end: int) -> bool:
        share = self._share
        return share is not None and share.log.key == self._key and share.log.synced >= end

    def close(self) -> None:
        """Make durable the records that this process can sync without the host, and stop C's appends."""
        if self.tail.native.is_open:
            self.tail.flush()
        with self.token:
            self.tail.native.pause()


def joined(chunks: list[Encoded]) -> Encoded:
    """Return the batches of several chunks as one chunk."""
    data = bytearray().join(chunk.data for chunk in chunks)
    batches = np.concatenate([chunk.batches for chunk in chunks])
    batches["position"] = np.cumsum(batches["size"]) - batches["size"]
    whole = Encoded.of(data, batches)
    for chunk in chunks:
        if chunk.pooled:
            chunk.release()
    return whole


def cut_sealed(context: StoreContext, directory: str, sealed: Any, interval: int) -> None:
    """Cut the bytes beyond the end of a sealed segment to which no process writes any more. Then rebuild the
    segment's indexes, which could not be finished while a process might still write. Raises OSError.
    """
    if sealed.is_replaced:  # another file has the name of the sealed segment now
        return
    size = int(sealed.position)
    segment = Segment(context.pool, directory, sealed.base_offset, size, writable=True, interval=interval)
    try:
        with context.files.open(segment.path, write=True) as handle:
            if context.files.size(handle) > size:
                context.files.truncate(handle, size)
        index_files.rebuild(segment)
    except FileNotFoundError:
        """Retention has removed the segment."""
