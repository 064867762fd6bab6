"""Promise: an append by one call of C leaves the same bytes, results and errors as the long way."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from faults import FailingFiles
from producers import state_of
from stores import START_MS, Clock, tree

import segstore
from segstore.records import Columns, Template
from segstore.records.header import TRANSACTIONAL_FLAG
from segstore.storage.log.append import Appended, append_batches, append_record
from segstore.storage.log.append_queue import AppendQueue
from segstore.storage.log.transaction_markers import end_transaction
from segstore.storage.segment import native_tail

SEEDS = 60
STEPS = 120
Call = Callable[["Side"], object]


def full(_: str, args: tuple[Any, ...]) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", args[0].path)


class Side:
    """One of the two stores, of which one lends tails."""

    def __init__(self, path: Path, config: dict[str, Any], short: bool) -> None:
        self.path, self.short = path, short
        self.clock = Clock(START_MS)
        self.files = FailingFiles({"pwrite"}, full, nth=0)
        self.lent = 0
        self.open()
        self.store.create_topic("t", 1, config)
        self.log = self.store.partition("t")

    def open(self) -> None:
        self.store = segstore.open(self.path, clock=self.clock, files=self.files)
        if "t" in self.store.topics():
            self.log = self.store.partition("t")

    def do(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> object:
        """What a call gave, or the error that it raised."""
        monkeypatch.setattr(native_tail, "enabled", self.short)
        loan = self.log._loan
        assert loan is not None
        self.lent += loan.tail is not None
        try:
            return call(self)
        except segstore.SegstoreError as error:
            return type(error), str(error).replace(str(self.path), "")


def draw_config(rng: random.Random) -> dict[str, Any]:
    config = {
        "segment.bytes": rng.choice([700, 5_000, 40_000, 1 << 30]),
        "index.interval.bytes": rng.choice([0, 100, 1000, 4096]),
        "segment.index.bytes": rng.choice([120, 10_000]),
        "segment.ms": rng.choice([50, 10_000, 604_800_000]),
        "compression.type": rng.choice(["producer", "producer", "producer", "zstd"]),
        "message.timestamp.type": rng.choice(["CreateTime"] * 5 + ["LogAppendTime"]),
        "cleanup.policy": rng.choice(["delete", "delete", "compact"]),
        "retention.ms": rng.choice([-1, 1000, 604_800_000]),
        "message.timestamp.before.max.ms": rng.choice([100, 1 << 62]),
        "message.timestamp.after.max.ms": rng.choice([100, 3_600_000]),
        "max.message.bytes": rng.choice([300, 1_048_588]),
        "flush.messages": rng.choice([1, 2, 10]),
        "flush.ms": 3_600_000,
    }
    return dict(rng.sample(sorted(config.items()), rng.randrange(len(config) + 1)))


def draw_value(rng: random.Random) -> Any:
    size = rng.choice([0, 1, 20, 63, 64, 100, 100, 300, 8191, 16_300, 16_400, 70_000])
    return rng.choice([None, bytes(size), rng.randbytes(size), rng.randbytes(size), bytearray(b"mutable")])


def draw_timestamp(rng: random.Random) -> Any:
    near = START_MS + rng.randrange(-50, 400)
    return rng.choice(
        [None] * 6 + [near] * 6 + [-1, -2, 0, near - 10**6, near + 10**8, 1 << 63, True, "1", 1.5]
    )


class Name(str):
    """A str that is not exactly one."""


class Pair(NamedTuple):
    name: str
    value: bytes | None


NAMES = ["", "h", "h", "trace-id", "é", "日本", "\U0001f600", "n\0l", "x" * 300, Name("of a class")]
WRONG_NAMES = [b"h", None, 5, "\ud800"]
NO_HEADERS = [(), (), (), [], None, {}, "", b""]
WRONG_HEADERS = [5, "text", b"h", {"h": b"v"}, True, [5], ["ab"], [("h",)], [("h", b"v", b"w")], [None]]


def draw_header(rng: random.Random) -> Any:
    name = rng.choice(NAMES if rng.random() < 0.97 else WRONG_NAMES)
    values = [None, b"", b"v", rng.randbytes(rng.choice([8, 63, 64, 200])), bytearray(b"mutable")]
    value: Any = rng.choice(values)
    if rng.random() < 0.05:
        value = rng.choice([bytes(8191), bytes(16_300), memoryview(b"view"), "text", 5])
    return rng.choice([tuple, tuple, tuple, tuple, list, lambda pair: Pair(*pair)])((name, value))


def draw_headers(rng: random.Random) -> Any:
    if rng.random() < 0.5:
        return rng.choice(NO_HEADERS if rng.random() < 0.8 else WRONG_HEADERS)
    headers = [draw_header(rng) for _ in range(rng.choice([1, 1, 1, 2, 3, 130]))]
    return rng.choice([list, tuple])(headers + rng.choice([[], [], headers[:2]]))


EXPECTED: list[Callable[[int], Any]] = [
    *[lambda end: None] * 16,
    *[lambda end: end] * 6,
    *[lambda end: end - 1, lambda end: end + 1, lambda end: 1 << 40],
    *[np.int64, bool, str, lambda end: -1, lambda end: 1 << 63, lambda end: end + 0.5],
]


def draw_append(rng: random.Random) -> Call:
    value, timestamp = draw_value(rng), draw_timestamp(rng)
    key = rng.choice([None, b"", b"k", rng.randbytes(50), bytearray(b"k"), "text"])
    headers, expected = draw_headers(rng), rng.choice(EXPECTED)
    return lambda side: side.log.append(
        value, key, headers, timestamp, expected_offset=expected(side.log.end_offset)
    )


def draw_batch(rng: random.Random) -> Call:
    values = [rng.randbytes(rng.choice([0, 10, 200])) for _ in range(rng.choice([1, 1, 3, 40]))]
    keys = rng.choice([None, [b"%d" % len(v) for v in values]])
    compression = rng.choice([None, "gzip", "lz4", "none", "bad"])
    size = rng.choice([100, 65536])
    return lambda side: side.log.append_batch(values, keys, compression=compression, batch_bytes=size)


class Sender:
    """A producer with an id, which remembers what comes next; most of its appends follow the last one."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id, self.epoch = producer_id, 0
        self.next = (1 << 31) - 5 if producer_id == 8 else 0  # soon over the largest sequence
        self.attributes = 0

    def draw_append(self, rng: random.Random) -> Call:
        fate, back = rng.random(), rng.choice([1, 1, 2, 3, 6, 20])
        epoch, attributes, sequence = self.epoch, self.attributes, self.next
        if fate < 0.1:
            sequence = (sequence - back) % (1 << 31)
        elif fate < 0.15:
            sequence = (sequence + rng.choice([1, 7])) % (1 << 31)
        elif fate < 0.2:
            epoch, sequence = epoch + rng.choice([-1, 1, 1]), 0
        elif fate < 0.25:
            attributes ^= TRANSACTIONAL_FLAG
        elif fate < 0.27:
            sequence = -1
        return self._append(rng, Template(attributes, self.producer_id, epoch, sequence))

    def _append(self, rng: random.Random, template: Template) -> Call:
        value, timestamp = rng.randbytes(rng.choice([30, 30, 400])), START_MS + rng.randrange(200)
        compression = rng.choice([None, None, None, "lz4"])
        headers = rng.choice([(), (), (("h", b"v"),), (("é", None), ("", b""), ("é", None))])
        cuts, sequenced = rng.choice([(), (1,), (1, 2, 3, 4, 5, 6)]), rng.random() < 0.95
        key, one = rng.choice([None, b"k"]), rng.random() < 0.5
        count = 1 if one else 7

        def call(side: Side) -> object:
            more = {"sequenced": sequenced}
            if one:
                done = append_record(side.log, value, key, headers, timestamp, compression, template, **more)
            else:
                columns = Columns([value] * count, [key] * count, timestamp=timestamp)
                done = append_batches(side.log, columns, cuts, compression, template, **more)
            self.epoch, self.attributes = template.producer_epoch, template.attributes
            if not done.duplicate and template.base_sequence >= 0:
                self.next = (template.base_sequence + count) % (1 << 31)
            return done

        return call

    def draw_end(self, rng: random.Random) -> Call:
        epoch, commit = self.epoch + rng.choice([0, 1]), rng.random() < 0.5

        def call(side: Side) -> object:
            done = end_transaction([side.log], self.producer_id, epoch, 0, commit)
            if epoch > self.epoch:
                self.epoch, self.next = epoch, 0
            self.attributes = 0
            return done

        return call


