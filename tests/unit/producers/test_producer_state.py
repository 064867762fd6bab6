"""storage.producers.producer_state: the producer states that follow from a log, and its snapshots."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import kafka_tools
import numpy as np
import pytest
from crc32c import crc32c
from partitions import broker_partitions

from segstore.errors import CorruptCheckpointError, CorruptRecordError
from segstore.index.txn_index import AbortedTxn, format_entries
from segstore.records import decode, scan
from segstore.records.control import ABORT, COMMIT, parse_control
from segstore.records.header import batch_type
from segstore.storage.producers.producer_state import (
    BatchMetadata,
    ProducerState,
    SnapshotEntry,
    format_snapshot,
    parse_snapshot,
)

pytestmark = pytest.mark.kind("Kafka's tools")

ENTRIES = [
    SnapshotEntry(0x0102030405060708, 0x1112, 0x21222324, 5000, 24, 1795237704945, 9, 4990),
    SnapshotEntry(3, 0, -1, -1, 0, 1795237704945, 0, -1),
]


# --- snapshots ---------------------------------------------------------------

SNAPSHOTS = [p for s in broker_partitions() if not s.build for p in sorted(s.path.glob("*.snapshot"))]


@pytest.mark.parametrize(
    "path", SNAPSHOTS, ids=lambda p: f"{p.parts[-4]}-{p.parent.name}-{p.stem.lstrip('0')}"
)
def test_brokers_snapshots_come_back_to_the_byte(path: Path) -> None:
    data = path.read_bytes()
    assert format_snapshot(parse_snapshot(data, "f")) == data
    state = ProducerState.load(data, int(path.stem))
    assert state.dump() == data
    assert state.map_end_offset == int(path.stem)


def test_every_byte_has_its_place() -> None:
    body = bytes.fromhex(
        "00000002"
        "0000000000000003 0000 ffffffff ffffffffffffffff 00000000 000001a1fc8174f1 00000000 ffffffffffffffff"
        "0102030405060708 1112 21222324 0000000000001388 00000018 000001a1fc8174f1 00000009 000000000000137e"
    )
    assert format_snapshot(ENTRIES) == struct.pack(">hI", 1, crc32c(body)) + body


def sealed(body: bytes, version: int = 1) -> bytes:
    return struct.pack(">hI", version, crc32c(body)) + body


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


WHOLE = format_snapshot(ENTRIES)
BAD_SNAPSHOTS = {
    "empty": b"",
    "short": WHOLE[:9],
    "zeros": bytes(102),
    "another version": sealed(WHOLE[6:], 2),
    "a wrong CRC": changed(WHOLE, 3),
    "a flipped bit": changed(WHOLE, 60),
    "cut": WHOLE[:-1],
    "more behind": WHOLE + b"\0",
    "fewer entries than it says": sealed(WHOLE[6:56]),
    "more entries than it says": sealed(struct.pack(">i", 1) + WHOLE[10:]),
    "a negative number of entries": sealed(struct.pack(">i", -1)),
    "more entries than memory holds": sealed(struct.pack(">i", (1 << 31) - 1)),
    "a producer twice": sealed(struct.pack(">i", 2) + WHOLE[10:56] * 2),
    "a negative producer id": sealed(struct.pack(">iq", 1, -1) + WHOLE[18:56]),
}


@pytest.mark.parametrize("name", BAD_SNAPSHOTS)
def test_bad_snapshots_are_refused(name: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=r"^somewhere: "):
        ProducerState.load(BAD_SNAPSHOTS[name], 0, "somewhere")


@pytest.mark.judge("kafka.tools.DumpLogSegments")
@pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not()))
@pytest.mark.timeout(900)
def test_kafka_reads_what_was_formatted(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000005001.snapshot"
    path.write_bytes(ProducerState.load(WHOLE, 5001).dump())
    dump = kafka_tools.dump_log([path])
    assert dump.errors == []
    shown = {entry["producerId"]: entry for entry in dump.files[path].producers}
    assert shown.keys() == {entry.producer_id for entry in ENTRIES}
    for entry in ENTRIES:
        got = shown[entry.producer_id]
        assert got["producerEpoch"] == entry.producer_epoch
        assert got["coordinatorEpoch"] == entry.coordinator_epoch
        assert got["lastTimestamp"] == entry.timestamp
        first = entry.current_txn_first_offset
        assert got["currentTxnFirstOffset"] == (first if first >= 0 else None)
        if entry.last_offset >= 0:
            assert got["lastSequence"] == entry.last_sequence
            assert got["lastOffset"] == entry.last_offset
            assert got["offsetDelta"] == entry.offset_delta


# --- logs that a broker wrote ------------------------------------------------


def replay(state: ProducerState, partition: Path, cuts: list[int] | None = None) -> list[AbortedTxn]:
    """Take in a partition's logs, in pieces that end at the given numbers of batches."""
    found: list[AbortedTxn] = []
    for path in sorted(partition.glob("*.log")):
        data = path.read_bytes()
        batches, _ = scan(data)

        def read_control(i: int, part: np.ndarray) -> tuple[int, int]:
            record = decode(data, part[i : i + 1], str(path))[0]  # noqa: B023 - called within this turn
            return parse_control(record.key, record.value, file=str(path), position=0, offset=record.offset)  # noqa: B023

        for part in np.split(batches, [c for c in cuts or [] if c < len(batches)]):
            found += state.update(part, lambda i, part=part: read_control(i, part))
    return found


