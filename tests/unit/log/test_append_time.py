"""Promise: a topic with message.timestamp.type=LogAppendTime gets the same stamps, bytes, indexes, segments
and answers, whether C appends or Python does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paused_tails import let_tails_open
from producers import state_of
from sent import NOW, batch, of_producer
from stores import Clock, tree

import segstore
from segstore._native import ffi, lib
from segstore.records import APPEND_TIME_FLAG, Columns, Template
from segstore.records.header import TRANSACTIONAL_FLAG
from segstore.storage.log.append import append_batches, append_record
from segstore.storage.log.append_pieces import append_pieces

STAMPED = {"message.timestamp.type": "LogAppendTime", "index.interval.bytes": 100}
FAR = 5  # ms since the epoch: a time that a topic with CreateTime and these settings would refuse
Call = Callable[["Side"], Any]


class Side:
    """A log to which C appends, or Python does. `sequence` is the next of producer 7."""

    def __init__(self, path: Path, short: bool, patch: pytest.MonkeyPatch, **config: Any) -> None:
        self.path, self._short, self._patch = path, short, patch
        self.clock = Clock(NOW)
        self.store = segstore.open(path, clock=self.clock)
        settings = STAMPED | {name.replace("_", "."): value for name, value in config.items()}
        self.store.create_topic("t", 1, {"message.timestamp.before.max.ms": 1, **settings})
        self.log = self.store.partition("t")
        self.sequence = 0

    def do(self, call: Call) -> Any:
        """Return what a call gives."""
        let_tails_open(self._patch, self._short)
        return call(self)

    def sequenced(self, n: int) -> int:
        self.sequence += n
        return self.sequence - n

    @property
    def by_c(self) -> int:
        """Appends of C's since the tail was lent."""
        tail = self.log.partition_for_write().tail.native
        return 0 if tail is None else int(tail.c.appends)

    def stamps(self, offset: int) -> list[tuple[int, int]]:
        """Offset and timestamp of each record from this offset on, as a reader sees them."""
        found = self.log.read(offset, 1 << 30)
        assert set(found.timestamp_types.tolist()) <= {1}
        return [(record.offset, record.timestamp) for record in found]

    def close(self) -> dict[str, Any]:
        """Close the store; return the partition's files, but for that with the topic's id."""
        self.store.close()
        files = tree(self.path)
        return {name: files[name] for name in files if name.startswith("t-0") and "metadata" not in name}


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Side]:
    return [Side(tmp_path / way, way == "short", monkeypatch) for way in ("short", "long")]


def record(side: Side, producer_id: int = -1, attributes: int = 0) -> Any:
    template = Template()
    if producer_id >= 0:
        template = Template(attributes, producer_id, 0, side.sequenced(1))
    return append_record(side.log, b"v", b"k", [("h", b"v")], FAR, template=template)


def batches(side: Side, sequenced: bool) -> Any:
    columns = Columns([b"%d" % i for i in range(6)], timestamps=[FAR - i % 3 for i in range(6)])
    template = Template(0, 7, 0, side.sequenced(6)) if sequenced else Template()
    return append_batches(side.log, columns, (2, 3), template=template)


# Each gives its answer, and what is the stamp in that, None where it tells of none.
DOORS: dict[str, tuple[Call, Callable[[Any], Any]]] = {
    "a record": (lambda side: side.log.append(b"v"), lambda _: None),
    "a record with a key, headers and a time": (
        lambda side: side.log.append(b"v", b"k", [("h", None)], FAR), lambda _: None,
    ),
    "a record at an offset": (
        lambda side: side.log.append(b"v", expected_offset=side.log.end_offset), lambda _: None,
    ),
    "a few records": (lambda side: side.log.append_batch([b"a", None, b""]), lambda _: None),
    "many batches": (
        lambda side: side.log.append_batch([b"v" * 50] * 60, timestamps=FAR, batch_bytes=500),
        lambda _: None,
    ),
    "a compressed batch": (
        lambda side: side.log.append_batch([b"v" * 50] * 60, compression="lz4"), lambda _: None,
    ),
    "a producer's record": (record, lambda done: done.append_time),
    "that of a producer with an id": (lambda side: record(side, 7), lambda done: done.append_time),
    "a producer's batches": (lambda side: batches(side, False), lambda done: done.append_time),
    "those of a producer with an id": (lambda side: batches(side, True), lambda done: done.append_time),
    "a batch as it was sent": (
        lambda side: side.log.append_as_leader(batch(base_timestamp=FAR)),
        lambda done: done.log_append_time,
    ),
    "one of which the header has another largest time": (
        lambda side: side.log.append_as_leader(batch(max_timestamp=1)), lambda done: done.log_append_time,
    ),
    "one that is compressed": (
        lambda side: side.log.append_as_leader(batch(3)), lambda done: done.log_append_time,
    ),
    "one of a producer with an id": (
        lambda side: side.log.append_as_leader(of_producer(side.sequenced(1))),
        lambda done: done.log_append_time,
    ),
}  # fmt: skip
BY_PYTHON = {"one that is compressed"}


