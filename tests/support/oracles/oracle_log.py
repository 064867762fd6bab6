"""A plain oracle of one partition's log: its files after each append, and the append's answer.

It knows nothing of segstore, and is slow: all is kept in memory, and each batch is looked at alone. The bytes
of batches are the codec oracle's (`oracle`), producers are judged by `oracle_producers`, compressed records
lie in frames that store (`stored_codecs`), so that each byte is known. The rules are Kafka's:

- rolls: LogSegment.shouldRoll, timeWaitedForRoll and canConvertToRelativeOffset; AbstractIndex.isFull, and
  TimeIndex.isFull, which keeps one entry for the close; UnifiedLog.roll.
- index entries: LogSegment.append, TimeIndex.maybeAppend, LogSegment.onBecomeInactiveSegment.
- offsets, epochs, stamps: LogValidator.validateMessagesAndAssignOffsets; of a follower UnifiedLog.
  appendAsFollower, which keeps all of them.
- transactions: TransactionIndex.append; EndTransactionMarker.

One rule is segstore's own: an append of several batches may lie in several segments, each batch in the first
segment that has room; the age of a segment is compared with the first batch of an append alone. Texts of
errors are segstore's, too.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace

from oracle import APPEND_TIME, HEADER, Batch, Record, encode_batch, encode_record
from oracle_batches import CODECS, NOBODY, Draft, Given, draft, of_records
from oracle_producers import CONTROL, SEQUENCES, TRANSACTIONAL, Ids, OracleProducers, Refused, Written
from oracle_segment import OracleSegment

DEFAULTS = {
    "segment.bytes": 1 << 30,
    "segment.ms": 604_800_000,
    "segment.index.bytes": 10 << 20,
    "index.interval.bytes": 4096,
    "max.message.bytes": 1_048_588,
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": 3_600_000,
    "message.timestamp.before.max.ms": (1 << 63) - 1,
    "compression.type": "producer",
    "cleanup.policy": "delete",
}
MOST_RELATIVE = (1 << 31) - 1
"""Relative offsets are int32."""
LONGEST = 1 << 62  # of a timestamp's difference: its varint is as long as can be
MARKER_KEY, MARKER_VALUE = struct.Struct(">hh"), struct.Struct(">hi")


class Disk:
    """The disk of a store's logs; while it is `full`, the next write to a log is refused."""

    def __init__(self) -> None:
        self.full = False

    def write(self, path: str) -> None:
        """Refuse a write that finds no room; there is room again then."""
        if self.full:
            self.full = False
            text = f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}: {path!r}"
            raise Refused("StorageError", text)


