"""`ArchivedLog`: reads a log out of an archive as the store has it, in place."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compaction import clean, put, roll
from drawn_logs import fill, transactions
from made_archive import make_archive
from stores import Clock

import segstore
from segstore import names
from segstore.archiving import archived_log, log_contents, log_windows, segment_hints
from segstore.archiving.archived_log import ArchivedLog
from segstore.archiving.archived_logs import ArchivedLogs, open_log
from segstore.archiving.chain import read_state
from segstore.archiving.log_contents import contents_of
from segstore.archiving.object_names import ArchiverClaim
from segstore.archiving.pieces import ArchivedSegment
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.segment_list import parse_segment_list
from segstore.errors import (
    CorruptArchiveError,
    CorruptRecordError,
    DataLossError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from segstore.records import CODECS

NEXT = ArchiverClaim(2, "00000000000000bb")
LEVELS = ("read_uncommitted", "read_committed")


@pytest.fixture(scope="module")
def seeded(seed: int) -> random.Random:
    return random.Random(f"{seed} archived log")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, seeded: random.Random) -> Iterator[segstore.Store]:
    """A topic for each codec, one with gaps after compaction, one with transactions of each outcome, one that
    is empty, one of which the beginning was deleted."""
    path = tmp_path_factory.mktemp("archived") / "store"
    with segstore.open(path, clock=Clock(step=1), config={"log.cleaner.threads": 0}) as made:
        for codec in CODECS:
            config = {"segment.bytes": 8000, "compression.type": codec, "index.interval.bytes": 300}
            made.create_topic(codec, config=config)
            fill(made.partition(codec), seeded)
        made.create_topic("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
        for i in range(40):
            put(made.partition("t"), *[(b"k%d" % seeded.randrange(9), b"%d" % i) for _ in range(4)])
        roll(made)
        clean(made)
        transactions(made, seeded, **{"segment.bytes": 2000})
        made.create_topic("empty")
        made.create_topic("cut", config={"segment.bytes": 4000})
        fill(made.partition("cut"), seeded)
        made.partition("cut").delete_records(50)
        yield made
    assert list(segstore.check(path)) == []


@pytest.fixture(scope="module")
def logs(store: segstore.Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArchivedLogs]:
    archive = tmp_path_factory.mktemp("archive")
    make_archive(store.path, archive)
    with ArchivedLogs(str(archive)) as found:
        yield found


@pytest.fixture(params=["as it is", "small windows"])
def windows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small windows the segments are large: indexes are used, and batches reach over the edges."""
    if request.param == "small windows":
        for module, name, value in (
            (log_windows, "MOST_BYTES", 700),
            (segment_hints, "SMALL", 100),
        ):
            monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(log_windows.Ask.__new__, "__defaults__", (200,))


Seen = list[tuple[int, Any]]


def seen(
    log: Any,
    offset: int | None = None,
    size: int = 1000,
    level: str = LEVELS[0],
    times: Any = None,
    **more: Any,
) -> Seen:
    """All records from an offset on."""
    at, found = log.start_offset if offset is None else offset, []
    end = log.end_offset if level == LEVELS[0] else log.last_stable_offset
    while at < min(end, more.get("below", end)):
        part = log.read(at, size, isolation_level=level, times=times, **more)
        assert part.next_offset > at
        at = part.next_offset
        found += [(each.offset, each) for each in part]
    return found


def from_offset(log: segstore.PartitionLog, first: int, level: str) -> Seen:
    """What a store has from an offset on, which may lie below its log start offset."""
    return [each for each in seen(log, level=level) if each[0] >= first]


@pytest.mark.parametrize("level", LEVELS)
def test_it_reads_what_the_store_reads(
    store: segstore.Store, logs: ArchivedLogs, windows: None, seeded: random.Random, level: str
) -> None:
    assert set(logs.topics) == set(store.topics())
    for topic in store.topics():
        theirs, mine = store.partition(topic), logs.log(topic, 0)
        assert mine.end_offset == theirs.end_offset
        assert mine.last_stable_offset == theirs.last_stable_offset
        first = theirs.start_offset
        assert mine.start_offset == first, topic
        expected = from_offset(theirs, first, level)
        contents = mine.contents
        with open_log(logs.objects.uri, contents) as ahead:
            for size in (1, 1000, 1 << 20):
                assert seen(mine, size=size, level=level) == expected, (topic, size)
                assert seen(ahead, size=size, level=level) == expected, (topic, size)
        for _ in range(5):
            offset = seeded.randrange(first, mine.end_offset + 1)
            assert seen(mine, offset, 500, level) == [each for each in expected if each[0] >= offset], topic
        with open_log(logs.objects.uri, contents) as ahead:
            for _ in range(20):  # what was read ahead is mostly not what comes next
                offset = seeded.randrange(first, mine.end_offset + 1)
                some = [(each.offset, each) for each in ahead.read(offset, 300, isolation_level=level)]
                assert some == [each for each in expected if each[0] >= offset][: len(some)], topic


