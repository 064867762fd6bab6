"""Operations on one log and on a follower's, drawn from a seed: each is run by a store, and foretold by the
oracle, at the same clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow
from oracle import HEADER, Batch, Record, encode_batch
from oracle_batches import CODECS, Draft, Given, draft, of_records
from oracle_log import MARKER_KEY, MARKER_VALUE, MOST_RELATIVE
from oracle_producers import CONTROL, SEQUENCES, TRANSACTIONAL, Ids, Producer

from segstore.records import Columns, Template
from segstore.storage.log.append import append_batches, append_record
from segstore.storage.log.transaction_markers import end_transaction

from .sides import Operation, Place, World

WIDE = 1 << 40
"""A segment.ms that no drawn timestamps are apart."""
ALL = 1 << 62
"""A leader's high watermark that is above all."""
PRODUCERS = (5, 6, 7, 8)

Draw = Callable[[random.Random, World], Operation]


# --- settings ----------------------------------------------------------------------------------


def draw_config(rng: random.Random) -> dict[str, object]:
    config: dict[str, object] = {
        "segment.bytes": rng.choice([700, 5_000, 40_000]),
        "index.interval.bytes": rng.choice([0, 100, 1000]),
        "segment.index.bytes": rng.choice([40, 120, 1000]),
        "segment.ms": rng.choice([50, 1_000, WIDE]),
        "compression.type": rng.choice(["producer", "producer", *CODECS[:2], "zstd"]),
        "message.timestamp.type": rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
        "message.timestamp.after.max.ms": rng.choice([100, 3_600_000]),
        "message.timestamp.before.max.ms": rng.choice([100, 1 << 62]),
        "max.message.bytes": rng.choice([300, 4_000, 1_048_588]),
        "cleanup.policy": rng.choice(["delete", "delete", "compact"]),
    }
    kept = rng.sample(sorted(config), rng.randrange(len(config) + 1))
    return {"segment.ms": WIDE} | {name: config[name] for name in kept}


def draw_followed_config(rng: random.Random) -> dict[str, object]:
    return {
        "cleanup.policy": "compact",  # else `check` misses the offsets that are left out
        "segment.bytes": rng.choice([700, 5_000, 1 << 30]),
        "index.interval.bytes": rng.choice([0, 100, 1000]),
        "segment.ms": rng.choice([50, WIDE]),
    }


def draw_settings(rng: random.Random, world: World) -> Operation:
    names = "segment.bytes", "index.interval.bytes", "segment.ms", "max.message.bytes"
    more = "compression.type", "message.timestamp.type"
    topic = rng.choice("tttf")
    drawn = draw_config(rng)
    config = {name: drawn[name] for name in names + (more if topic == "t" else ()) if name in drawn}
    log = world.led if topic == "t" else world.followed
    if drawn.get("index.interval.bytes", -1) < log.number("index.interval.bytes"):  # type: ignore[operator]
        # By a smaller interval an open may miss entries, and make an index anew: tests of segments have that.
        config.pop("index.interval.bytes", None)

    def foretell(world: World) -> None:
        log.alter(config)

    def run(place: Place) -> None:
        place.store.alter_topic(topic, config)

    return Operation("settings", run, foretell)


# --- an application's records ------------------------------------------------------------------


def draw_stamp(rng: random.Random, world: World) -> int | None:
    near = world.now + rng.randrange(-90, 90)
    return rng.choice([None] * 6 + [near] * 8 + [-1, 0, world.now - 10**6, world.now + 10**8])


def draw_given(rng: random.Random, stamp: int | None) -> Given:
    size = rng.choice([0, 1, 20, 63, 64, 100, 100, 300, 2_000, 9_000])
    value = rng.choice([None, bytes(size), rng.randbytes(size), rng.randbytes(size)])
    key = rng.choice([None, None, b"", b"k", b"k", b"k", rng.randbytes(50)])
    headers = rng.choice([(), (), (), [("h", b"v")], [("é", None), ("", b""), ("é", None)]])
    return Given(value, key, headers, stamp)


def draw_expected(rng: random.Random, world: World) -> tuple[str, int | None]:
    end = world.led.end
    fate = rng.random()
    if fate < 0.7:
        return "", None
    if fate < 0.9:
        return ", at the offset that is expected", end
    return ", at another offset than is expected", rng.choice([end + 1, max(end - 1, 0), 1 << 40])