class OracleLog:
    """One partition's log, named `name`. Every append is told the clock of its moment, `now`, in ms."""

    def __init__(self, name: str, config: dict[str, object], disk: Disk) -> None:
        self.name, self.config, self._disk = name, DEFAULTS | config, disk
        self.segments = [OracleSegment(0, self.config)]
        self.producers = OracleProducers()
        self.end, self.epoch = 0, 0

    def number(self, setting: str) -> int:
        value = self.config[setting]
        assert isinstance(value, int)
        return value

    @property
    def active(self) -> OracleSegment:
        return self.segments[-1]

    @property
    def stamps(self) -> bool:
        """Return whether records get the time of their append."""
        return self.config["message.timestamp.type"] == "LogAppendTime"

    @property
    def codec(self) -> int | None:
        """Return the codec of all batches; None if batches keep their producers'."""
        name = self.config["compression.type"]
        return None if name == "producer" else CODECS.index(str(name))

    @property
    def largest_batch(self) -> int:
        return min(self.number("max.message.bytes"), self.number("segment.bytes"))

    # --- an application's records ---------------------------------------------------------

    def append(self, record: Given, expected: int | None, now: int) -> int:
        """Append a record; return its offset."""
        one = record.at(0, now)
        self._check([one], now)
        made = of_records([one], codec=self.codec or 0)
        self._check_size(made.size)
        self._check_end(expected)
        return self._write([made], now)

    def append_batch(
        self,
        records: Sequence[Given],
        codec: int | None,
        batch_bytes: int,
        expected: int | None,
        now: int,
    ) -> tuple[int, int]:
        """Append records; return the first offset, and the log end offset."""
        given = [record.at(0, now) for record in records]
        self._check(given, now)
        codec = (self.codec or 0) if codec is None else codec
        self._check_sizes(given, codec)
        drafts = self._cut(given, batch_bytes, codec)
        self._check_end(expected)
        return self._write(drafts, now), self.end

    def _check(self, records: Sequence[Record], now: int) -> None:
        """Refuse timestamps and keys that the topic does not take."""
        most, least = max(r.timestamp for r in records), min(r.timestamp for r in records)
        after = self.number("message.timestamp.after.max.ms")
        before = self.number("message.timestamp.before.max.ms")
        if not self.stamps and most > now + after:
            raise Refused(
                "InvalidArgumentError",
                f"timestamp {most} is more than message.timestamp.after.max.ms={after} after the clock"
                f" ({now})",
            )
        if not self.stamps and 0 <= least < now - before:
            raise Refused(
                "InvalidArgumentError",
                f"timestamp {least} is more than message.timestamp.before.max.ms={before} before the clock"
                f" ({now})",
            )
        policy = str(self.config["cleanup.policy"])
        if "compact" in policy and any(r.key is None for r in records):
            raise Refused(
                "InvalidRecordError",
                f"a record has no key: with cleanup.policy={policy} every record must have one",
            )

    def _check_size(self, size: int, kind: str = "RecordTooLargeError") -> None:
        """Refuse a batch of one record that is above the limits."""
        if size <= self.largest_batch:
            return
        by_message = self.number("max.message.bytes") <= self.number("segment.bytes")
        name = "max.message.bytes" if by_message else "segment.bytes"
        raise Refused(
            kind,
            f"the record needs a batch of {size:,} bytes: allowed are {self.largest_batch:,} ({name})",
        )

    def _check_sizes(self, records: Sequence[Record], codec: int) -> None:
        """Refuse a list with a record that no batch may hold: the largest one is named."""
        sizes = [len(encode_record(r._replace(timestamp=-LONGEST), 0, 0)) for r in records]
        largest = max(range(len(records)), key=lambda i: (sizes[i], -i))
        size = of_records([records[largest]], codec=codec).size
        if size > self.largest_batch:
            raise Refused(
                "RecordTooLargeError",
                f"record {largest} makes a batch of {size:,} bytes: allowed are {self.largest_batch:,}"
                " (max.message.bytes, or segment.bytes if that is less)",
            )

    def _check_end(self, expected: int | None) -> None:
        if expected is not None and expected != self.end:
            raise Refused(
                "OffsetMismatchError",
                f"expected_offset={expected}: {self.name} ends at {self.end}, nothing was appended",
            )

    def _cut(
        self,
        records: Sequence[Record],
        batch_bytes: int,
        codec: int,
        ids: Ids = NOBODY,
        cuts: Iterable[int] = (),
    ) -> list[Draft]:
        """Return batches of up to `batch_bytes` before they are compressed; one ends before each of `cuts`.

        As many records as fit (MemoryRecordsBuilder.hasRoomFor); of a codec the limit leaves room for bytes
        that it can't make smaller.
        """
        limit = self.largest_batch
        most = max(1, min(batch_bytes, limit - limit // 6 - 128 if codec else limit))
        drafts: list[Draft] = []
        batch: list[Record] = []
        done = size = 0
        for number, record in enumerate(records):
            one = record._replace(offset=len(batch))
            need = len(encode_record(one, 0, (batch or [one])[0].timestamp))
            if batch and (size + need > most or number in cuts):
                drafts.append(of_records(batch, ids, codec, done))
                done, batch = number, []
                one = record._replace(offset=0)
                need = len(encode_record(one, 0, one.timestamp))
            size = (size if batch else HEADER.size) + need
            batch.append(one)
        return [*drafts, of_records(batch, ids, codec, done)]

    # --- producers ------------------------------------------------------------------------

    def append_batches(
        self,
        records: Sequence[Given],
        ids: Ids,
        codec: int,
        cuts: Sequence[int] | None,
        sequenced: bool,
        now: int,
    ) -> tuple[int, int, int, bool]:
        """Append what a producer of this process has gathered, without `cuts` one record; return the first
        offset, the stamp that the log gave, the bytes, and whether all was written before.
        """
        given = [record.at(0, now) for record in records]
        self._check(given, now)
        codec = codec if self.codec is None else self.codec
        if cuts is None:
            drafts = [of_records(given, ids, codec)]
            self._check_size(drafts[0].size)
        else:
            self._check_sizes(given, codec)
            drafts = self._cut(given, self.largest_batch, codec, ids, cuts)
        repeated = self._judge(drafts, ids, sequenced=sequenced, verified=True)
        first = repeated[0].first_offset if repeated else self._write(drafts, now)
        size = sum(each.size for each in drafts)
        return first, self._stamp(repeated, now), size, bool(repeated)

    def append_as_leader(
        self, batch: Batch, codec: int, verified: bool, now: int
    ) -> tuple[int, int, int, int, bool]:
        """Append a batch as a producer sent it; return offset, stamp, log start offset, the number of
        records, and whether it was written before.
        """
        by_message = self.number("max.message.bytes")
        made = draft(batch, codec)
        for each in {codec: made, (codec if self.codec is None else self.codec): None}:
            made = draft(batch, each)
            kind = "RecordTooLargeError" if made.size > by_message else "RecordBatchTooLargeError"
            self._check_size(made.size, kind)
        ids = Ids(batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.attributes)
        repeated = self._judge([made], ids, sequenced=True, verified=verified)
        first = repeated[0].first_offset if repeated else self._write([made], now)
        return first, self._stamp(repeated, now), 0, len(batch.records), bool(repeated)

    def _judge(self, drafts: Sequence[Draft], ids: Ids, *, sequenced: bool, verified: bool) -> list[Written]:
        if ids.producer_id < 0:
            return []
        sequences = [
            (b.base_sequence, (b.base_sequence + b.last_offset_delta) % SEQUENCES) for b, *_ in drafts
        ]
        return self.producers.judge(ids, sequences, sequenced=sequenced, verified=verified)

    def _stamp(self, repeated: Sequence[Written], now: int) -> int:
        if not self.stamps:
            return -1
        return repeated[0].timestamp if repeated else now

    def end_transaction(
        self, producer_id: int, epoch: int, coordinator_epoch: int, kind: int, now: int
    ) -> int:
        """Write a marker; return its offset, -1 where none is needed."""
        if not self.producers.needs_marker(producer_id, epoch):
            return -1
        key, value = MARKER_KEY.pack(0, kind), MARKER_VALUE.pack(0, coordinator_epoch)
        ids = Ids(producer_id, epoch, -1, TRANSACTIONAL | CONTROL)
        made = of_records([Record(0, now, key, value, [])], ids)
        return self._write([made._replace(kind=kind)], now)

    # --- a follower -----------------------------------------------------------------------

    def append_as_follower(self, drafts: Sequence[Draft], now: int) -> int:
        """Append batches as a leader wrote them, with its offsets and epochs; return where the log ends."""
        first, epochs = drafts[0].batch.base_offset, [each.batch.leader_epoch for each in drafts]
        if first < self.end:
            raise Refused(
                "InvalidArgumentError",
                f"offset {first} does not follow the log, which ends at {self.end}",
            )
        if sorted(epochs) != epochs or epochs[0] < self.epoch:
            raise Refused(
                "InvalidArgumentError",
                f"leader epochs {epochs} fall, or lie below the latest, {self.epoch}",
            )
        self._write(drafts, now, as_is=True)
        self.epoch = epochs[-1]
        return self.end

    # --- the end of the log ---------------------------------------------------------------

    def _write(self, drafts: Sequence[Draft], now: int, *, as_is: bool = False) -> int:
        """Write batches; return the first offset. Raises Refused if the disk is full; the log is as before
        then.
        """
        first = self.end
        for number, one in enumerate(drafts):
            batch = one.batch
            if not as_is:
                batch = replace(batch, base_offset=self.end, leader_epoch=self.epoch)
                if self.stamps:
                    batch = replace(batch, attributes=batch.attributes | APPEND_TIME, max_timestamp=now)
            rolls = self._should_roll(batch, one.size, now, number == 0, as_is)
            base = batch.base_offset if rolls else self.active.base
            if rolls:  # a roll that is taken back leaves the last entry of the time index, which is right
                self.active.close()
            self._disk.write(
                f"{self.name}/{base:020d}.log"
            )  # it is full before the first batch or not at all
            if rolls:
                self.roll(batch.base_offset)
            count = len(batch.records)
            self.active.append(batch, encode_batch(batch, one.payload, count))
            if batch.producer_id >= 0:
                aborted = self.producers.take(batch, one.kind)
                self.active.aborted += [aborted] if aborted else []
            self.end = batch.base_offset + batch.last_offset_delta + 1
        return first

    def _should_roll(self, batch: Batch, size: int, now: int, is_first: bool, as_is: bool) -> bool:
        segment = self.active
        if batch.base_offset + batch.last_offset_delta - segment.base > MOST_RELATIVE:
            return True
        if not segment.log:
            return False  # what segment.bytes does not allow is refused before; of a leader it is taken
        if segment.is_full or len(segment.log) + size > self.number("segment.bytes"):
            return True
        by_clock = batch.max_timestamp < 0 or (self.stamps and not as_is)
        latest = now if by_clock else batch.max_timestamp
        return (
            is_first and segment.first_stamp >= 0 and latest - segment.first_stamp > self.number("segment.ms")
        )

    def roll(self, base: int | None = None) -> None:
        """Go on in a new segment from `base` on, or from the end of the log."""
        self.active.close()
        self.segments.append(OracleSegment(self.end if base is None else base, self.config))

    # --- between appends ------------------------------------------------------------------

    def alter(self, config: dict[str, object]) -> None:
        """Change settings."""
        self.config = self.config | config

    def begin_epoch(self, epoch: int) -> None:
        """Write under a later leader epoch."""
        if epoch <= self.epoch:
            raise Refused(
                "InvalidArgumentError", f"leader epoch {epoch}: must be above the latest one, {self.epoch}"
            )
        self.epoch = epoch

    def reopen(self) -> None:
        """Close cleanly, and open again."""
        self.active.close()
        self.active.open(self.config)
        self.producers.reopen()

    def close(self) -> None:
        """Close cleanly."""
        self.active.close()
