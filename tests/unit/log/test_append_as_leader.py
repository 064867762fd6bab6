"""`PartitionLog.append_as_leader`: batches as producers send them, checked as Kafka's LogValidator does."""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import CountingFiles, FailingFiles
from oracle import Record, encode_records, with_crc
from paused_tails import let_tails_open
from places import GOLDEN
from producers import assert_live, committed
from sent import NOW, PLAIN, RECORDS, batch, of_producer
from stores import Clock, killed_at_each_call, records, tree

import segstore
from segstore import errors
from segstore.files import Files
from segstore.records import CODECS, HEADER_SIZE, decode, scan
from segstore.storage.log import sent_batch
from segstore.storage.log.append_as_leader import AppendedBatch
from segstore.storage.log.transaction_markers import end_transaction

TXN = 0x10


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, clock=Clock(NOW)) as store:
        store.create_topic("t")
        yield store


@pytest.fixture
def log(store: segstore.Store) -> segstore.PartitionLog:
    return store.partition("t")


def topic(store: segstore.Store, **config: object) -> segstore.PartitionLog:
    store.create_topic("other", config={name.replace("_", "."): value for name, value in config.items()})
    return store.partition("other")


def stored(log: segstore.PartitionLog) -> bytes:
    paths = sorted(Path(log.store.path, f"{log.topic}-{log.partition}").glob("*.log"))
    return b"".join(path.read_bytes() for path in paths)


# --- what is taken ------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_a_batch_is_written_as_it_came_but_for_offset_and_epoch(
    log: segstore.PartitionLog, codec: int
) -> None:
    sent = batch(codec)
    as_sent = bytes(sent)
    appended = [log.append_as_leader(memoryview(each)) for each in (sent, bytearray(as_sent))]
    assert appended == [AppendedBatch(at, -1, 0, 3) for at in (0, 3)]
    epoch = struct.pack(">i", log.leader_epoch)
    expected = [struct.pack(">q", at) + as_sent[8:12] + epoch + as_sent[16:] for at in (0, 3)]
    assert stored(log) == b"".join(expected)
    assert bytes(sent) == expected[0], "the receive buffer was stamped, and not copied"
    found = [(r.offset, r.timestamp, r.key, r.value) for r in records(log)]
    assert found[3:] == [(r.offset + 3, r.timestamp, r.key, r.value) for r in RECORDS]


@pytest.mark.parametrize("long_way", [False, True])
def test_it_writes_what_append_batch_writes(store: segstore.Store, long_way: bool) -> None:
    logs = [store.partition("t"), topic(store, compression_type="producer")]
    values, keys = [b"value-%d" % i for i in range(50)], [b"k"] * 50
    for n in range(3):
        logs[0].append_batch(values, keys, NOW + n)
        written = stored(logs[0])
        batches, _ = scan(written)
        last = bytearray(written[int(batches["position"][-1]) :])
        struct.pack_into(">q", last, 0, 0)
        if long_way:
            logs[1].flush()
            with logs[1].partition_for_write().token:  # takes the native tail back
                pass
        logs[1].append_as_leader(last)
        assert stored(logs[1]) == written


def test_the_batches_that_a_broker_s_producers_wrote(log: segstore.PartitionLog) -> None:
    seen = set()
    for path in sorted((GOLDEN / "clean").glob("*/*.log")):
        data = path.read_bytes()
        for header in scan(data)[0]:
            at, size, attributes = (int(header[name]) for name in ("position", "size", "attributes"))
            whole = header["count"] == header["last_offset"] - header["base_offset"] + 1
            if attributes & ~7 or header["producer_id"] >= 0 or not whole or size > 100_000:
                continue
            sent = bytearray(data[at : at + size])
            struct.pack_into(">q", sent, 0, 0)
            first = log.append_as_leader(sent).base_offset
            kept = [(r.timestamp, r.key, r.value, r.headers) for r in decode(data, np.array([header]), "")]
            got = [(r.timestamp, r.key, r.value, r.headers) for r in log.read(first, 1)]
            assert got == kept
            seen.add(CODECS[attributes & 7])
    assert seen >= {"none", "snappy", "zstd"}, seen


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_batches_of_kafka_python(log: segstore.PartitionLog, codec: str) -> None:
    writer = pytest.importorskip("kafka.record.default_records")
    made = writer.DefaultRecordBatchBuilder(2, CODECS.index(codec), False, -1, -1, -1, 100_000)
    for i in range(20):
        made.append(i, NOW + i, b"k%d" % i, b"value" * i, [("h", b"x")] if i % 2 else [])
    assert log.append_as_leader(bytearray(made.build())).records == 20
    assert [(r.key, r.timestamp) for r in records(log)] == [(b"k%d" % i, NOW + i) for i in range(20)]