@pytest.mark.parametrize("door", DOORS)
def test_each_door_stamps_as_the_long_way_does(sides: list[Side], door: str) -> None:
    """The clock goes on, stands still, and goes back behind the segment's first record."""
    call, stamp_of = DOORS[door]
    for moves in (0, 0, 7, 0, -3, -1000, 2000):
        answers, ends = [], []
        for side in sides:
            side.clock.now += moves
            first = side.log.end_offset
            for _ in range(2):  # the long way, where that is due
                side.do(call)
            before = side.by_c
            answers.append(side.do(call))
            ends.append(side.log.end_offset)
            assert stamp_of(answers[-1]) in (None, side.clock.now)
            if side is sides[0] and door not in BY_PYTHON:
                assert side.by_c > before
            assert {stamp for _, stamp in side.stamps(first)} == {side.clock.now}
        assert answers[0] == answers[1]
        assert ends[0] == ends[1]
    assert sides[1].by_c == 0
    assert_same(sides)


def assert_same(sides: list[Side]) -> None:
    producers = [state_of(side.log).dump() for side in sides]
    assert producers[0] == producers[1]
    short, long = (side.close() for side in sides)
    assert short == long


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_write_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Doors by turns, small and old segments among them."""
    rng = random.Random(seed)
    config = {
        "segment_bytes": rng.choice([2_000, 1 << 20]),
        "segment_ms": rng.choice([40, 604_800_000]),
        "retention_ms": rng.choice([1, -1]),
    }
    sides = [Side(tmp_path / way, way == "short", monkeypatch, **config) for way in ("short", "long")]
    doors, by_c = list(DOORS.values()), 0
    for _ in range(60):
        call, moves = rng.choice(doors)[0], rng.choice([0, 0, 0, 1, 5, 50, -5, -60])
        for side in sides:
            side.clock.now += moves
        answers = [side.do(call) for side in sides]
        assert answers[0] == answers[1]
        by_c += sides[0].by_c > 0
        assert sides[1].by_c == 0
    assert by_c > 10
    assert sides[0].stamps(0) == sides[1].stamps(0)
    assert_same(sides)


def test_a_record_of_a_transaction_keeps_its_bit(sides: list[Side]) -> None:
    for side in sides:
        for _ in range(4):
            side.do(lambda it: record(it, 7, TRANSACTIONAL_FLAG))
        found = side.log.read(0, 1 << 20).batches["attributes"].tolist()
        assert found == [TRANSACTIONAL_FLAG | APPEND_TIME_FLAG] * 4
    assert sides[0].by_c == 2
    assert_same(sides)


def test_a_repeated_batch_has_the_stamp_that_c_gave_it(sides: list[Side]) -> None:
    for side in sides:
        first = [side.do(lambda it: it.log.append_as_leader(of_producer(it.sequenced(1)))) for _ in range(3)]
        side.clock.now += 9
        again = [side.do(lambda it, n=n: it.log.append_as_leader(of_producer(n))) for n in range(3)]
        assert again == [each._replace(duplicate=True) for each in first]
    assert_same(sides)


def test_pieces_tell_their_stamps(sides: list[Side]) -> None:
    side = sides[0]
    for _ in range(2):
        side.do(lambda it: it.log.append(b"lends the tail"))
    columns = Columns([b"%d" % i for i in range(9)], timestamps=[FAR] * 9)
    pieces = side.do(lambda it: append_pieces(it.log, columns, (3, 6), None, Template()))
    assert (pieces.offsets, pieces.append_times) == ([2, 5, 8], [NOW] * 3)
    assert side.stamps(2) == [(offset, NOW) for offset in range(2, 11)]


def test_pieces_of_a_topic_that_does_not_stamp_tell_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Side(tmp_path / "s", True, monkeypatch, message_timestamp_type="CreateTime")
    for _ in range(2):
        side.do(lambda it: it.log.append(b"lends the tail"))
    columns = Columns([b"v"] * 2, timestamps=[NOW, NOW])
    assert append_pieces(side.log, columns, (1,), None, Template()).append_times == [-1, -1]
    assert append_record(side.log, b"v", None, (), NOW).append_time == -1
    assert side.log.append_as_leader(of_producer()).log_append_time == -1
    side.close()


def test_c_rolls_nothing_and_leaves_an_old_segment_to_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock alone, whatever times the application gives."""
    side = Side(tmp_path / "s", True, monkeypatch, segment_ms=1000)
    for given in (None, None, FAR, 1 << 50, None):
        side.do(lambda it, given=given: it.log.append(b"v", timestamp=given))
    assert side.by_c == 3
    for moves, bases in ((1000, [0]), (1, [0, 6]), (0, [0, 6]), (-5000, [0, 6])):
        side.clock.now += moves
        side.do(lambda it: it.log.append(b"v", timestamp=FAR))
        assert sorted(int(path.stem) for path in (side.path / "t-0").glob("*.log")) == bases
    assert side.by_c == 2  # behind the roll
    side.close()


