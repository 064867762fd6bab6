"""Promise: a snapshot has Kafka's own bytes, is read back as it was written, and is never believed when it is
damaged.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import MUTATING, FailingFiles

from segstore.errors import CorruptRecordError
from segstore.files import Files
from segstore.records import Columns, encode
from segstore.records.control import snapshot_footer, snapshot_header
from segstore.replication.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    TopicRecord,
)
from segstore.replication.metadata.snapshots import (
    MetadataSnapshot,
    MetadataSnapshots,
    make_snapshot,
    records_of,
)
from segstore.storage.segment.metadata_snapshot import (
    SnapshotId,
    last_contained_timestamp,
    list_snapshots,
)

ID = SnapshotId(300, 7)
LAST, NOW = 1_699_999_999_001, 1_700_000_000_123
RECORDS: list[MetadataRecord] = [
    FeatureLevelRecord("metadata.version", 27),
    TopicRecord("flights", "OqyzI-goTjC51rYcKxyWJw"),
    ConfigRecord(2, "flights", "segment.bytes", "1234"),
]
GOLDEN = bytes.fromhex(
    "00000000000000000000004700000007022f0d41920020000000000000018bcfe5687b0000018bcfe5687bffffffffffff"
    "ffffffffffffffff000000012a00000008000000031600000000018bcfe5641900000000000000000001000000990000"
    "0007024b6ac6760000000000020000018bcfe5687b0000018bcfe5687bffffffffffffffffffffffffffff000000033a"
    "000000012e010c00116d657461646174612e76657273696f6e001b000044000002013801020008666c69676874733aac"
    "b323e8284e30b9d6b61c2b1c962700004c00000401400104000208666c69676874730e7365676d656e742e6279746573"
    "0531323334000000000000000000040000003f000000070283eb1ec30020000000000000018bcfe5687b0000018bcfe5"
    "687bffffffffffffffffffffffffffff000000011a00000008000000040600000000"
)
"""What RecordsSnapshotWriter of Kafka 4.1.0 writes of `RECORDS`."""


def data_of(snapshot: MetadataSnapshot) -> bytes:
    return b"".join(snapshot.chunks)


def test_the_bytes_are_those_that_kafka_writes() -> None:
    assert data_of(make_snapshot(ID, RECORDS, LAST, NOW)) == GOLDEN


def test_what_kafka_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / ID.name
    path.write_bytes(GOLDEN)
    assert list(records_of(Files(), str(path))) == RECORDS
    assert last_contained_timestamp(Files(), str(path)) == LAST
    assert list_snapshots(Files(), str(tmp_path)) == ([ID], [])


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 5000])
def test_any_number_of_records_comes_back(tmp_path: Path, count: int) -> None:
    records = [TopicRecord(f"t{number}" * 20, "OqyzI-goTjC51rYcKxyWJw") for number in range(count)]
    held = MetadataSnapshots(Files(), str(tmp_path))
    held.write(make_snapshot(ID, records, LAST, NOW))
    assert list(records_of(Files(), held.path(ID))) == records
    assert held.is_sound(ID)
    assert [path.name for path in tmp_path.iterdir()] == [ID.name]


def plain(offset: int) -> bytes:
    (chunk,) = encode(Columns([b"x"], timestamp=NOW))
    return offset.to_bytes(8, "big") + bytes(chunk.data)[8:]


HEADER, FOOTER = bytes(snapshot_header(LAST, NOW, 7).data), bytes(snapshot_footer(NOW, 1, 7).data)
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "ends within"),
    "without footer": (lambda data: data[: -len(FOOTER)], "no footer"),
    "cut within the footer": (lambda data: data[:-1], "ends within"),
    "cut within the records": (lambda data: data[:150], "ends within"),
    "header alone": (lambda data: HEADER, "no footer"),
    "without header": (lambda data: plain(0) + FOOTER, "begin with its header"),
    "footer alone": (lambda data: bytes(snapshot_footer(NOW, 0, 7).data), "begin with its header"),
    "a second header": (lambda data: HEADER + (1).to_bytes(8, "big") + HEADER[8:], "another one"),
    "something behind the footer": (lambda data: data + plain(5), "behind the snapshot's footer"),
    "garbage behind the footer": (lambda data: data + b"x", "ends within"),
    "an offset is missing": (lambda data: HEADER + plain(2) + FOOTER, "offset 1 is missing"),
    "a flipped bit": (lambda data: data[:170] + bytes([data[170] ^ 1]) + data[171:], "CRC"),
    "zeroes": (lambda data: bytes(len(data)), "impossible|magic|length"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_snapshot_is_refused(tmp_path: Path, name: str) -> None:
    change, reason = DAMAGE[name]
    path = tmp_path / ID.name
    path.write_bytes(change(GOLDEN))
    with pytest.raises(CorruptRecordError, match=reason):
        list(records_of(Files(), str(path)))
    held = MetadataSnapshots(Files(), str(tmp_path))
    assert not held.is_sound(ID)
    assert isinstance(held.damaged[ID], CorruptRecordError)
    assert held.newest(0, 1000) is None


def test_no_flipped_byte_that_a_crc_covers_goes_unseen(tmp_path: Path, rng: random.Random) -> None:
    for number in range(200):
        at = rng.randrange(len(GOLDEN))
        data = bytearray(GOLDEN)
        data[at] ^= 1 << rng.randrange(8)
        path = tmp_path / f"{number}.checkpoint"
        path.write_bytes(data)
        try:
            found = list(records_of(Files(), str(path)))
        except CorruptRecordError:
            continue
        assert found == RECORDS, at  # a leader epoch lies outside the CRC, and means nothing here


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 400, 300), (0, 299, 200), (0, 99, None), (300, 300, 300), (301, 900, None)],
)
def test_the_newest_sound_one_that_fits_is_taken(
    tmp_path: Path, start: int, end: int, expected: int | None
) -> None:
    held = MetadataSnapshots(Files(), str(tmp_path))
    for offset in (100, 200, 300):
        held.write(make_snapshot(SnapshotId(offset, 1), RECORDS, LAST, NOW))
    (tmp_path / SnapshotId(250, 1).name).write_bytes(GOLDEN[:-1])
    found = MetadataSnapshots(Files(), str(tmp_path)).newest(start, end)
    assert (found and found.end_offset) == expected


def test_what_a_crash_left_goes_and_other_files_stay(tmp_path: Path) -> None:
    left = [ID.name + ".part", f"{ID.name[:-11]}-8723.checkpoint.part", ID.name + ".deleted"]
    others = ["00000000000000000007.log", "quorum-state", "checkpoint", "1.checkpoint"]
    for name in [*left, *others]:
        (tmp_path / name).touch()
    held = MetadataSnapshots(Files(), str(tmp_path))
    for offset in (100, 200, 300):
        held.write(make_snapshot(SnapshotId(offset, 1), RECORDS, LAST, NOW))
    held.forget_before(200)
    held.forget_after(200)
    assert {path.name for path in tmp_path.iterdir()} == {SnapshotId(200, 1).name, *others}
    assert held.ids == [SnapshotId(200, 1)]


def test_whichever_call_fails_nothing_but_a_whole_snapshot_has_the_name(tmp_path: Path) -> None:
    nth, hits = 0, 1
    while hits:
        nth += 1
        files = FailingFiles(MUTATING, OSError(28, "injected"), nth)
        directory = tmp_path / str(nth)
        directory.mkdir()
        held = MetadataSnapshots(files, str(directory))
        try:
            held.write(make_snapshot(ID, RECORDS, LAST, NOW))
        except OSError:
            assert held.ids == []
        if (hits := files.hits) == 0:
            assert held.ids == [ID]
        for found in list_snapshots(Files(), str(directory))[0]:
            assert (directory / found.name).read_bytes() == GOLDEN
        again = MetadataSnapshots(Files(), str(directory))
        again.write(make_snapshot(ID, RECORDS, LAST, NOW))
        again.forget_before(0)
        assert [path.name for path in directory.iterdir()] == [ID.name]
    assert nth > 4