@pytest.mark.parametrize(
    "source",
    [s for s in broker_partitions() if s.form == "clean"],
    ids=lambda s: s.id,
)
def test_a_log_gives_the_brokers_snapshot_and_index(source) -> None:
    state = ProducerState()
    found = replay(state, source.path)
    newest = max(source.path.glob("*.snapshot"))
    assert state.map_end_offset == int(newest.stem)
    assert state.dump() == newest.read_bytes()
    assert state.first_unstable_offset is None
    index = sorted(source.path.glob("*.txnindex"))
    assert format_entries(found) == b"".join(path.read_bytes() for path in index)


def test_the_state_does_not_depend_on_how_the_log_was_read(golden: Path, rng: random.Random) -> None:
    partition = golden / "clean" / "flights-txn-0"
    whole = ProducerState()
    expected = replay(whole, partition)
    assert len(expected) == 2
    for _ in range(20):
        state = ProducerState()
        assert replay(state, partition, sorted(rng.sample(range(13), rng.randrange(6)))) == expected
        assert (state.dump(), state.producers) == (whole.dump(), whole.producers)


def test_what_is_known_is_passed_over(golden: Path) -> None:
    partition = golden / "clean" / "flights-txn-0"
    state = ProducerState()
    replay(state, partition)
    before = state.dump()
    assert replay(state, partition) == []
    assert state.dump() == before
    loaded = ProducerState.load(before, state.map_end_offset)
    assert replay(loaded, partition) == []
    assert loaded.dump() == before


# --- the state machine -------------------------------------------------------

DATA, TXN, MARKER = 0, 0x10, 0x30


def batch(
    base: int, n: int = 1, pid: int = 1, kind: int = TXN, epoch: int = 0, seq: int = 0, **more: int
) -> dict:
    fields = {"base_offset": base, "last_offset": base + n - 1, "count": n, "producer_id": pid}
    fields |= {"attributes": kind, "producer_epoch": epoch, "base_sequence": seq}
    return fields | {"max_timestamp": 1000 + base} | more


def marker(base: int, type: int, pid: int = 1, epoch: int = 0, coordinator: int = 5, **more: int) -> dict:
    fields = batch(base, 1, pid, MARKER, epoch, seq=-1, **more)
    return fields | {"marker": (type, coordinator)}


def take(state: ProducerState, *batches: dict) -> list[AbortedTxn]:
    array = np.zeros(len(batches), batch_type())
    for i, fields in enumerate(batches):
        for name, value in fields.items():
            if name != "marker":
                array[name][i] = value
    return state.update(array, lambda i: batches[i]["marker"])