class Senders:
    """Producers that take turns: more of them than claims that C has."""

    def __init__(self) -> None:
        self._all = [Sender(producer_id) for producer_id in (-1, 5, 6, 7, 8, 9)]

    def draw(self, rng: random.Random) -> Call:
        first = rng.choice([1, 1, 4])
        sender = self._all[rng.randrange(first + 2)]
        if sender.producer_id < 0:
            sequence = rng.randrange(-1, 4)
            return sender._append(rng, Template(0, -1, rng.choice([-1, 0]), sequence))
        return sender.draw_end(rng) if rng.random() < 0.1 else sender.draw_append(rng)


def known(side: Side) -> object:
    """What the log's writer knows of producers, the time of their last appends by the clock too."""
    state = state_of(side.log)
    entries = sorted(state.producers.items())
    return entries, state.ongoing, state.map_end_offset, state.max_producer_id


def reopen(side: Side) -> object:
    side.store.close()
    side.open()
    return side.log.end_offset


def draw_other(rng: random.Random) -> Call:
    seen = rng.random()
    config = {"segment.bytes": rng.choice([600, 1 << 20]), "index.interval.bytes": rng.choice([10, 4096])}
    later = rng.choice([1, 60, 20_000])

    def wait(side: Side) -> None:
        side.clock.now += later

    def fail(side: Side) -> None:
        side.files.arm()

    return rng.choice(
        [
            wait,
            wait,
            fail,
            lambda side: side.log.flush(),
            lambda side: side.log.delete_records(int(seen * side.log.end_offset)),
            lambda side: side.store.alter_topic("t", config) and None,
            lambda side: (side.store.sweep(), None)[1],
            lambda side: [(r.offset, r.value, r.timestamp) for r in side.log.read(side.log.start_offset)],
            lambda side: (
                side.log.start_offset,
                side.log.end_offset,
                side.log.size,
                side.log.last_stable_offset,
            ),
            lambda side: side.log.offset_for_time(START_MS + int(seen * 300)),
            known,
            known,
            lambda side: side.log.partition_for_write().expire_producers(later),
            reopen,
        ]
    )