def test_a_clock_before_1970_is_left_to_python(sides: list[Side]) -> None:
    side = sides[0]
    for _ in range(2):
        side.do(lambda it: it.log.append(b"v"))
    before, side.clock.now = side.by_c, -5
    side.do(lambda it: it.log.append(b"v", timestamp=1))
    side.do(lambda it: it.log.append_batch([b"v"], timestamps=1))
    assert side.by_c <= before
    assert side.log.end_offset == 4


def test_settings_that_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(tmp_path / "s", True, monkeypatch)
    for kind, stamp in (("CreateTime", NOW - 1), ("LogAppendTime", NOW), ("CreateTime", NOW - 1)):
        side.store.alter_topic("t", {"message.timestamp.type": kind})
        for _ in range(3):
            side.do(lambda it: it.log.append(b"v", timestamp=NOW - 1))
        assert side.by_c
        found = side.log.read(side.log.end_offset - 3)
        assert found.timestamps.tolist() == [stamp] * 3
    side.close()


def test_rules_of_other_settings_than_the_tail_s_are_left_to_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were taken before the settings changed, and judge no times."""
    config = {"message_timestamp_type": "CreateTime", "message_timestamp_before_max_ms": 5}
    side = Side(tmp_path / "s", True, monkeypatch, **config)
    for _ in range(2):
        side.do(lambda it: it.log.append(b"v"))
    partition, sent, header = side.log.partition_for_write(), batch(), ffi.new("seg_batch *")
    rules, tail = partition.validator.rules, partition.tail.native
    assert tail is not None

    def take() -> int:
        return int(
            lib.seg_tail_take(tail.c, ffi.from_buffer("uint8_t[]", sent), len(sent), rules, NOW, header)
        )

    rules.create_time = 0
    assert (take(), header.size, side.by_c) == (lib.SEG_SLOW, 0, 0)
    rules.create_time = 1
    assert (take(), header.size, side.by_c) == (2, len(sent), 1)
    side.close()


def test_the_clock_of_c_is_the_time_of_day(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", 1, STAMPED)
        log = store.partition("t")
        began = time.time_ns() // 1_000_000
        for n in range(50):
            (log.append if n % 2 else log.append_batch)(b"v" if n % 2 else [b"v"])  # type: ignore[operator]
        assert log._own.tail.native.c.appends > 40  # type: ignore[union-attr]
        stamps = log.read(0, 1 << 20).timestamps.tolist()
        assert stamps == sorted(stamps)
        assert began <= stamps[0] <= stamps[-1] <= time.time_ns() // 1_000_000