def draw_record(rng: random.Random, world: World) -> Operation:
    given = draw_given(rng, draw_stamp(rng, world))
    if rng.random() < 0.2:
        given = at_the_border(rng, given, world)
    more, expected = draw_expected(rng, world)
    return Operation(
        "a record" + more,
        lambda place: place.log.append(
            given.value, given.key, given.headers, given.timestamp, expected_offset=expected
        ),
        lambda world: world.led.append(given, expected, world.now),
    )


def at_the_border(rng: random.Random, given: Given, world: World) -> Given:
    """Return a record that the segment's size, or its age, just allows, or just not."""
    log, over = world.led, rng.choice([0, 1])
    if rng.random() < 0.4 and log.active.first_stamp >= 0 and log.number("segment.ms") < WIDE:
        return given._replace(timestamp=log.active.first_stamp + log.number("segment.ms") + over)
    room = log.number("segment.bytes") - len(log.active.log) + over
    if not HEADER.size + 10 < room <= log.largest_batch:
        return given
    given = given._replace(key=b"k", headers=())
    sizes = range(room - HEADER.size - 20, room - HEADER.size)
    made = (given._replace(value=bytes(max(size, 0))) for size in sizes)
    return next((one for one in made if of_records([one.at(0, world.now)]).size == room), given)


def draw_list(rng: random.Random, world: World) -> Operation:
    """Records of one append; their timestamps differ if the age of a segment does not count."""
    apart = world.led.number("segment.ms") == WIDE
    stamp, n = draw_stamp(rng, world), rng.choice([1, 3, 10, 40])
    stamps = [world.now + rng.randrange(-90, 90) for _ in range(n)] if apart and rng.random() < 0.5 else None
    records = [draw_given(rng, stamps[i] if stamps else stamp) for i in range(n)]
    if rng.random() < 0.7:
        records = [record._replace(value=(record.value or b"")[:150], key=b"k") for record in records]
    batch_bytes = rng.choice([1, 150, 600, 65_536])
    compression = rng.choice([None, None, None, None, *CODECS])
    more, expected = draw_expected(rng, world)
    as_columns = rng.random() < 0.25
    kind = ("columns" if as_columns else "records") + ("" if compression is None else f", {compression}")
    return _appended(kind + more, records, stamps or stamp, compression, batch_bytes, expected, as_columns)