def test_the_largest_timestamp_is_put_right(log: segstore.PartitionLog) -> None:
    for codec in range(5):
        log.append_as_leader(batch(codec, max_timestamp=NOW + 77))
    assert scan(stored(log))[0]["max_timestamp"].tolist() == [NOW + 5] * 5


def test_records_without_timestamps(log: segstore.PartitionLog) -> None:
    none = [r._replace(timestamp=-1) for r in RECORDS]
    log.append_as_leader(batch(records=none, base_timestamp=-1, max_timestamp=-1))
    assert [r.timestamp for r in records(log)] == [-1, -1, -1]


# --- what is refused ----------------------------------------------------------------------


def changed(at: int, form: str, value: int, codec: int = 0) -> bytearray:
    sent = batch(codec)
    struct.pack_into(form, sent, at, value)
    return bytearray(with_crc(bytes(sent)))


def records_with(*of: Record) -> bytearray:
    return batch(records=list(of), last_offset_delta=len(of) - 1)


PAYLOAD = encode_records(PLAIN)
CORRUPT, INVALID = errors.CorruptRecordError, errors.InvalidRecordError
REFUSED: dict[str, tuple[bytearray, type[Exception], str]] = {
    "no bytes": (bytearray(), CORRUPT, "length"),
    "half a header": (batch()[:40], CORRUPT, "length"),
    "half a batch": (batch()[:-1], CORRUPT, "length"),
    "a length below a header's": (changed(8, ">i", 48), CORRUPT, "length"),
    "a negative length": (changed(8, ">i", -1), CORRUPT, "length"),
    "two batches": (batch() + batch(), INVALID, "exactly one"),
    "a byte behind": (batch() + b"x", INVALID, "exactly one"),
    "magic 1": (changed(16, "b", 1), INVALID, "magic 2"),
    "magic 0": (changed(16, "b", 0), INVALID, "magic 2"),
    "a wrong CRC": (batch()[:-1] + b"?", CORRUPT, "CRC"),
    "a base offset": (changed(0, ">q", 5), INVALID, "base offset"),
    "a negative base offset": (changed(0, ">q", -1), INVALID, "base offset"),
    "no records": (batch(records=[], last_offset_delta=-1), INVALID, "count"),
    "a count above the deltas": (batch(count=4), INVALID, "count"),
    "a count below the deltas": (batch(count=2), INVALID, "count"),
    "a negative count": (batch(count=-1), INVALID, "count"),
    "an offset delta of -1": (batch(last_offset_delta=-1), INVALID, "count"),
    "a control batch": (batch(attributes=0x20), INVALID, "control"),
    "a delete horizon": (batch(attributes=0x40), INVALID, "horizon"),
    "codec 5": (changed(21, ">h", 5), INVALID, "codec"),
    "codec 7": (changed(21, ">h", 7), INVALID, "codec"),
    "a transaction without a producer": (batch(attributes=TXN), INVALID, "producer id"),
    "a producer without a sequence": (batch(producer_id=5, producer_epoch=0), INVALID, "producer id"),
    "a producer without an epoch": (batch(producer_id=5, base_sequence=0), INVALID, "producer id"),
    "LogAppendTime": (batch(attributes=8), errors.InvalidTimestampError, "LogAppendTime"),
    "fewer records than it says": (batch(payload=PAYLOAD[:-8]), INVALID, "records"),
    "bytes behind the records": (batch(payload=PAYLOAD + b"\0"), INVALID, "records"),
    "a record's length": (batch(payload=b"\x7e" + PAYLOAD[1:]), INVALID, "record 0"),
    "deltas from 1": (records_with(*[r._replace(offset=r.offset + 1) for r in RECORDS]), INVALID, "deltas"),
    "deltas with a gap": (records_with(RECORDS[0], RECORDS[2], RECORDS[1]), INVALID, "record 1"),
    "deltas twice": (records_with(RECORDS[0], RECORDS[0]), INVALID, "record 1"),
    "too large": (batch(payload=bytes(1 << 21)), errors.RecordTooLargeError, "max.message.bytes"),
    **{
        f"{name}, damaged": (
            bytearray(
                with_crc(bytes(batch(code))[:HEADER_SIZE] + b"\xff" * (len(batch(code)) - HEADER_SIZE))
            ),
            CORRUPT,
            name,
        )
        for code, name in enumerate(CODECS)
        if code
    },
    **{
        f"{name}, bytes behind the records": (batch(code, PAYLOAD + b"\0"), INVALID, "records")
        for code, name in enumerate(CODECS)
        if code
    },
    **{
        f"{name}, too few records": (batch(code, PAYLOAD[:-8]), INVALID, "records")
        for code, name in enumerate(CODECS)
        if code
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(store: segstore.Store, log: segstore.PartitionLog, name: str) -> None:
    """Nothing is written, and the next batch is."""
    sent, kind, words = REFUSED[name]
    log.append_as_leader(batch())
    before = tree(Path(store.path, "t-0"))
    with pytest.raises(kind, match=words) as caught:
        log.append_as_leader(bytearray(sent))
    assert type(caught.value) is kind
    assert getattr(caught.value, "record_errors", ()) == ()
    assert (tree(Path(store.path, "t-0")), log.end_offset) == (before, 3)
    assert log.append_as_leader(batch()).base_offset == 3


@pytest.mark.parametrize("codec", [0, 4])
def test_records_without_keys_are_named_where_the_topic_is_compacted(
    store: segstore.Store, codec: int
) -> None:
    log = topic(store, cleanup_policy="compact")
    keyless = [r._replace(key=None) if r.offset != 1 else r for r in RECORDS]
    with pytest.raises(errors.InvalidRecordError, match="must have a key") as caught:
        log.append_as_leader(batch(codec, records=keyless))
    assert type(caught.value) is errors.InvalidRecordError
    assert [error.batch_index for error in caught.value.record_errors] == [0, 2]
    assert log.append_as_leader(batch(codec)).base_offset == 0


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize(
    ("timestamp", "taken"),
    [(NOW + 1000, True), (NOW + 1001, False), (NOW - 500, True), (NOW - 501, False), (-1, True), (-2, False)],
)
def test_timestamps_far_off_the_clock(store: segstore.Store, timestamp: int, taken: bool, codec: int) -> None:
    log = topic(store, message_timestamp_after_max_ms=1000, message_timestamp_before_max_ms=500)
    sent = batch(codec, records=[RECORDS[0], RECORDS[1]._replace(timestamp=timestamp)], last_offset_delta=1)
    if taken:
        assert log.append_as_leader(sent).records == 2
        return
    with pytest.raises(errors.InvalidTimestampError, match="out of range") as caught:
        log.append_as_leader(sent)
    assert [error.batch_index for error in caught.value.record_errors] == [1]
    assert log.end_offset == 0


def test_a_batch_larger_than_a_segment(store: segstore.Store) -> None:
    log = topic(store, segment_bytes=90)
    with pytest.raises(errors.RecordBatchTooLargeError, match=r"segment\.bytes"):
        log.append_as_leader(batch())
    assert log.end_offset == 0


def test_zstd_where_the_request_s_version_does_not_know_it(log: segstore.PartitionLog) -> None:
    with pytest.raises(errors.UnsupportedCompressionTypeError):
        log.append_as_leader(batch(4), allow_zstd=False)
    assert log.append_as_leader(batch(3), allow_zstd=False).base_offset == 0


@pytest.mark.parametrize(
    "given", [bytes(batch()), memoryview(bytes(batch())), memoryview(batch())[::2], None, "text"]
)
def test_what_is_no_writable_memory_of_bytes(log: segstore.PartitionLog, given: Any) -> None:
    with pytest.raises(errors.InvalidTypeError, match="writable memoryview"):
        log.append_as_leader(given)


def test_arguments_and_modes(store: segstore.Store, log: segstore.PartitionLog) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="acks=2"):
        log.append_as_leader(batch(), acks=2)
    with segstore.open(store.path, "r") as reading, pytest.raises(errors.ReadOnlyError):
        reading.partition("t").append_as_leader(batch())
    store._create_topic("__consumer_offsets", 1, {"cleanup.policy": "compact"})
    offsets = store.partition("__consumer_offsets", 0)
    with pytest.raises(errors.InvalidTopicError):
        offsets.append_as_leader(batch())
    assert not log.append_may_wait(-1)
    store.alter_topic("t", {"flush.messages": 1})
    assert log.append_may_wait(0)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_bomb_takes_bounded_memory(
    log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch, codec: int
) -> None:
    monkeypatch.setattr(sent_batch, "MAX_PLAIN", 1 << 20)
    zeros = [Record(0, NOW, b"k", bytes(1 << 20), [])]
    with pytest.raises(errors.CorruptRecordError, match="1,048,576 bytes allowed"):
        log.append_as_leader(batch(codec, records=zeros, last_offset_delta=0))
    assert log.end_offset == 0


# --- the topic's settings -----------------------------------------------------------------


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "lz4", "zstd", "snappy"])
def test_a_topic_with_a_codec_of_its_own(store: segstore.Store, wanted: str, codec: int) -> None:
    log = topic(store, compression_type=wanted)
    sent = batch(codec)
    assert log.append_as_leader(sent).records == 3
    (header,), code = scan(stored(log))[0], 0 if wanted == "uncompressed" else CODECS.index(wanted)
    assert header["attributes"] & 7 == code
    assert [(r.timestamp, r.key, r.value) for r in records(log)] == [r[1:4] for r in RECORDS]
    if code == codec:
        assert stored(log)[16:] == bytes(sent)[16:]


