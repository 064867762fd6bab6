"""Bytes behind the end of a sealed segment are nobody's (rule A5): a process that was stopped in an append
wrote them when its segment was sealed. As long as they may come, the segment is on a list in the shared
file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shared_logs import Sharing
from stores import START_MS, killed, logs, raw_batches, value_of, write_topic

import segstore
from segstore import Consumer, TopicPartition
from segstore.files import Files
from segstore.records import Template
from segstore.records.encode import single
from segstore.storage.meta.published_ends import EndsReader
from segstore.storage.segment.segment import Segment

N = 60
MAX = 2**63 - 1
METHODS = ("sendfile", "splice", "mmap", "read", "copy_file_range", "auto")


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with several segments, whose writer was killed."""
    path = tmp_path_factory.mktemp("sealed")
    with write_topic(path / "live", [[value_of(o)] for o in range(N)], {"segment.bytes": 600}, close=False):
        return killed(path / "live", path / "store")


@pytest.fixture
def sharing(crashed: Path, tmp_path: Path) -> Sharing:
    made = Sharing(killed(crashed, tmp_path / "store"))
    made.begin()
    return made


def base_of(path: Path) -> int:
    return int(path.stem)


def seal(sharing: Sharing, slot: int, number: int = 0, **other: int) -> None:
    """Put a segment on the list, with the end that it has now."""
    path = logs(sharing.root)[slot]
    said = {
        "generation": 3,
        "base_offset": base_of(path),
        "position": path.stat().st_size,
        "owner": 1 << 32 | 1,
    }
    sealed = sharing.shared.log(sharing.slot).sealed[number]
    for name, value in {**said, **other}.items():
        setattr(sealed, name, value)


def late(offset: int) -> bytes:
    """Return a batch whose timestamp is later than all in the log."""
    batch = single(b"late", None, (), START_MS + (1 << 30), Template())
    data = bytearray(bytes(batch.data)[: batch.size])
    struct.pack_into(">q", data, 0, offset)
    return bytes(data)


BEHIND: dict[str, Callable[[int], bytes]] = {
    "whole batches": lambda base: raw_batches(range(base, base + 4), 33, per_batch=2),
    "a torn batch": lambda base: raw_batches([base], 33)[:40],
    "the begin of a header": lambda base: raw_batches([base], 33)[:10],
    "a whole batch and a torn one": lambda base: raw_batches(range(base, base + 2), 33, per_batch=1)[:-7],
    "zeros": lambda base: bytes(500),
    "a batch that is far on": lambda base: raw_batches([N - 3, N - 2], 33),
    "a batch of a later time": lambda base: late(base),
    "a batch of a later time behind the log's end": lambda base: late(N + 100),
    "more than a segment": lambda base: raw_batches(range(base, base + 20), 33, per_batch=1),
}

# --- each way to read ------------------------------------------------------------


def scanned(log: segstore.PartitionLog) -> Any:
    return [(record.offset, record.value) for record in log.scan(0)]


def read(log: segstore.PartitionLog) -> Any:
    return [(log.read(offset, max_bytes=1)[0].offset, log.read(offset)[0].value) for offset in range(N)]


def read_one(log: segstore.PartitionLog) -> Any:
    return [(offset, log.read_one(offset).value) for offset in range(N)]


def read_many(log: segstore.PartitionLog) -> Any:
    return [(record.offset, record.value) for record in log.read_many(list(range(N)))]