TRANSACTIONS = {
    "commit": ([batch(0, 5), marker(5, COMMIT)], [], {}),
    "abort": ([batch(0, 5), marker(5, ABORT)], [AbortedTxn(1, 0, 5, 6)], {}),
    "open": ([batch(0, 5), batch(5, 5)], [], {1: 0}),
    "open again": ([batch(0, 5), marker(5, ABORT), batch(6)], [AbortedTxn(1, 0, 5, 6)], {1: 6}),
    "a marker with no transaction": ([marker(0, ABORT)], [], {}),
    "a second marker": ([batch(0), marker(1, ABORT), marker(2, ABORT)], [AbortedTxn(1, 0, 1, 2)], {}),
    "another was open before": (
        [batch(0, pid=2), batch(1), marker(2, ABORT)],
        [AbortedTxn(1, 1, 2, 0)],
        {2: 0},
    ),
    "another is open since": (
        [batch(0), batch(1, pid=2), batch(2, pid=3), marker(3, ABORT)],
        [AbortedTxn(1, 0, 3, 1)],
        {2: 1, 3: 2},
    ),
    "another begins later in the same update": (
        [batch(0), marker(1, ABORT), batch(2, pid=2)],
        [AbortedTxn(1, 0, 1, 2)],
        {2: 2},
    ),
    "interleaved": (
        [batch(0), batch(1, pid=2), marker(2, ABORT, pid=2), marker(3, ABORT)],
        [AbortedTxn(2, 1, 2, 0), AbortedTxn(1, 0, 3, 4)],
        {},
    ),
    "fenced by the marker's newer epoch": (
        [batch(0), marker(1, ABORT, epoch=1), batch(2, epoch=1)],
        [AbortedTxn(1, 0, 1, 2)],
        {1: 2},
    ),
    "a control record of another type": ([batch(0), marker(1, 2)], [], {1: 0}),
    "a control batch that compaction has emptied": ([batch(0), marker(1, ABORT, count=0)], [], {1: 0}),
    "no transaction": ([batch(0, kind=DATA), batch(1, kind=DATA, pid=-1)], [], {}),
    "a control batch of no producer": ([marker(0, 2, pid=-1, epoch=-1)], [], {}),
    "plain data within a transaction": ([batch(0), batch(1, kind=DATA, seq=1)], [], {1: 0}),
}


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_transactions(name: str) -> None:
    batches, expected, ongoing = TRANSACTIONS[name]
    state = ProducerState()
    assert take(state, *batches) == expected
    assert state.ongoing == ongoing
    assert state.first_unstable_offset == min(ongoing.values(), default=None)
    assert state.map_end_offset == batches[-1]["last_offset"] + 1
    again = ProducerState.load(state.dump(), state.map_end_offset)
    assert (again.ongoing, again.dump()) == (ongoing, state.dump())


def test_a_transaction_goes_on_from_a_snapshot() -> None:
    state = ProducerState()
    take(state, batch(0, 5), batch(5, pid=2))
    state = ProducerState.load(state.dump(), 6)
    assert take(state, marker(6, ABORT)) == [AbortedTxn(1, 0, 6, 5)]
    assert take(state, marker(7, ABORT, pid=2)) == [AbortedTxn(2, 5, 7, 8)]


def test_the_last_five_batches_of_an_epoch_are_known() -> None:
    state = ProducerState()
    take(state, *(batch(10 * i, 10, kind=DATA, seq=10 * i) for i in range(7)))
    entry = state.producers[1]
    assert list(entry.batches) == [
        BatchMetadata(10 * i + 9, 10 * i + 9, 9, 1000 + 10 * i) for i in range(2, 7)
    ]
    take(state, batch(70, 2, kind=DATA, epoch=1))
    entry = state.producers[1]
    assert list(entry.batches) == [BatchMetadata(1, 71, 1, 1070)]
    assert (entry.producer_epoch, entry.last_timestamp) == (1, 1070)