def test_what_is_too_large_once_it_is_recompressed(store: segstore.Store) -> None:
    log = topic(store, compression_type="uncompressed", max_message_bytes=1000)
    zeros = [Record(0, NOW, b"k", bytes(5000), [])]
    with pytest.raises(errors.RecordTooLargeError, match=r"max\.message\.bytes"):
        log.append_as_leader(batch(4, records=zeros, last_offset_delta=0))
    assert log.end_offset == 0


def test_log_append_time(store: segstore.Store) -> None:
    log = topic(store, message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms=1)
    far = [r._replace(timestamp=5) for r in RECORDS]
    for codec in range(5):
        appended = log.append_as_leader(batch(codec, records=far, base_timestamp=5))
        assert (appended.base_offset, appended.log_append_time) == (3 * codec, NOW)
    assert {r.timestamp for r in records(log)} == {NOW}


# --- producers with an id -----------------------------------------------------------------


def test_a_repeated_batch_has_its_old_offset(store: segstore.Store, log: segstore.PartitionLog) -> None:
    appended = [log.append_as_leader(of_producer(2 * i, 2)) for i in range(6)]
    assert [each.base_offset for each in appended] == list(range(0, 12, 2))
    again = [log.append_as_leader(of_producer(2 * i, 2)) for i in range(1, 6)]
    assert [(each.base_offset, each.duplicate) for each in again] == [(2 * i, True) for i in range(1, 6)]
    with pytest.raises(errors.DuplicateSequenceError):
        log.append_as_leader(of_producer(0, 2))
    with pytest.raises(errors.OutOfOrderSequenceError):
        log.append_as_leader(of_producer(13))
    assert log.append_as_leader(of_producer(0, epoch=1)).base_offset == 12
    with pytest.raises(errors.InvalidProducerEpochError):
        log.append_as_leader(of_producer(12))
    assert log.end_offset == 13
    assert_live(log, Path(store.path, "t-0"))