def consumed(log: segstore.PartitionLog) -> Any:
    found: list[Any] = []
    with Consumer(log.store, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        while len(found) < N:
            found += [(r.offset, r.value) for rs in consumer.poll(100).values() for r in rs]
        assert not consumer.poll(0)
    return found


WAYS = {way.__name__: way for way in (scanned, read, read_one, read_many, consumed)}
RECORDS = [(offset, value_of(offset)) for offset in range(N)]


def steps(log: segstore.PartitionLog, most: int, step: Callable[[int, int], tuple[bytes, int]]) -> bytes:
    """Return all bytes that a raw fetch gives, one behind the other."""
    got, offset = b"", 0
    while offset < N:
        data, after = step(offset, most)
        assert after > offset
        assert data
        got, offset = got + data, after
    assert offset == N
    return got


def sent(log: segstore.PartitionLog, most: int, sink: Any, method: str) -> bytes:
    def step(offset: int, most: int) -> tuple[bytes, int]:
        sink.seek(0)
        sink.truncate()
        size, after = log.transfer(sink, offset, most, method)
        sink.seek(0)
        data = sink.read()
        assert len(data) == size
        return data, after

    return steps(log, most, step)


def stretched(log: segstore.PartitionLog, most: int) -> bytes:
    def step(offset: int, most: int) -> tuple[bytes, int]:
        with log.stretch(offset, most) as stretch:
            return bytes(stretch.read(Files())), stretch.next_offset

    return steps(log, most, step)


@pytest.fixture(params=[True, False], ids=["listed", "not listed"])
def opened(request: pytest.FixtureRequest, sharing: Sharing, behind: str) -> Iterator[tuple[Any, bytes]]:
    """A log with bytes behind the ends of its first and its third segment, and the bytes that are its own."""
    clean, bases = [path.read_bytes() for path in logs(sharing.root)], [*map(base_of, logs(sharing.root)), N]
    for number, slot in enumerate((0, 2)):
        if request.param:
            seal(sharing, slot, number + 1)
        with logs(sharing.root)[slot].open("ab") as file:
            file.write(BEHIND[behind](bases[slot + 1]))
    with segstore.open(sharing.root, "r") as store:
        yield store.partition("t"), b"".join(clean)
    found = segstore.check(sharing.root)
    assert bool(found) != request.param
    assert any(each.path.endswith(".log") for each in found) == bool(found)


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_A5_readers_are_given_no_such_records(
    opened: tuple[Any, bytes], way: Callable[[segstore.PartitionLog], Any]
) -> None:
    assert way(opened[0]) == RECORDS


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("most", [1, 300, 1 << 20])
def test_A5_readers_are_sent_no_such_bytes(opened: tuple[Any, bytes], most: int, tmp_path: Path) -> None:
    log, clean = opened
    for method in METHODS:
        with (tmp_path / "sink").open("w+b") as sink:
            assert sent(log, most, sink, method) == clean, method
    assert stretched(log, most) == clean


@pytest.mark.parametrize("behind", BEHIND)
def test_A5_readers_find_no_such_times(opened: tuple[Any, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened[0]
    stamps = [log.read_one(offset).timestamp for offset in range(N)]
    assert [log.offset_for_time(stamp) for stamp in stamps] == list(range(N))
    assert log.offset_for_time(stamps[-1] + 1) is None
    assert log.max_timestamp() == (stamps[-1], N - 1)
    # Where damage might hide the largest timestamp, each segment is searched.
    monkeypatch.setattr(Segment, "largest_timestamp", lambda *_: None)
    assert log.offset_for_time(stamps[-1] + 1) is None


@pytest.mark.parametrize("behind", BEHIND)
def test_A5_a_recovery_keeps_the_segments_behind_such_bytes(
    crashed: Path, tmp_path: Path, behind: str
) -> None:
    """After a crash of the machine no list says where the segment ends, and nothing says what is durable."""
    root = killed(crashed, tmp_path / "store")
    (root / ".segstore" / "ends").unlink()
    clean = [path.read_bytes() for path in logs(root)]
    for slot in (0, 2):
        with logs(root)[slot].open("ab") as file:
            file.write(BEHIND[behind](base_of(logs(root)[slot + 1])))
    with segstore.open(root) as store:
        assert scanned(store.partition("t")) == RECORDS
        assert [(done.end_offset, done.cut_bytes, done.removed_segments) for done in store.recovered] == [
            (N, 0, 0)
        ]
        store.partition("t").append(b"next")
    assert [path.read_bytes() for path in logs(root)[: len(clean) - 1]] == clean[:-1]
    assert segstore.check(root) == []


# --- the list ------------------------------------------------------------


def listed(sharing: Sharing) -> dict[int, int]:
    return EndsReader(Files(), str(sharing.root / ".segstore" / "ends")).sealed(sharing.key)


def test_A5_readers_see_what_is_on_the_list(sharing: Sharing) -> None:
    assert listed(sharing) == {}
    for number in range(8):
        seal(sharing, 0, number, base_offset=number, position=100 + number)
    assert listed(sharing) == {number: 100 + number for number in range(8)}
    sharing.end()
    assert listed(sharing) == {}


NOT_ON_IT = {
    "nobody's": {"owner": 0},
    "not final yet": {"generation": MAX},
    "whose name another file has": {"is_replaced": 1},
}


@pytest.mark.parametrize("other", NOT_ON_IT.values(), ids=NOT_ON_IT)
def test_A5_readers_pass_by_an_end(sharing: Sharing, other: dict[str, int]) -> None:
    seal(sharing, 0, 0, **other)
    seal(sharing, 1, 1)
    assert list(listed(sharing)) == [base_of(logs(sharing.root)[1])]


def test_A5_readers_of_another_partition_have_no_such_list(sharing: Sharing) -> None:
    seal(sharing, 0)
    assert EndsReader(Files(), str(sharing.root / ".segstore" / "ends")).sealed(sharing.key + 2) == {}
    sharing.shared.log(sharing.slot).key += 2
    assert listed(sharing) == {}


def test_A5_readers_go_on_while_a_segment_is_sealed_written_to_and_cut(sharing: Sharing) -> None:
    """At each step of a fence, of the process that goes on, and of its cut, a reader that was open before."""
    with segstore.open(sharing.root, "r") as store:
        log = store.partition("t")
        active, slot = logs(sharing.root)[-1], len(logs(sharing.root)) - 1
        size = active.stat().st_size
        n = N

        def look() -> None:
            assert scanned(log) == [(offset, value_of(offset)) for offset in range(n)]

        look()
        seal(sharing, slot, generation=MAX)
        look()
        with active.open("ab") as file:  # the owner had begun its write
            file.write(raw_batches([N, N + 1], 33)[:50])
        look()
        sharing.show()
        seal(sharing, slot, position=size)
        look()
        following = active.with_name(f"{N:020}.log")
        following.touch()
        sharing.show(layout=sharing.shown.layout + 1)
        look()
        sharing.append(3)
        n += 3
        look()
        with active.open("ab") as file:  # it goes on, and writes the rest
            file.write(raw_batches([N, N + 1], 33)[50:])
        look()
        sharing.show(layout=sharing.shown.layout + 1)
        look()
        with segstore.open(sharing.root, "r") as other:
            assert other.partition("t").read_one(N).value == value_of(N)
        with active.open("r+b") as file:  # and cuts
            file.truncate(size)
        look()
        sharing.shared.log(sharing.slot).sealed[0].owner = 0
        look()
        sharing.append()
        n += 1
        sharing.show(layout=sharing.shown.layout + 1)
        look()
    # The host, which is none here, seals the indexes.
    assert [found for found in segstore.check(sharing.root) if not found.path.endswith("index")] == []