def files_of(side: Side) -> dict[str, object]:
    """The partition's files, but for that with the topic's id."""
    return {
        name: data
        for name, data in tree(side.path).items()
        if name.startswith("t-0") and "metadata" not in name
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_ways_write_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    config = draw_config(rng)
    sides = [Side(tmp_path / "short", config, True), Side(tmp_path / "long", config, False)]
    draws = [draw_append] * 9 + [draw_batch] + [Senders().draw] * 9 + [draw_other] * 2
    for _ in range(STEPS):
        call = rng.choice(draws)(rng)
        short, long = (side.do(call, monkeypatch) for side in sides)
        assert repr(short) == repr(long)
    assert sides[1].lent == 0
    short, long = (side.do(known, monkeypatch) for side in sides)
    assert repr(short) == repr(long)
    for side in sides:
        side.files.arm(0)
        side.store.close()
    assert files_of(sides[0]) == files_of(sides[1])


def test_the_short_way_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above compared the long way with itself."""
    side = Side(tmp_path / "short", {}, True)
    counted: Counter[bool] = Counter()
    with side.store:
        for seed in range(300):
            appended = side.do(draw_append(random.Random(seed)), monkeypatch)
            counted[isinstance(appended, int)] += 1
    assert counted[True] > 70
    assert side.lent > 200


@pytest.mark.parametrize(
    "headers", [[("h", b"v")], [("é", None), ("", b""), ("é", None)], [("h", b"v")] * 200]
)
def test_a_record_with_headers_takes_the_short_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: list[tuple[str, bytes | None]]
) -> None:
    side = Side(tmp_path / "short", {}, True)
    with side.store:
        monkeypatch.setattr(native_tail, "enabled", True)
        for _ in range(2):
            side.log.append(b"the long way", timestamp=START_MS)
        for given in (headers, tuple(headers)):
            assert side.log.append(b"v", b"k", given, expected_offset=side.log.end_offset)
        assert side.log._loan.tail.c.appends == 2  # type: ignore[union-attr]
        assert [record.headers for record in side.log.read(2)] == [headers] * 2


def test_producers_take_the_short_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most appends that follow the last one of their producer are not queued."""
    side, queued = Side(tmp_path / "short", {}, True), list[object]()
    put = AppendQueue.put

    def counted(self: AppendQueue, *args: Any) -> int:
        queued.append(args)
        return put(self, *args)

    monkeypatch.setattr(AppendQueue, "put", counted)
    sender, rng, written = Sender(5), random.Random(0), 0
    with side.store:
        side.log.append(b"no later than the others", timestamp=START_MS)
        for _ in range(300):
            written += isinstance(side.do(sender.draw_append(rng), monkeypatch), Appended)
    assert written > 200
    assert len(queued) < 150