def test_a_duplicate_in_a_log_append_time_topic_has_its_old_time(store_dir: Path) -> None:
    with segstore.open(store_dir, clock=Clock(NOW, step=1)) as store:
        log = topic(store, message_timestamp_type="LogAppendTime")
        first = log.append_as_leader(of_producer())
        assert log.append_as_leader(of_producer()) == first._replace(duplicate=True)


def test_a_transaction_must_be_open_here_or_verified(
    store: segstore.Store, log: segstore.PartitionLog
) -> None:
    """KIP-890: else a batch that was long on its way would open a transaction that nobody ends."""
    with pytest.raises(errors.InvalidTxnStateError, match="no transaction open"):
        log.append_as_leader(of_producer(attributes=TXN))
    assert log.append_as_leader(of_producer(attributes=TXN), verified=True).base_offset == 0
    assert log.append_as_leader(of_producer(1, attributes=TXN)).base_offset == 1
    assert log.append_as_leader(of_producer(1, attributes=TXN)).duplicate
    with pytest.raises(errors.InvalidTxnStateError, match="no transaction open"):
        log.append_as_leader(of_producer(0, epoch=1, attributes=TXN))
    with pytest.raises(errors.InvalidTxnStateError, match="outside"):
        log.append_as_leader(of_producer(2))
    assert (log.last_stable_offset, committed(log)) == (0, [])
    end_transaction([log], 7, 0, 0, commit=True)
    with pytest.raises(errors.InvalidTxnStateError, match="no transaction open"):
        log.append_as_leader(of_producer(2, attributes=TXN))
    assert committed(log) == [0, 1]
    assert_live(log, Path(store.path, "t-0"))