@pytest.mark.parametrize("level", LEVELS)
def test_parts_read_what_a_slice_has(
    store: segstore.Store, logs: ArchivedLogs, windows: None, seeded: random.Random, level: str
) -> None:
    for topic in ("none", "zstd", "t", "txn"):
        theirs = store.partition(topic)
        expected = seen(theirs, level=level)
        for _ in range(8):
            end = theirs.end_offset if level == LEVELS[0] else theirs.last_stable_offset
            first, last = sorted(seeded.sample(range(end + 1), 2))
            part = logs.contents(topic, 0).part(first, last)
            with open_log(logs.objects.uri, part) as log:
                at, found = first, []
                while at < last:
                    records = log.read(at, 600, isolation_level=level, below=last)
                    assert records.next_offset > at
                    at = records.next_offset
                    found += [(each.offset, each) for each in records]
            assert [each for each in found if each[0] < last] == [
                each for each in expected if first <= each[0] < last
            ], (topic, first, last)


def test_times(store: segstore.Store, logs: ArchivedLogs, windows: None, seeded: random.Random) -> None:
    for topic in (*CODECS, "t", "cut", "txn"):
        theirs, mine = store.partition(topic), logs.log(topic, 0)
        stamps = [each.timestamp for _, each in seen(theirs)]
        for stamp in (0, *seeded.sample(stamps, 5), max(stamps), max(stamps) + 1):
            assert mine.offset_for_time(stamp) == theirs.offset_for_time(stamp), (topic, stamp)
            for span in ((stamp - 50_000, stamp + 50_000), (stamp, stamp)):
                assert seen(mine, times=span) == seen(theirs, times=span), (topic, span)


@pytest.mark.parametrize("small", [0, 1 << 20], ids=["by indexes", "by windows"])
def test_edges_are_those_of_batches(
    store: segstore.Store,
    logs: ArchivedLogs,
    windows: None,
    small: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archived_log, "SMALL_PIECE", small)
    for topic in ("none", "gzip"):
        theirs, mine = store.partition(topic), logs.log(topic, 0)
        bases = {int(each) for at, _ in seen(theirs) for each in theirs.read(at, 0).batches["base_offset"]}
        assert {mine.edge(at) for at in range(1, mine.end_offset)} <= bases
        assert all(mine.edge(at) <= at for at in range(1, mine.end_offset))
        assert len({mine.edge(at) for at in range(1, mine.end_offset)}) > 1


def test_what_is_not_there(logs: ArchivedLogs) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'flights' in the archive; there are: "):
        logs.log("flights", 0)
    with pytest.raises(UnknownTopicOrPartitionError, match="none-7 is not in the archive"):
        logs.log("none", 7)
    log = logs.log("cut", 0)
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 0 of cut-0 .* offsets 50 to"):
        log.read(0)
    assert len(log.read(log.end_offset)) == 0


# --- damage -----------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> tuple[segstore.PartitionLog, Path]:
    """A log of plain batches of one record, and its archive's directory."""
    with segstore.open(tmp_path / "store", clock=Clock(step=1)) as made:
        made.create_topic("t", config={"segment.bytes": 6000})
        for number in range(150):
            made.partition("t").append(b"%03d" % number * 20)
    make_archive(tmp_path / "store", tmp_path / "archive")
    return segstore.open(tmp_path / "store", "r").partition("t"), tmp_path / "archive"


def opened(archive: Path) -> ArchivedLog:
    return ArchivedLogs(str(archive)).log("t", 0)


def logs_of(archive: Path) -> list[Path]:
    return sorted((archive / "topics").rglob("*.log"))


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


FLIPPED: dict[str, int] = {"magic": 16, "length": 8, "small length": 11, "crc": 20, "record": 80}


@pytest.mark.parametrize("part", FLIPPED)
@pytest.mark.parametrize("batch", [0, 1, 3, 6, "last"])
def test_a_flipped_bit_is_told_with_its_object_and_all_else_is_read(
    own: tuple[segstore.PartitionLog, Path], part: str, batch: int | str, windows: None
) -> None:
    theirs, archive = own
    expected = seen(theirs)
    path = logs_of(archive)[1]
    base = int(path.name[:20])
    size = int.from_bytes(path.read_bytes()[8:12], "big") + 12
    slot = path.stat().st_size // size - 1 if batch == "last" else int(batch)
    flipped(path, slot * size + FLIPPED[part])
    log, bad, found = opened(archive), [], []
    at = 0
    while at < log.end_offset:
        try:
            records = log.read(at, 500)
        except CorruptRecordError as error:
            bad.append((error.file, error.position, error.offset))
            at = error.next_offset or log.end_offset
        else:
            found += [(each.offset, each) for each in records]
            at = records.next_offset
    assert bad == [(str(path.relative_to(archive)), slot * size, base + slot)]
    assert found == [each for each in expected if each[0] != base + slot]
    assert seen(log, base + slot + 1) == [each for each in expected if each[0] > base + slot]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