def draw_long(rng: random.Random, world: World) -> Operation:
    """More bytes than are encoded before an append takes its place (4 MiB)."""
    value = rng.randbytes(min(world.led.largest_batch - 200, 200_000))
    if len(value) < 100_000:
        return draw_record(rng, world)
    records = [Given(value, b"k", (), None)] * (4_500_000 // len(value))
    return _appended("a long append", records, None, None, 65_536, None)


def _appended(
    kind: str,
    records: Sequence[Given],
    timestamps: list[int] | int | None,
    compression: str | None,
    batch_bytes: int,
    expected: int | None,
    as_columns: bool = False,
) -> Operation:
    values: Any = [record.value for record in records]
    keys: Any = [record.key for record in records]
    if as_columns:
        values, keys = pyarrow.array(values, pyarrow.binary()), pyarrow.array(keys, pyarrow.binary())
    headers = [list(record.headers) for record in records]
    codec = None if compression is None else CODECS.index(compression)

    def run(place: Place) -> tuple[int, int]:
        found = place.log.append_batch(
            values, keys, timestamps, headers, compression, batch_bytes, expected_offset=expected
        )
        return found.start, found.stop

    return Operation(
        kind,
        run,
        lambda world: world.led.append_batch(records, codec, batch_bytes, expected, world.now),
    )


# --- producers ---------------------------------------------------------------------------------


def draw_ids(rng: random.Random, world: World) -> tuple[str, Ids, int]:
    """Return the kind of append, the producer's numbers, and the number of records."""
    producer_id, fate, n = rng.choice(PRODUCERS), rng.random(), rng.choice([1, 1, 1, 4, 9])
    known = world.led.producers.known.get(producer_id, Producer())
    attributes = TRANSACTIONAL if known.first_offset >= 0 else 0
    sequence = known.next_sequence if known.batches or producer_id != 8 else SEQUENCES - 5
    ids = Ids(producer_id, max(known.epoch, 0), sequence, attributes)
    if fate < 0.55:
        return "the next batch", ids, n
    if fate < 0.7 and known.batches:
        again = rng.choice(known.batches)
        return (
            "a batch again",
            ids._replace(sequence=again.first_sequence),
            again.last_offset - again.first_offset + 1,
        )
    if fate < 0.78:
        step = rng.choice([-30, -1, 1, 7])
        return "another sequence", ids._replace(sequence=(sequence + step) % SEQUENCES), n
    if fate < 0.82 and ids.epoch:
        return "an older epoch", ids._replace(epoch=ids.epoch - 1), n
    if fate < 0.88:
        return "a later epoch", ids._replace(epoch=ids.epoch + 1, sequence=rng.choice([0, 0, 0, 3])), n
    if fate < 0.97:
        return "a transaction", ids._replace(attributes=attributes ^ TRANSACTIONAL), n
    return "no sequence", ids._replace(sequence=-1), n


def draw_producer(rng: random.Random, world: World) -> Operation:
    what, ids, n = draw_ids(rng, world)
    codec, sequenced = rng.choice([0, 0, 0, 0, 0, 3]), rng.random() < 0.95
    given = draw_given(rng, world.now + rng.randrange(-50, 50))
    key = b"k" if given.key is None and n > 1 else given.key
    given = given._replace(key=key, value=(given.value or b"")[:400], headers=given.headers if n == 1 else ())
    cuts = None if n == 1 else rng.choice([(), (1,), tuple(range(1, n))])
    compression, records = CODECS[codec] if codec else None, [given] * n
    template = Template(ids.attributes, ids.producer_id, ids.epoch, ids.sequence)

    def run(place: Place) -> object:
        if cuts is None:
            return append_record(
                place.log, *given, compression, template, sequenced=sequenced  # type: ignore[arg-type, misc]
            )  # fmt: skip
        columns = Columns([given.value] * n, [key] * n, timestamp=given.timestamp)
        return append_batches(place.log, columns, cuts, compression, template, sequenced=sequenced)

    return Operation(
        f"a producer: {what}",
        run,
        lambda world: world.led.append_batches(records, ids, codec, cuts, sequenced, world.now),
    )


def draw_sent(rng: random.Random, world: World) -> Operation:
    """A batch as a client on the wire sends it."""
    what, ids, n = draw_ids(rng, world)
    if rng.random() < 0.4 or ids.sequence < 0:
        what, ids = "nobody's batch", Ids()
    codec, verified = rng.choice([0, 0, 0, *range(5)]), rng.random() < 0.8
    size, stamp = rng.choice([0, 30, 90, 700]), world.now + rng.randrange(-50, 50)
    records = [Record(i, stamp + i % 3, b"k", bytes(size), []) for i in range(n)]
    batch = Batch(0, -1, ids.attributes, n - 1, stamp, max(r.timestamp for r in records),
                  ids.producer_id, ids.epoch, ids.sequence, records)  # fmt: skip
    made = draft(batch, codec)
    data = encode_batch(made.batch, made.payload, n)
    return Operation(
        f"sent: {what}",
        lambda place: place.log.append_as_leader(bytearray(data), verified=verified),
        lambda world: world.led.append_as_leader(batch, codec, verified, world.now),
    )


def draw_marker(rng: random.Random, world: World) -> Operation:
    producer_id, kind = rng.choice(PRODUCERS), rng.choice([0, 1])
    known = world.led.producers.known.get(producer_id, Producer())
    epoch, coordinator = max(known.epoch + rng.choice([0, 0, 0, 1, -1]), 0), rng.randrange(3)
    return Operation(
        "a marker",
        lambda place: end_transaction([place.log], producer_id, epoch, coordinator, bool(kind))[0],
        lambda world: world.led.end_transaction(producer_id, epoch, coordinator, kind, world.now),
    )


# --- a follower --------------------------------------------------------------------------------


def draw_followed(rng: random.Random, world: World) -> Operation:
    """Batches as a leader wrote them, which may leave offsets out."""
    end, epoch, fate = world.followed.end, world.followed.epoch, rng.random()
    at, what = end + (rng.choice([1, 5, 700]) if fate < 0.2 else 0), "a fetch"
    if fate < 0.03 and end < 1 << 33:
        at, what = end + MOST_RELATIVE, "a fetch behind a long gap"
    elif fate < 0.06 and end:
        at, what = end - 1, "a fetch that does not follow"
    elif fate < 0.08 and epoch:
        epoch, what = epoch - 1, "a fetch of an older epoch"
    stamp = world.now + rng.randrange(-50, 50)
    drafts: list[Draft] = []
    for _ in range(rng.choice([1, 1, 2, 5])):
        made = _of_leader(rng, at, epoch, stamp, world.with_transactions)
        drafts.append(made)
        at = made.batch.base_offset + made.batch.last_offset_delta + 1 + rng.choice([0, 0, 0, 3])
        epoch += rng.random() < 0.05
    data = b"".join(encode_batch(each.batch, each.payload, len(each.batch.records)) for each in drafts)

    def run(place: Place) -> int:
        taken = place.replica.append_next(data, ALL)
        return place.replica.append_as_follower(data, ALL) if taken is None else taken

    return Operation(what, run, lambda world: world.followed.append_as_follower(drafts, world.now))


def _of_leader(rng: random.Random, at: int, epoch: int, stamp: int, with_transactions: bool) -> Draft:
    """Return a batch that begins at an offset: nobody's, a producer's, or a marker."""
    who, codec = rng.choice([-1, -1, 5, 6]), rng.choice([0, 0, 0, *range(5)])
    if who >= 0 and with_transactions and rng.random() < 0.3:
        kind = rng.choice([0, 1])
        record = Record(at, stamp, MARKER_KEY.pack(0, kind), MARKER_VALUE.pack(0, 1), [])
        batch = Batch(at, epoch, TRANSACTIONAL | CONTROL, 0, stamp, stamp, who, 0, -1, [record])
        return draft(batch, 0, kind)
    offsets = sorted(rng.sample(range(12), rng.choice([1, 2, 6])))
    offsets = [0, *(offset for offset in offsets if offset)]
    size = rng.choice([0, 40, 40, 900])
    records = [Record(at + offset, stamp, b"k", bytes(size), []) for offset in offsets]
    batch = Batch(at, epoch, 0, offsets[-1] + rng.choice([0, 0, 2]), stamp, stamp, records=records)
    if who >= 0:
        attributes = rng.choice([0, TRANSACTIONAL]) if with_transactions else 0
        ids: dict[str, Any] = {"producer_id": who, "producer_epoch": 0, "base_sequence": rng.randrange(50)}
        batch = replace(batch, attributes=attributes, **ids)
    return draft(batch, codec)


# --- between appends ---------------------------------------------------------------------------


def draw_wait(rng: random.Random, world: World) -> Operation:
    ms = rng.choice([1, 20, 60, 2_000])

    def run(place: Place) -> None:
        place.clock.now += ms

    def foretell(world: World) -> None:
        world.now += ms

    return Operation("time passes", run, foretell)


def draw_full(rng: random.Random, world: World) -> Operation:
    """The next write to a log finds no room."""
    if not world.may_fill:
        return draw_wait(rng, world)

    def foretell(world: World) -> None:
        world.disk.full = True

    def run(place: Place) -> None:
        assert place.files is not None
        place.files.arm()

    return Operation("a full disk", run, foretell)


def draw_roll(rng: random.Random, world: World) -> Operation:
    """A roll, as a compaction asks for it; of an empty segment nobody does."""
    if not world.led.active.log:
        return draw_record(rng, world)
    return Operation(
        "a roll", lambda place: place.log.partition_for_write().roll(), lambda world: world.led.roll()
    )


def draw_epoch(rng: random.Random, world: World) -> Operation:
    epoch = world.led.epoch + rng.choice([0, 1, 3])

    def run(place: Place) -> None:
        assert place.store.engine is not None
        place.store.engine.partitions.begin_epoch("t", 0, epoch)

    return Operation("a leader epoch", run, lambda world: world.led.begin_epoch(epoch))


def draw_reopen(rng: random.Random, world: World) -> Operation:
    return Operation("a close and an open", lambda place: place.reopen(), lambda world: world.reopen())


def drawn(rng: random.Random, world: World) -> Operation:
    """Return the next operation, of any kind."""
    usual: list[Draw] = [
        *[draw_record] * 9, *[draw_list] * 4, *[draw_producer] * 8, *[draw_sent] * 5, *[draw_marker] * 2,
        *[draw_followed] * 6, *[draw_wait] * 3,
    ]  # fmt: skip
    rare: list[Draw] = [draw_settings, draw_full, draw_full, draw_roll, draw_epoch, draw_reopen]
    if rng.random() < 0.001:
        return draw_long(rng, world)
    return (rng.choice(rare) if rng.random() < 0.04 else rng.choice(usual))(rng, world)