# --- calls, and failures ------------------------------------------------------------------


def native_calls(log: segstore.PartitionLog, sent: bytearray) -> list[str]:
    called: list[str] = []

    def profile(frame: object, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "").startswith("seg_"):
            called.append(function.__name__)

    sys.setprofile(profile)
    try:
        log.append_as_leader(sent)
    finally:
        sys.setprofile(None)
    return called


def test_the_usual_batch_takes_one_call_of_c(log: segstore.PartitionLog) -> None:
    for i in range(3):  # the first ones open files, and lend the tail
        log.append_as_leader(of_producer(i))
    assert native_calls(log, batch()) == ["seg_tail_take"]
    assert native_calls(log, of_producer(3)) == ["seg_tail_take"]
    assert native_calls(log, batch(3))[:3] == ["seg_tail_take", "seg_check_batch", "seg_check_records"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_refused_write_leaves_the_log_as_it_was(store_dir: Path, error: int) -> None:
    """Also the producer's state: the batch may be sent again."""
    files = FailingFiles({"pwrite", "pwritev"}, OSError(error, os.strerror(error)), nth=0)
    with segstore.open(store_dir, files=files, clock=Clock(NOW)) as store:
        store.create_topic("t")
        log = store.partition("t")
        for i in range(3):
            log.append_as_leader(of_producer(i))
            sent = of_producer(i + 1)
            before = stored(log)
            files.arm()
            with pytest.raises(errors.StorageError):
                log.append_as_leader(bytearray(sent))
            assert (files.hits, log.end_offset, stored(log)) == (1, i + 1, before)
        assert log.append_as_leader(of_producer(3)).base_offset == 3
        assert_live(log, store_dir / "t-0")


@pytest.mark.parametrize("long_way", [False, True])
def test_one_write_for_each_append(store_dir: Path, long_way: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    let_tails_open(monkeypatch, not long_way)
    files = CountingFiles()
    with segstore.open(store_dir, files=files, clock=Clock(NOW)) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append_as_leader(batch())
        files.clear()
        for codec in range(5):
            log.append_as_leader(batch(codec))
        assert files.count("pwrite", "pwritev") == len(files.calls) == 5, files.counts()


@pytest.mark.kind("kills")
def test_an_append_killed_at_each_call_leaves_a_good_log(tmp_path: Path) -> None:
    with segstore.open(tmp_path / "state", clock=Clock(NOW)) as store:
        store.create_topic("t", config={"segment.bytes": 400, "index.interval.bytes": 1})
        store.partition("t").append_as_leader(batch())

    def run(files: Files, path: Path) -> None:
        log = segstore.open(path, files=files, clock=Clock(NOW)).partition("t")
        for i in range(3):  # over several segments
            log.append_as_leader(batch(i))
            log.flush()  # what a roll leaves to another thread is done before the next append, as in each run
            log.append_as_leader(of_producer(i))
            log.flush()

    ends = []
    for nth, path in killed_at_each_call(tmp_path / "state", tmp_path, run):
        with segstore.open(path, clock=Clock(NOW)) as store:
            log = store.partition("t")
            ends.append(log.end_offset)
            assert [r.offset for r in records(log)] == list(range(log.end_offset)), nth
            assert log.append_as_leader(batch()).base_offset == ends[-1]
            assert_live(log, path / "t-0", reopened=True)
        assert segstore.check(path) == [], nth
    assert ends[-1] == 3 + 3 * 4
    assert len(set(ends)) > 5