SEQUENCES = {
    "from zero": (0, 1, 0),
    "a run": (100, 25, 124),
    "to the last": ((1 << 31) - 5, 5, (1 << 31) - 1),
    "over the last": ((1 << 31) - 5, 6, 0),
    "far over the last": ((1 << 31) - 1, 10, 8),
    "none": (-1, 10, -1),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_wrap(name: str) -> None:
    base, n, last = SEQUENCES[name]
    state = ProducerState()
    take(state, batch(50, n, kind=DATA, seq=base))
    assert state.producers[1].batches[-1].last_sequence == last
    assert parse_snapshot(state.dump(), "f")[0].last_sequence == last


def test_a_marker_leaves_the_batches_of_its_epoch() -> None:
    state = ProducerState()
    take(state, batch(0, 5), marker(5, COMMIT, coordinator=3))
    entry = state.producers[1]
    assert (entry.coordinator_epoch, entry.last_timestamp, len(entry.batches)) == (3, 1005, 1)
    take(state, batch(6, 5, seq=5), marker(11, ABORT, epoch=1, coordinator=4))
    entry = state.producers[1]
    assert (entry.coordinator_epoch, entry.producer_epoch, len(entry.batches)) == (4, 1, 0)
    assert parse_snapshot(state.dump(), "f") == [SnapshotEntry(1, 1, -1, -1, 0, 1011, 4, -1)]


def test_a_compacted_batch_counts_by_its_offsets() -> None:
    """The cleaner takes records out of a batch, not offsets, so the sequences stay known."""
    state = ProducerState()
    take(state, batch(100, 25, kind=DATA, seq=100, count=3))
    assert state.producers[1].batches[-1] == BatchMetadata(124, 124, 24, 1100)


def test_only_control_batches_of_producers_are_read() -> None:
    array = np.zeros(1000, batch_type())
    array["base_offset"] = array["last_offset"] = np.arange(1000)
    array["producer_id"] = -1
    array["attributes"][::7] = MARKER
    array["count"] = 1
    state = ProducerState()
    assert state.update(array, lambda i: pytest.fail("read")) == []
    assert (state.map_end_offset, state.producers) == (1000, {})
    assert state.update(array[:0], lambda i: pytest.fail("read")) == []
    assert state.map_end_offset == 1000


def test_a_control_batch_that_cannot_be_read_stops_there() -> None:
    state = ProducerState()
    batches = [batch(0), marker(1, COMMIT), batch(2), marker(3, ABORT), batch(4)]
    del batches[3]["marker"]
    with pytest.raises(KeyError):
        take(state, *batches)
    assert (state.map_end_offset, state.ongoing) == (3, {1: 2})
    batches[3]["marker"] = (ABORT, 0)
    assert take(state, *batches) == [AbortedTxn(1, 2, 3, 4)]
    assert state.ongoing == {1: 4}


def test_idle_producers_expire_unless_a_transaction_is_open() -> None:
    state = ProducerState()
    take(state, batch(0, pid=1), batch(1, pid=2, kind=DATA), batch(2, pid=3, kind=DATA))
    assert state.expire(1001 + 86_400_000 - 1) == 0
    assert state.expire(1001 + 86_400_000) == 1
    assert state.producers.keys() == {1, 3}
    assert state.expire(1 << 62, after_ms=5) == 1
    assert state.producers.keys() == {1}


# --- control records ---------------------------------------------------------

CONTROLS = {
    "abort": ("00000000", "000000000005", (ABORT, 5)),
    "commit": ("00000001", "000000000005", (COMMIT, 5)),
    "all of the coordinator epoch": ("00000001", "000001020304", (COMMIT, 0x01020304)),
    "of a later version, with more behind": ("0001000000ff", "000100000005ff", (ABORT, 5)),
    "leader change": ("00000002", "0000", (2, -1)),
    "snapshot header": ("00000003", None, (3, -1)),
    "not known yet": ("00007fff", "", (0x7FFF, -1)),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_control_records(name: str) -> None:
    key, value, expected = CONTROLS[name]
    given = None if value is None else bytes.fromhex(value)
    assert parse_control(bytes.fromhex(key), given, file="f", position=1, offset=2) == expected


BAD_CONTROLS = {
    "no key": (None, "000000000005"),
    "empty key": ("", "000000000005"),
    "short key": ("000000", "000000000005"),
    "negative version": ("ffff0000", "000000000005"),
    "no value": ("00000000", None),
    "short value": ("00000001", "0000000000"),
    "negative version of the value": ("00000001", "ffff00000005"),
}


@pytest.mark.parametrize("name", BAD_CONTROLS)
def test_bad_control_records_are_named_by_their_place(name: str) -> None:
    key, value = (None if text is None else bytes.fromhex(text) for text in BAD_CONTROLS[name])
    with pytest.raises(CorruptRecordError) as error:
        parse_control(key, value, file="f", position=61, offset=7)
    assert (error.value.file, error.value.position, error.value.offset) == ("f", 61, 7)