HURT: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "missing": (Path.unlink, CorruptArchiveError, "it is missing"),
    "cut": (cut, CorruptArchiveError, r"it has \d+ bytes, at least \d+ are expected"),
}


@pytest.mark.parametrize("name", HURT)
@pytest.mark.parametrize("which", ["segment", "commit"])
def test_a_lost_object_is_told_by_name(
    own: tuple[segstore.PartitionLog, Path], name: str, which: str
) -> None:
    theirs, archive = own
    hurt, kind, message = HURT[name]
    log = opened(archive)
    path = logs_of(archive)[1] if which == "segment" else max((archive / "commits").rglob("*.commit"))
    extent = next(each for each in log.contents.extents if path.match(f"*/{each.object}"))
    hurt(path)
    with pytest.raises(kind, match=message) as raised:
        seen(log)
    assert path.match(f"*/{raised.value.object}")  # type: ignore[attr-defined]
    if which == "segment":
        assert seen(log, extent.end) == seen(theirs, extent.end)


@pytest.mark.parametrize("suffix", [names.INDEX, names.TIME_INDEX])
@pytest.mark.parametrize(
    "hurt", [Path.unlink, cut, lambda path: flipped(path, 3)], ids=["gone", "cut", "flip"]
)
def test_an_index_is_a_hint(
    own: tuple[segstore.PartitionLog, Path],
    suffix: str,
    hurt: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs, archive = own
    monkeypatch.setattr(segment_hints, "SMALL", 100)
    expected, hurts = seen(theirs), sorted((archive / "topics").rglob(f"*{suffix}"))
    for path in hurts:
        if path.stat().st_size:
            hurt(path)
    for offset, record in expected[::7]:
        log = opened(archive)
        assert seen(log, offset, below=offset + 1)[0] == (offset, record)
        assert log.offset_for_time(record.timestamp) == offset
    assert str(suffix) in caplog.text


def test_a_wrong_entry_of_an_index_misleads_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The archiver has read the index as it was: the CRC holds, and the entry is wrong."""
    with segstore.open(tmp_path / "store", clock=Clock(step=1)) as made:
        made.create_topic("t", config={"segment.bytes": 30_000})
        for number in range(300):
            made.partition("t").append(b"%03d" % number * 60)
        expected = seen(made.partition("t"))
    for path in (tmp_path / "store" / "t-0").glob("*.index"):
        data = bytearray(path.read_bytes())
        for at in range(7, len(data), 8):
            data[at] ^= 1
        path.write_bytes(data)
    make_archive(tmp_path / "store", tmp_path / "archive")
    monkeypatch.setattr(segment_hints, "SMALL", 100)
    for offset, record in expected[::19]:
        log = opened(tmp_path / "archive")
        assert seen(log, offset, below=offset + 1)[0] == (offset, record)
    assert "an entry points to no batch" in caplog.text


# --- the archive changes ------------------------------------------------------------------


def test_objects_that_were_replaced_are_read_from_the_newest_state(
    own: tuple[segstore.PartitionLog, Path], tmp_path: Path
) -> None:
    theirs, archive = own
    expected = seen(theirs)
    log = opened(archive)
    before = seen(log, below=40)
    at = before[-1][0] + 1
    for path in archive.rglob("*"):  # the same log, in objects with other names
        if path.is_file():
            path.unlink()
    make_archive(tmp_path / "store", archive, time=2_000, pieces=1, claim=NEXT)
    assert before[:at] + seen(log, at) == expected


def test_an_archive_that_goes_another_way_is_told(tmp_path: Path) -> None:
    with segstore.open(tmp_path / "store", clock=Clock(step=1)) as made:
        made.create_topic("t", config={"segment.bytes": 2000})
        append(made, 50)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with segstore.open(tmp_path / "store") as made:
        append(made, 50)
    make_archive(tmp_path / "store", tmp_path / "archive")
    log = opened(tmp_path / "archive")
    assert len(seen(log, below=10)) >= 10
    with segstore.open(tmp_path / "copy") as made:
        append(made, 70)
    for path in (tmp_path / "archive").rglob("*.*"):
        if path.is_file():
            path.unlink()
    make_archive(tmp_path / "copy", tmp_path / "archive", claim=NEXT)
    with pytest.raises(DataLossError, match="t-0: the archive goes another way from offset 50 on"):
        seen(log)


def append(store: segstore.Store, n: int) -> None:
    for number in range(n):
        store.partition("t").append(b"%03d" % number * 20)


# --- what else a state says ---------------------------------------------------------------


def test_a_last_stable_offset_that_no_state_knows(store: segstore.Store, logs: ArchivedLogs) -> None:
    for topic in ("txn", "none", "empty"):
        unknown = replace(logs.contents(topic, 0), stable=-1)
        with open_log(logs.objects.uri, unknown) as log:
            assert log.last_stable_offset == store.partition(topic).last_stable_offset


def test_a_part_that_ends_within_transactions_reads_the_rest_of_the_state(
    store: segstore.Store, logs: ArchivedLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_contents, "AHEAD", 0)
    expected = seen(store.partition("txn"), level=LEVELS[1])
    wider = 0
    for extent in logs.contents("txn", 0).extents:
        part = logs.contents("txn", 0).part(extent.first, extent.end)
        assert part.extents == (extent,)
        with open_log(logs.objects.uri, part) as log:
            found = seen(log, extent.first, level=LEVELS[1], below=extent.end)
            wider += not log.contents.is_part
        assert found == [each for each in expected if extent.first <= each[0] < extent.end]
    assert wider


def test_segments_that_only_retention_took_are_read(own: tuple[segstore.PartitionLog, Path]) -> None:
    theirs, archive = own
    expected = seen(theirs)
    relisted(archive, lambda segments: [segments[0].retire(500, "retention"), *segments[1:]])
    log = opened(archive)
    assert log.start_offset == 0
    assert seen(log) == expected
    relisted(archive, lambda segments: [segments[0].retire(500, "replaced"), *segments[1:]])
    log = opened(archive)
    assert log.start_offset == log.contents.extents[0].first > 0
    assert seen(log) == [each for each in expected if each[0] >= log.start_offset]


def test_a_list_that_lacks_a_segment_is_told_unless_compaction_may_have_been_there(
    own: tuple[segstore.PartitionLog, Path],
) -> None:
    theirs, archive = own
    relisted(archive, lambda segments: [segments[0], *segments[2:]])
    log = opened(archive)
    first, third = log.contents.extents[:2]
    with pytest.raises(CorruptRecordError, match=f"offsets up to {third.first} are missing") as raised:
        seen(log)
    assert (raised.value.offset, raised.value.next_offset) == (first.end, third.first)
    log.renew(replace(log.contents, gaps_end=-1))
    assert [offset for offset, _ in seen(log)] == [
        offset for offset, _ in seen(theirs) if not first.end <= offset < third.first
    ]


def test_a_log_start_offset_within_what_retention_took(own: tuple[segstore.PartitionLog, Path]) -> None:
    archive = own[1]
    state = read_state(RemoteFiles(str(archive)))
    (held,) = state.partitions.values()
    (path,) = (archive / "topics").rglob("*.segments")
    listed = parse_segment_list(path.read_bytes(), path.name)
    begun = replace(held, start=listed.segments[0].end + 3)
    assert contents_of(begun, listed, 0).start == begun.start
    taken = replace(listed, segments=(listed.segments[0].retire(5, "retention"), *listed.segments[1:]))
    assert contents_of(begun, taken, 0).start == 0


def test_a_batch_that_is_missing_within_a_segment_is_told(own: tuple[segstore.PartitionLog, Path]) -> None:
    theirs, archive = own
    path = logs_of(archive)[1]
    data, base = path.read_bytes(), int(path.name[:20])
    size = int.from_bytes(data[8:12], "big") + 12
    path.write_bytes(data[: 5 * size] + data[6 * size :])

    def shorter(segments: Sequence[ArchivedSegment]) -> Sequence[ArchivedSegment]:
        files = {**segments[1].files, names.LOG: (len(data) - size, 0)}
        return segments[0], segments[1]._replace(files=files), *segments[2:]

    relisted(archive, shorter)
    log = opened(archive)
    with pytest.raises(CorruptRecordError, match=f"offsets up to {base + 6} are missing") as raised:
        seen(log)
    assert raised.value.offset == base + 5
    assert log.read(base, 1 << 20).next_offset == base + 5
    assert seen(log, base + 6) == seen(theirs, base + 6)


def relisted(
    archive: Path, changed: Callable[[Sequence[ArchivedSegment]], Sequence[ArchivedSegment]]
) -> None:
    """Write a partition's list of segments anew."""
    (path,) = (archive / "topics").rglob("*.segments")
    listed = parse_segment_list(path.read_bytes(), path.name)
    path.write_bytes(replace(listed, segments=tuple(changed(listed.segments))).to_bytes())
