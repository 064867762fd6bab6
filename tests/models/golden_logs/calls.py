"""Calls of every kind of append on a log, drawn from a seed. A call is a function of a `Side`: two engines
can be given the same calls, and their answers and bytes be compared.

An application's records and columns, a producer's batches with and without ids, batches as they were sent,
markers, a follower's fetches, leader epochs; between them time, a full disk, sweeps and openings.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from faults import FailingFiles
from producers import state_of
from sent import NOW, batch, of_producer, of_values
from stores import START_MS, Clock

import segstore
from segstore.errors import OffsetOutOfRangeError
from segstore.records import CODECS, Columns, Template
from segstore.records.header import TRANSACTIONAL_FLAG
from segstore.storage.log.append import append_batches, append_record
from segstore.storage.log.raw_read import raw_read
from segstore.storage.log.replica import Replica
from segstore.storage.log.transaction_markers import end_transaction

Call = Callable[["Side"], object]


class FullLogs(FailingFiles):
    """Files of which the next write to a log finds no room, once they are armed. Writes to other files do not
    count: which there are the engine decides, and some are the background's (the note of a full disk).
    """

    def __init__(self) -> None:
        super().__init__({"pwrite", "pwritev"}, self._refuse, nth=0)

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in self.names and args[0].path.endswith(".log"):
            super().before(name, args, kwargs)

    @staticmethod
    def _refuse(_: str, args: tuple[Any, ...]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", args[0].path)


class Side:
    """A store whose topic "t" has one partition, `log`. Topic "f", if it has one, is a follower's copy."""

    def __init__(self, path: Path, config: dict[str, Any], follower: dict[str, Any] | None = None) -> None:
        self.path = path
        self.clock = Clock(START_MS)
        self.files = FullLogs()
        self.replica: Replica | None = None
        self.open()
        self.store.create_topic("t", 1, config)
        self.log = self.store.partition("t")
        if follower is not None:
            self.store.create_topic("f", 1, follower)
            self.follow()

    def open(self) -> None:
        self.store = segstore.open(self.path, clock=self.clock, files=self.files)
        topics = self.store.topics()
        if "t" in topics:
            self.log = self.store.partition("t")
        if "f" in topics:
            self.follow()

    def follow(self) -> None:
        """Take "f" for a replica's log."""
        side = self.store.engine
        assert side is not None
        self.replica = side.partitions.replica("f", 0)

    def close(self) -> None:
        """Close the store with a disk that has room again."""
        self.files.arm(0)
        self.store.close()

    def do(self, call: Call) -> object:
        """Return what a call gives, or the error that it raises."""
        try:
            return call(self)
        except segstore.SegstoreError as error:
            return type(error).__name__, str(error).replace(str(self.path), "")


# --- an application's records ------------------------------------------------------------------


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


# --- producers ---------------------------------------------------------------------------------


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
    """Producers that take turns."""

    def __init__(self) -> None:
        self._all = [Sender(producer_id) for producer_id in (-1, 5, 6, 7, 8, 9)]

    def draw(self, rng: random.Random) -> Call:
        first = rng.choice([1, 1, 4])
        sender = self._all[rng.randrange(first + 2)]
        if sender.producer_id < 0:
            sequence = rng.randrange(-1, 4)
            return sender._append(rng, Template(0, -1, rng.choice([-1, 0]), sequence))
        return sender.draw_end(rng) if rng.random() < 0.1 else sender.draw_append(rng)


# --- what comes between appends ----------------------------------------------------------------


def known(side: Side) -> object:
    """What the log's writer knows of producers, the time of their last appends by the clock too."""
    state = state_of(side.log)
    entries = [
        (number, *(list(map(tuple, field)) if isinstance(field, tuple) else field for field in fields))
        for number, fields in sorted((number, astuple(one)) for number, one in state.producers.items())
    ]
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


# --- batches as they were sent -----------------------------------------------------------------


def draw_sent(rng: random.Random) -> Call:
    """A batch for `append_as_leader`: of any codec and producer, now and then damaged or of a wrong size."""
    codec, seq, n = rng.choice([0, 0, 0, *range(len(CODECS))]), rng.randrange(6), rng.choice([1, 1, 3])
    size, epoch = rng.choice([0, 30, 9_000]), rng.choice([0, 0, 0, 1])
    made: Callable[[], bytearray] = rng.choice(
        [
            lambda: batch(codec, max_timestamp=NOW + 5),
            lambda: batch(codec),
            lambda: of_values([b"v" * size] * n, codec),
            lambda: of_producer(seq, n, 77),
            lambda: of_producer(seq, n, 78, epoch),
        ]
    )
    fate, place, acks = rng.random(), rng.random(), rng.choice([1, 1, -1, 0])

    def call(side: Side) -> object:
        data = made()
        if fate < 0.05:
            data[int(place * len(data))] ^= 0x40
        elif fate < 0.08:
            del data[int(place * len(data)) :]
        return side.log.append_as_leader(data, acks=acks)

    return call


# --- a follower --------------------------------------------------------------------------------


def draw_follower(rng: random.Random) -> dict[str, Any]:
    """The settings of a follower's topic."""
    return {"segment.bytes": rng.choice([700, 5_000, 1 << 30]), "index.interval.bytes": rng.choice([0, 100])}


def draw_fetch(rng: random.Random) -> Call:
    """The follower takes the next bytes of the log, up to a size that may end within a batch."""
    size, quick, shown = rng.choice([100, 700, 5_000, 1 << 20]), rng.random() < 0.6, rng.random() < 0.8

    def call(side: Side) -> object:
        replica, partition = side.replica, side.log.partition_for_write()
        assert replica is not None
        end = replica.log_end_offset
        try:
            data = bytes(raw_read(partition, end, side.log.log_end_offset, size))
        except OffsetOutOfRangeError:
            return replica.truncate_fully_and_start_at(side.log.start_offset).end_offset
        taken = replica.append_next(data, end) if quick and data else None
        if taken is None and data:
            taken = replica.append_as_follower(data, end if shown else -1)
        return taken, replica.high_watermark, replica.epochs

    return call


def draw_truncation(rng: random.Random) -> Call:
    """The follower cuts its log, as behind an election."""
    back = rng.choice([0, 1, 5, 40])

    def call(side: Side) -> object:
        replica = side.replica
        assert replica is not None
        return replica.truncate_to(max(replica.start_offset, replica.log_end_offset - back)).end_offset

    return call


def draw_epoch(rng: random.Random) -> Call:
    """The log goes on under a later leader epoch."""
    epoch = rng.randrange(12)

    def call(side: Side) -> object:
        assert side.store.engine is not None
        return side.store.engine.partitions.begin_epoch("t", 0, epoch)

    return call


def draw_long(rng: random.Random) -> Call:
    """An append that is too long to be encoded before it takes its place: above 4 MiB."""
    value, codec = rng.randbytes(rng.choice([200_000, 900_000])), rng.choice([None, None, "lz4"])
    return lambda side: side.log.append_batch([value] * (5_000_000 // len(value)), compression=codec)


def drawn(rng: random.Random, senders: Senders) -> Call:
    """The next call, of any kind."""
    if rng.random() < 0.002:
        return draw_long(rng)
    kinds: list[Callable[[random.Random], Call]] = [
        *[draw_append] * 9,
        *[draw_batch] * 2,
        *[senders.draw] * 9,
        *[draw_sent] * 5,
        *[draw_fetch] * 5,
        *[draw_other] * 2,
    ]
    rare = [draw_truncation, draw_epoch]
    return (rng.choice(rare) if rng.random() < 0.03 else rng.choice(kinds))(rng)
