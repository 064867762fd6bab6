"""`PartitionLog`, the public log of one partition: it checks arguments and delegates.

Appends call `log.append`. The files are written by `log.partition`, and read by `log.read`;
`log.read_only_partition` finds the end of a log that another process writes. Threads: any number of readers
and writers. Appends wait for each other; reads take no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from segstore import read_buffers
from segstore._native import seg_transfer
from segstore.choices import ISOLATION_LEVELS
from segstore.config import arguments
from segstore.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    SegstoreError,
    StorageError,
    StoreClosedError,
    is_refusal,
)
from segstore.integers import INT32_MAX
from segstore.leader_epochs import UNDEFINED, EpochEnd
from segstore.mutex import check_apart
from segstore.public_names import PublicNames
from segstore.records import HEADER_SIZE, Record, Records, empty_records
from segstore.storage.context import os_errors
from segstore.storage.log import point_read, range_read, read
from segstore.storage.log.acks import Acks
from segstore.storage.log.append import (
    append_columns,
    append_list,
    append_one,
    append_short,
    awaited,
    table_columns,
)
from segstore.storage.log.append_as_leader import AppendedBatch, append_as_leader
from segstore.storage.log.partition import Partition
from segstore.storage.log.read import Gaps
from segstore.storage.log.read_many import as_offsets, read_many
from segstore.storage.log.read_only_partition import ReadOnlyPartition
from segstore.storage.log.reading import Reading
from segstore.storage.meta.topic_info import INTERNAL, check_not_internal
from segstore.storage.producers.aborted_transactions import AbortedTransactions
from segstore.storage.producers.append_info import ExpectedEnd
from segstore.storage.scans.scan import EARLIEST, LATEST, Edge, Scan, given_times
from segstore.storage.segment.log_view import LogView
from segstore.storage.transfer import METHODS, SENDFILE, descriptor, go_on, send_at_once, transfer
from segstore.storage.transfer.stretch import (
    StoredBatches,
    Stretch,
    exchange_at_once,
    find_stretch,
    has_transactions,
)

if TYPE_CHECKING:
    from datetime import datetime

    from segstore.storage.context import StoreContext
    from segstore.storage.log.exchange import NativeExchange

T = TypeVar("T")
Headers = Sequence[tuple[str, "bytes | None"]]
_TRIES = 10
"""How many views of the log a read tries, each newer than the one before, if a segment's file is missing:
retention may remove a segment after a view was taken.
"""
_UNCOMMITTED = "read_uncommitted"


# The results are cached, because checking the arguments at each call would slow down appends of a few
# microseconds.
@lru_cache(typed=True)
def _acks_of(acks: int, timeout_ms: float) -> Acks:
    return Acks(acks, arguments.milliseconds("timeout_ms", timeout_ms))


def _is_committed(isolation_level: str) -> bool:
    level = arguments.one_of("isolation_level", isolation_level, ISOLATION_LEVELS)
    return level != _UNCOMMITTED


class PartitionLog(PublicNames):
    """An ordered, append-only sequence of records with 64-bit offsets."""

    _inner = frozenset(
        {
            *("aborted_transactions", "append_as_leader", "append_may_wait", "epoch_end", "epoch_of"),
            *("exchange_fetch", "exchange_produce", "has_replicas", "is_gone", "nearest", "read_view"),
            *("partition_for_write", "stored", "stretch", "view", "with_view"),
            *("await_committed", "check_committed", "context", "follow_leader", "partition_led", "shows_all"),
            *("source", "store", "with_reading"),
        }
    )

    aborted_transactions: AbortedTransactions
    context: StoreContext
    source: Partition | ReadOnlyPartition
    """The `Partition` that this process has open for writing, or the `ReadOnlyPartition` of a log that
    another process writes. In a replicated store this is the leader's log.
    """
    store: object

    has_replicas = False
    """Whether the log has other replicas: one of them may become the leader although its log lacks records
    that were read here.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        store: object,
        context: StoreContext,
        source: Partition | ReadOnlyPartition,
        appender: Partition | None = None,
    ) -> None:
        """The log refers to `store`, so that the store, which flushes in the background, is not garbage
        collected while the log is in use. `appender` is a guest's `GuestPartition`; None in other processes.
        """
        self.topic, self.partition, self.store = topic, partition, store
        self.context = context
        self._name = f"{topic}-{partition}"
        self._internal = topic in INTERNAL
        self._appender = appender
        self.follow_leader(source)

    def follow_leader(self, source: Partition | ReadOnlyPartition) -> None:
        """Append to `source`, and read from `source`, from now on. Any thread may call this. An append or
        read that has already begun finishes with the previous source.
        """
        root = self.context.root
        own = source if isinstance(source, Partition) else self._appender
        self._own = None if self._internal else own
        if isinstance(source, Partition):
            root = source.context.root
        self.aborted_transactions = AbortedTransactions(self.context.files)
        self._gaps = Gaps(self.context.files, root, self.topic, self.partition)
        self._views = source.visible if isinstance(source, Partition) else source
        self._visible = None
        if isinstance(source, Partition) and not source.tail.native.is_shared:
            self._visible = source.visible
        self.source = source

    def __repr__(self) -> str:
        return f"<PartitionLog {self._name}>"

    @property
    def is_gone(self) -> bool:
        """Return whether this process knows that the topic was deleted."""
        source = self.source
        return isinstance(source, Partition) and source.visible.current is None

    # --- leader epochs ------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """Return the leader epoch under which this log is written now; -1 in a reader or a guest."""
        source = self.source
        return source.visible.publisher.epoch if isinstance(source, Partition) else -1

    def epoch_end(self, leader_epoch: int) -> EpochEnd:
        """Find the largest leader epoch of this log that is at most `leader_epoch`, and return that epoch
        with its end offset, exclusive. Return `UNDEFINED` if there is no such epoch, or if this process is
        a reader or a guest (R4; Kafka: OffsetsForLeaderEpoch).
        """
        source = self.source
        if not isinstance(source, Partition):
            return UNDEFINED
        return source.epochs.copy().end_offset_for(leader_epoch, self.log_end_offset)

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch under which the record at an offset was written; -1 if that epoch is not
        known.
        """
        source = self.source
        found = source.epochs.copy().epoch_for_offset(offset) if isinstance(source, Partition) else None
        return -1 if found is None else found

    def nearest(self, rack: str, offset: int) -> PartitionLog:
        """Return the log from which a consumer in `rack` reads `offset`: this log, because there are no
        replicas.
        """
        return self

    # --- offsets ------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """Return the log start offset: records below it can't be read."""
        return self._views.view.start_offset

    @property
    def end_offset(self) -> int:
        """Return the offset below which readers see records: in a replica the high watermark, else the log
        end offset.
        """
        return self._views.view.end_offset

    @property
    def log_end_offset(self) -> int:
        """Return the offset that the next record gets. In a replica this offset may be above the high
        watermark.
        """
        source = self.source
        return source.visible.log_end_offset if isinstance(source, Partition) else source.written().end_offset

    @property
    def high_watermark(self) -> int:
        """Return the high watermark: all in-sync replicas have the records below this offset. Without
        replicas the high watermark is the log end offset.
        """
        return self._views.view.end_offset

    @property
    def size(self) -> int:
        """Return the size of the log in bytes, as stored, indexes not counted (Kafka: UnifiedLog.size)."""
        view = self._views.view
        return sum(map(view.end_of, range(len(view.segments))))

    @property
    def last_stable_offset(self) -> int:
        """Return the offset below which every transaction is committed or aborted (Kafka: LSO). Raises
        StorageError, StoreClosedError.
        """
        view = self._views.view
        return view.stable_offset if view.stable_offset >= 0 else self.with_view(self._stable)

    def _stable(self, view: LogView) -> int:
        return (
            view.stable_offset if view.stable_offset >= 0 else self.aborted_transactions.stable_offset(view)
        )

    # --- appending ----------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        *,
        expected_offset: int | None = None,
    ) -> int:
        """Append one record; returns its offset. `timestamp` is in ms since the epoch, by default now.
        Retention may soon delete a record whose timestamp is older than the topic's retention.ms, for example
        because the timestamp is in seconds by mistake. If `expected_offset` is given and is not the log end
        offset, nothing is written, and OffsetMismatchError is raised with the log end offset (compare and
        append).

        Nothing is written if this raises InvalidTypeError, InvalidArgumentError, RecordTooLargeError, or
        InvalidTopicError because the topic is internal. If this raises StorageError, the record is not in the
        log, unless it was the flush for `flush.messages` that failed. Also raises ReadOnlyError,
        StoreClosedError, ForkedError.
        """
        own = self._own
        if own is not None and own.acks is None and not self.context.closed:
            offset = append_short(own.tail, value, key, headers, timestamp, expected_offset)
            if offset >= 0:
                return offset if own.acks is None else awaited(own, offset, 1)
        if self._internal:
            self._refuse()
        expected = self._expected(expected_offset)
        return append_one(self.partition_for_write(), value, key, headers, timestamp, expected=expected)

    def _expected(self, offset: object) -> ExpectedEnd | None:
        if offset is None:
            return None
        return ExpectedEnd(arguments.whole("expected_offset", offset, 0), self._name)

    def append_batch(
        self,
        values: Any,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
        compression: str | None = None,
        batch_bytes: int = 65536,
        *,
        expected_offset: int | None = None,
    ) -> range:
        """Append many records with contiguous offsets, visible together; returns their offsets.

        `values` and `keys`: bytes or None each, as a list, a numpy array (S, V, object, or 2-D uint8) or a
        pyarrow binary or string array; arrays are encoded without a loop per record. `timestamps`: int64 ms,
        one per record, or one for all. `headers`: per record a sequence of (str, bytes or None), or, faster,
        an Arrow column of lists of key and value, as `Records.to_arrow` returns it. `compression`: none,
        gzip, snappy, lz4 or zstd, by default the topic's `compression.type`. Records are split into batches
        of about `batch_bytes` before compression. After a crash the log may have only some of the append's
        batches, but these are whole. `expected_offset` is compared as in `append`. Raises the errors of
        `append`.
        """
        own = self._own
        if (
            own is not None
            and own.acks is None
            and compression is None
            and isinstance(values, list | tuple)
            and not self.context.closed
        ):
            n = len(values)
            first = append_list(own.tail, n, values, keys, timestamps, headers, batch_bytes, expected_offset)
            if first >= 0:
                awaited(own, first, n)
                return range(first, first + n)
        if self._internal:
            self._refuse()
        return append_columns(
            self.partition_for_write(),
            values,
            keys,
            timestamps,
            headers,
            compression,
            batch_bytes,
            expected=self._expected(expected_offset),
        )

    def append_table(
        self,
        table: Any,
        *,
        compression: str | None = None,
        batch_bytes: int = 65536,
        expected_offset: int | None = None,
    ) -> range:
        """Append the rows of a table by one `append_batch`, with contiguous offsets, visible together;
        returns the offsets. Nothing is written if any row is bad.

        `table`: a pyarrow Table, RecordBatch or RecordBatchReader, a polars or pandas DataFrame, a DuckDB
        relation or result, Records, a scan, or another object with `__arrow_c_stream__` or
        `__arrow_c_array__`. Columns:

        - value: binary or text; required; null makes a tombstone;
        - key: binary or text; null for no key;
        - timestamp: an Arrow timestamp of any unit (UTC if it has no zone; fractions of a ms are cut off), a
          date, or an integer in ms; by default now;
        - headers: a list (also a large list or list view) of struct<key: string, value: binary>, or a
          map<string, binary>; null for no headers.

        The columns topic, partition, offset and timestamp_type are ignored, so that a table of `to_arrow` may
        be appended unchanged.

        A stream is read into memory, to its end, before the first record is written. Arrow's memory is
        encoded without a copy. If the rows don't fit into memory, pass the batches of a reader one by one to
        `segstore.staging.Stager.append_table`, whose batches become visible together, too. Raises the errors
        of `append_batch`, and InvalidArgumentError if a column is not in the lists above, or if a row has a
        bad value: the error names the column or the row. Raises MissingPackageError without pyarrow.
        """
        columns = table_columns(table)
        return self.append_batch(*columns, compression, batch_bytes, expected_offset=expected_offset)

    def append_as_leader(
        self,
        batch: memoryview | bytearray,
        *,
        acks: int = 1,
        timeout_ms: float = 30_000,
        verified: bool = False,
        allow_zstd: bool = True,
    ) -> AppendedBatch:
        """Append one record batch of magic 2 as a producer sent it (Kafka: UnifiedLog.appendAsLeader).

        `batch` is writable memory with exactly one batch, whose base offset is 0. The batch is checked by the
        rules of Kafka's LogValidator. Base offset and leader epoch are set in place, and the memory is
        written without a copy; if the topic has another `compression.type`, the records are compressed anew.
        A wrong largest timestamp in the header is corrected. The rules for producers with an id are Kafka's:
        a batch that repeats one of the producer's last 5 batches is not written, and the first offset of the
        earlier batch is returned. A transactional batch is accepted if the transaction is open in this
        partition, or if `verified` is True. With `verified` the caller asserts that the transaction
        coordinator has the partition in the transaction (KIP-890). `acks` (0, 1, -1) and `timeout_ms` have an
        effect only with replicas. `allow_zstd=False` refuses batches in zstd, for versions of Produce that
        are older than zstd.

        Nothing is written if this raises one of these errors: CorruptRecordError (length, CRC, compressed
        bytes); InvalidRecordError, InvalidTimestampError, which list the wrong records; RecordTooLargeError
        (`max.message.bytes`), RecordBatchTooLargeError (`segment.bytes`), UnsupportedCompressionTypeError,
        OutOfOrderSequenceError, DuplicateSequenceError, InvalidProducerEpochError, InvalidTxnStateError,
        InvalidTypeError, InvalidArgumentError, InvalidTopicError, OffsetsExhaustedError, StorageError,
        ReadOnlyError, StoreClosedError, ForkedError. In a replicated store the errors of the store's `append`
        are raised too.
        """
        if self._internal:
            self._refuse()
        if acks not in (-1, 0, 1):
            raise InvalidArgumentError(f"acks={acks!r}: must be -1, 0 or 1")
        wanted = _acks_of(acks, timeout_ms)
        return append_as_leader(self._leading(wanted), batch, wanted, verified, allow_zstd, self._name)

    def exchange_produce(self, sock: int, exchange: NativeExchange) -> bool | None:
        """Receive a Produce request from a non-blocking socket, and append its batch in C by the rules of
        `append_as_leader`. Return True if the request was answered; False if the caller must handle the
        request, whose bytes are in `exchange`; None if nothing was received. Raises StorageError.
        """
        source = self.source
        if self._internal or self.context.closed or not isinstance(source, Partition):
            return None
        return exchange.produce(source, sock)

    def append_may_wait(self, acks: int) -> bool:
        """Return whether an append with these `acks` (0, 1, -1) may wait for replicas, or for a sync because
        of `flush.messages`.
        """
        source = self.source
        if not isinstance(source, Partition):
            return False
        return (source.acks is not None and acks == -1) or source.config.flush_messages != arguments.INT64_MAX

    def _leading(self, acks: Acks) -> Partition:
        """Return the partition for an append, and wait at most `acks.timeout_ms` for a leader if there is
        none.
        """
        return self.partition_for_write()

    def flush(self) -> None:
        """Make all appended records durable (fdatasync). After a StorageError the partition refuses appends
        until the store is opened anew.
        """
        own = self._own
        if own is None or self.context.closed or not own.tail.flush():
            check_apart("flush()")
            self.partition_for_write().flush()

    def delete_records(self, before_offset: int) -> int:
        """Move the log start offset up to `before_offset` (-1: the high watermark); returns the new log start
        offset.

        Segments wholly below the new log start offset are removed (Kafka: Admin.deleteRecords). Raises
        OffsetOutOfRangeError, and InvalidTopicError if the topic is internal.
        """
        if self._internal:
            self._refuse()
        check_apart("delete_records()")
        with os_errors():
            return self.partition_for_write().log_start.delete_records(
                arguments.whole("before_offset", before_offset, -1)
            )

    def _refuse(self) -> None:
        check_not_internal(self.topic, "only consumer groups and transactions write it")

    def await_committed(self) -> None:
        """Wait until readers see all records that were committed before the current leader was elected (R38).
        Without replicas this returns at once. Raises OffsetNotAvailableError.
        """

    def check_committed(self) -> None:
        """Raise OffsetNotAvailableError unless readers see all records that were committed before the current
        leader was elected (R38). Without replicas nothing is raised.
        """

    @property
    def shows_all(self) -> bool:
        """Return whether the high watermark has reached the log end offset."""
        end = self.log_end_offset
        return self.high_watermark >= end

    def partition_for_write(self) -> Partition:
        """Return the partition, for modules that append to it. Raises ReadOnlyError, StoreClosedError,
        ForkedError.
        """
        context, source = self.context, self.source
        if self._appender is not None and not context.closed and context.here[0]:
            return self._appender.for_write()  # type: ignore[attr-defined, no-any-return]
        if context.closed or not context.here[0] or not isinstance(source, Partition):
            context.check_writable()
        assert isinstance(source, Partition)
        return source

    def partition_led(self) -> Partition:
        """Return the partition as `partition_for_write` does, but without waiting for a leader. Raises
        OffsetNotAvailableError if no replica leads.
        """
        return self.partition_for_write()

    # --- reading ------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        *,
        isolation_level: str = _UNCOMMITTED,
        check_crcs: bool = True,
        times: tuple[int, int] | None = None,
    ) -> Records:
        """Return the records from `offset` on, in whole batches up to `max_bytes` (as stored), and at least
        one batch unless `offset` is the log's end.

        Control records are left out; `read_committed` leaves out aborted records too and ends at the last
        stable offset. At the log's end the result is empty. `times` is (first ms, last ms): only records with
        a timestamp in this range, both ends included, are returned, and batches without such records are not
        decoded. With `times` the result may be empty before the log's end: the log was searched up to the
        result's `next_offset`. Raises OffsetOutOfRangeError if `offset` is not in [start_offset, end_offset];
        CorruptRecordError if the first batch is damaged.
        """
        self.context.check_open()
        if type(offset) is not int or abs(offset) > arguments.INT64_MAX:
            offset = arguments.whole("offset", offset, None)
        if type(max_bytes) is not int or not 0 <= max_bytes <= arguments.INT64_MAX:
            max_bytes = arguments.whole("max_bytes", max_bytes, 0)
        committed = isolation_level is not _UNCOMMITTED and _is_committed(isolation_level)
        judged = type(check_crcs) is bool
        if not judged:
            check_crcs = arguments.switch("check_crcs", check_crcs)
        if times is not None:
            times = arguments.span("times", times)
        elif max_bytes < HEADER_SIZE and check_crcs and not committed:
            # Each batch is longer than `max_bytes`, so a single batch is read.
            found = point_read.read_batch(self._views.view, offset)
            if found is not None:
                return found
        return self.read_view(None, offset, max_bytes, committed, check_crcs, times)

    def read_one(self, offset: int, *, isolation_level: str = _UNCOMMITTED) -> Record:
        """Return the record at `offset`. If compaction has removed this record, or if it is a control record,
        return the next record. The CRC of the batch is checked.

        `read_committed` skips aborted records too, and ends at the last stable offset. Raises StorageError,
        StoreClosedError, ForkedError, InvalidTypeError, InvalidArgumentError; OffsetOutOfRangeError if
        `offset` is not in [start_offset, end_offset), or if the log has no record at `offset` or above;
        CorruptRecordError if the batch is damaged. Kafka has no such call: a Kafka consumer seeks to the
        offset, and polls one record.
        """
        self.context.check_open()
        if type(offset) is not int:
            offset = arguments.whole("offset", offset, None)
        committed = isolation_level is not _UNCOMMITTED and _is_committed(isolation_level)
        if not committed:
            record = point_read.read_one(self._views.view, offset)
            if record is not None:
                return record
        offset = arguments.whole("offset", offset, -arguments.INT64_MAX - 1)
        records = self.read_view(None, offset, 1, committed, True)
        if not len(records):
            raise self._nothing_at(offset)
        return records[0]

    def read_many(self, offsets: Any, *, isolation_level: str = _UNCOMMITTED) -> Records:
        """Return one record for each of the `offsets`, in the order of `offsets`. Each record is the record
        that `read_one` returns.

        `offsets` are a list or a numpy array of integers, in any order and with repetitions. After compaction
        several offsets may give the same record. The result's `next_offset` is the offset after the last
        returned record. Memory is allocated for the records, not for their whole batches. Raises the errors
        of `read_one`.
        """
        self.context.check_open()
        wanted = as_offsets(offsets)
        committed = isolation_level is not _UNCOMMITTED and _is_committed(isolation_level)

        def rest(view: LogView, offset: int) -> Records:
            return self._read(view, offset, 1, committed, True, None)

        return self.with_view(lambda view: read_many(view, wanted, not committed, rest, self._name))

    def _nothing_at(self, offset: int) -> OffsetOutOfRangeError:
        """Return the error for an `offset` if the log has no record at this offset or above."""
        view = self._views.view
        return OffsetOutOfRangeError(offset, view.start_offset, view.end_offset, self._name)

    @property
    def view(self) -> LogView:
        """Return the current view of the log. Raises StoreClosedError if the topic was deleted."""
        return self._views.view

    def scan(
        self,
        start: int | Edge = EARLIEST,
        end: int | Edge = LATEST,
        *,
        from_time: int | datetime | None = None,
        to_time: int | datetime | None = None,
        isolation_level: str = _UNCOMMITTED,
        check_crcs: bool = True,
    ) -> Scan:
        """Return the records from offset `start` up to `end`, exclusive, as a `Scan`. A `Scan` is iterated
        record by record, returns Records by `reads()`, and a table by `to_arrow()`.

        `from_time`, given in place of `start`, begins the scan at the first record of this time or later; if
        there is no such record, the scan is empty. `to_time`, given in place of `end`, ends the scan before
        the first record of that time or later. A time is ms since the epoch, or a datetime, in UTC if it has
        no zone.

        By default the scan is the whole log as it is now, without later appends. A scan never goes beyond the
        log's end, nor, with `read_committed`, beyond the last stable offset, even if `end` is larger. Raises
        StoreClosedError; OffsetOutOfRangeError if `start` is not in [start_offset, end_offset];
        InvalidArgumentError if `end` is below `start`, if both `start` and `from_time` are given, or if both
        `end` and `to_time` are given; InvalidTypeError, for example if `start` or `end` is None
        (`offset_for_time` returns None if no record is that late). Iterating raises the errors of `read`.
        """
        self.context.check_open()
        _is_committed(isolation_level)
        how = {
            "isolation_level": isolation_level,
            "check_crcs": arguments.switch("check_crcs", check_crcs),
        }
        return Scan(self, start, end, given_times(start, end, from_time, to_time), how)

    def __iter__(self) -> Iterator[Record]:
        """Return all records, one by one, up to the log's present end. Raises the errors of `scan`."""
        return iter(self.scan())

    def read_view(
        self,
        view: LogView | None,
        offset: int,
        max_bytes: int,
        committed: bool,
        check_crcs: bool,
        times: tuple[int, int] | None = None,
    ) -> Records:
        """Read as `read` does, from `view` (None: the current view), without checking the arguments. If files
        of the view were removed, a newer view is read. Raises the errors of `read`.
        """
        try:
            return self._read(view or self._views.view, offset, max_bytes, committed, check_crcs, times)
        except (OSError, CorruptRecordError) as error:
            point_read.leave(error)
            return self.with_view(
                lambda view: self._read(view, offset, max_bytes, committed, check_crcs, times)
            )

    def with_view(self, use: Callable[[LogView], T]) -> T:
        """Return the result of `use(view)` for the log's current view. If `use` raises FileNotFoundError,
        `use` is called again with a newer view. Raises StorageError, StoreClosedError, CorruptRecordError.
        """
        tries, doubted = 0, False
        view: LogView | None = None
        missing: LogView | None = None
        while True:
            try:
                view = self._views.view
                return use(view)
            except FileNotFoundError as error:
                # If this view lacks segments of the previous view, the log still exists: retention removes
                # segments faster than this reader reads them. So the tries are counted anew.
                tries = 1 if view is not None and view.lacks(missing) else tries + 1
                missing = view
                if tries == _TRIES:
                    raise StoreClosedError(f"{self._name} is gone: {error}") from error
                if isinstance(self.source, ReadOnlyPartition):
                    self.source.refresh()
            except CorruptRecordError:
                # A segment that another process has just removed may seem to be damaged, so the read is tried
                # once more with a new view. If a segment is really damaged, the second try fails too.
                if doubted or not isinstance(self.source, ReadOnlyPartition):
                    # Getting the view raises StoreClosedError, not CorruptRecordError, if the files belong to
                    # a new topic of the same name.
                    _ = self._views.view
                    raise
                doubted = True
                self.source.refresh()
            except SegstoreError:
                raise
            except OSError as error:
                # `os_errors` is not used, because it would take a sixth of the time of a small transfer.
                if not is_refusal(error):
                    raise
                raise StorageError(error.errno, error.strerror, error.filename) from error

    def _read(
        self,
        view: LogView,
        offset: int,
        max_bytes: int,
        committed: bool,
        check_crcs: bool,
        times: tuple[int, int] | None,
    ) -> Records:
        if not view.start_offset <= offset <= view.end_offset:
            self._check_not_shown(view, offset)
            return empty_records(offset)
        limit = self._stable(view) if committed else view.end_offset
        at = offset
        short = times is None and read_buffers.LEAST <= max_bytes <= read_buffers.MOST
        while at < limit:
            records = range_read.read_range(view, at, limit, max_bytes, check_crcs) if short else None
            if records is None:
                found = read.fetch(view, at, limit, max_bytes, check_crcs, self._gaps)
                if not found:
                    at = limit
                    break
                records = read.to_records(found, offset, max_bytes, times)
            if committed:
                records = self.aborted_transactions.without(view, records)
            if len(records) or times is not None:
                return records
            at = records.next_offset
        return empty_records(max(at, offset))

    def with_reading(self, offset: int, committed: bool, use: Callable[[Reading], T]) -> T:
        """Return the result of `use(reading)`. The `Reading` has the current view, and the offset up to which
        `use` may read it: the last stable offset if `committed`. If files were removed, `use` is called again
        with a newer view. Raises the errors of `read`.
        """

        def read(view: LogView) -> T:
            aborted = self.aborted_transactions if committed else None
            if view.start_offset <= offset <= view.end_offset:
                limit = self._stable(view) if committed else view.end_offset
                return use(Reading(view, limit, self._gaps, aborted))
            self._check_not_shown(view, offset)
            return use(Reading(view, offset, self._gaps, aborted))

        self.context.check_open()
        return self.with_view(read)

    def _check_not_shown(self, view: LogView, offset: int) -> None:
        """Raise OffsetOutOfRangeError for an offset outside of the view, unless it is between a replica's
        high watermark and log end offset, because a reader waits for this offset (R39).
        """
        # After a kill the high watermark may be lower than before, so a reader may have an offset above the
        # high watermark.
        source = self.source
        is_replica = not isinstance(source, Partition) or source.visible.is_replica
        if not is_replica or not view.end_offset < offset <= self.log_end_offset:
            view.check(offset, self._name)

    def stretch(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation_level: str = _UNCOMMITTED,
        min_one: bool = True,
        max_searched: int = arguments.INT64_MAX,
        whole: bool = False,
    ) -> Stretch:
        """Find whole batches, from the batch that holds `offset` on, in one segment's file, and return the
        file and the range of their bytes as a `Stretch` of at most `max_bytes`. If `min_one`, the first batch
        is returned even if it is longer than `max_bytes`.

        The stretch is empty at the log's end; for `read_committed`, at the last stable offset. The file stays
        readable until `release`, even if retention or compaction removes the file. The records are not read,
        and no CRC is checked, because the client checks the CRC. For `read_committed`, `Stretch.aborted` has
        the aborted transactions of the batches; None if more than `max_searched` offsets would have to be
        searched for control batches. If `whole`, the reader is a replica, which reads up to the log end
        offset (R14).

        Raises OffsetOutOfRangeError, StorageError, StoreClosedError, ForkedError, InvalidTypeError,
        InvalidArgumentError; CorruptRecordError if the batch header at `offset` is damaged.
        """
        self.context.check_open()
        offset = arguments.whole("offset", offset, None)
        most = arguments.whole("max_bytes", max_bytes, 0)
        committed = isolation_level is not _UNCOMMITTED and _is_committed(isolation_level)

        def find(view: LogView) -> Stretch:
            if not view.start_offset <= offset <= view.end_offset:
                self._check_not_shown(view, offset)
            stable = self._stable(view)
            limit = stable if committed else view.end_offset
            seen = view
            if whole and isinstance(source := self.source, Partition):
                seen = source.visible.written
                limit = seen.end_offset
            found = find_stretch(seen, offset, limit, most, min_one, self.context.files, self._gaps)
            aborted = self._aborted(view, found, offset, max_searched) if committed else None
            return Stretch(found, offset, view.start_offset, view.end_offset, stable, aborted)

        return self.with_view(find)

    def exchange_fetch(self, sock: int, exchange: NativeExchange) -> bool | None:
        """Receive a Fetch request from a non-blocking socket, and answer it if the C code can copy the
        batches from the open file of one segment. Return True if the request was answered; False if the
        caller must handle the request, whose bytes are in `exchange`; None if nothing was received. Raises
        nothing.
        """
        context = self.context
        if context.closed or not context.here[0]:
            return None
        try:
            return exchange_at_once(self._views.view, sock, exchange, context)
        except SegstoreError:
            return None

    def stored(self, offset: int, max_bytes: int) -> bytes:
        """Return the bytes of whole batches, from the batch that holds `offset` on: at most `max_bytes`, but
        at least one batch; no bytes at the log's end. No CRC is checked. Raises the errors of `stretch`.
        """
        with os_errors(), self.stretch(offset, max_bytes) as found:
            return found.read(self.context.files)

    def _aborted(
        self, view: LogView, found: StoredBatches | None, offset: int, max_searched: int
    ) -> list[tuple[int, int]] | None:
        """Return (producer id, first offset) of each aborted transaction to which the batches in `found` may
        belong (Kafka: FetchResponse.AbortedTransaction); None if more than `max_searched` offsets would have
        to be searched for control batches.
        """
        if found is None or not has_transactions(found, self.context.files):
            return []
        if self.aborted_transactions.unread(view) > max_searched:
            return None
        rows = self.aborted_transactions.outcomes(view).aborted
        overlapping = rows[(rows[:, 2] >= offset) & (rows[:, 1] < found.next_offset)]
        return [(int(row[0]), int(row[1])) for row in overlapping.tolist()]

    def transfer(
        self, sink: Any, offset: int, max_bytes: int = 1 << 20, method: str = "sendfile"
    ) -> tuple[int, int]:
        """Send whole batches as they are stored to `sink`; returns (bytes sent, next offset).

        The first batch is the batch that holds `offset`. The batches have `max_bytes` together at most, but
        at least one batch is sent if there is any. `sink` is a file descriptor, or has fileno(). A file is
        written at its current position. If a non-blocking sink is full, the call waits. `method`: "sendfile";
        "splice" (through a pipe); "mmap" (write from the mapped file); "read" (read and write through a
        buffer); "copy_file_range" (to files only); "auto" ("read" if the sink is a device or was opened with
        O_APPEND, else "sendfile"). `segstore.transfer_methods()` lists the methods of this machine,
        docs/transfer.md explains each, and `storage.transfer.methods` has measurements.

        Before SinkError or SinkClosedError is raised, some batches, and a part of the next batch, may have
        been sent. Nothing was sent if InvalidArgumentError, InvalidTypeError or OffsetOutOfRangeError is
        raised. Raises StorageError if the disk fails; CorruptRecordError if the first batch is damaged.
        """
        context = self.context
        if type(sink) is not int:
            context.check_open()
            sink = descriptor(sink)
        answer = seg_transfer(self._visible, context, sink, offset, max_bytes, method)
        if isinstance(answer, tuple):
            return answer
        if answer is not None:
            result, known, handle = answer
            sent = go_on(result, known, handle, sink, offset, max_bytes, context.files)
            return self._transfer(sink, offset, max_bytes, method) if sent is None else sent
        plain = type(offset) is int and type(max_bytes) is int and type(method) is str
        inside = plain and 0 <= sink <= INT32_MAX and 0 <= max_bytes <= arguments.INT64_MAX
        if inside and method == SENDFILE and not context.closed:
            sent = send_at_once(self._views.view, sink, offset, max_bytes, context, self._visible)
            if sent is not None:
                return sent
        return self._transfer(sink, offset, max_bytes, method)

    def _transfer(self, sink: int, offset: int, max_bytes: int, method: str) -> tuple[int, int]:
        self.context.check_open()
        target = descriptor(sink)
        offset = arguments.whole("offset", offset, None)
        most = arguments.whole("max_bytes", max_bytes, 0)
        by = METHODS[arguments.one_of("method", method, METHODS)]

        def send(view: LogView) -> tuple[int, int]:
            if not view.start_offset <= offset <= view.end_offset:
                self._check_not_shown(view, offset)
                return 0, offset
            return transfer(view, target, offset, most, by, self.context.files, self._gaps)

        return self.with_view(send)

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with a timestamp of `timestamp_ms` or later; None if there is
        no such record.
        """
        self.context.check_open()
        # No record has a timestamp below -1, which stands for a missing timestamp.
        timestamp = max(arguments.whole("timestamp_ms", timestamp_ms, None), -1)
        return self.with_view(lambda view: read.offset_for_time(view, timestamp))

    def max_timestamp(self) -> tuple[int, int] | None:
        """Return (largest timestamp in ms of the log's records and transaction markers, first offset with
        this timestamp); None for an empty log (Kafka: OffsetSpec.maxTimestamp, KIP-734). Raises
        CorruptRecordError, StorageError, StoreClosedError.
        """
        self.context.check_open()
        return self.with_view(read.max_timestamp)
