"""Messages of magic 0 and 1 brought up to magic 2, against the oracle of message sets; what is refused."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import message_sets
import oracle
import pytest
from drawn_sets import EACH_KIND, KINDS, Drawn, entry, logs, plain_batches, some
from hypothesis import given, settings
from message_sets import CODECS, GZIP, LZ4, NONE, SNAPPY, Entry, Malformed, Message

from segstore.errors import CorruptRecordError
from segstore.records import decode, scan
from segstore.records.bring_up import bring_up
from segstore.records.header import MAGIC

END = 0


def brought_up(data: bytes, **options: int) -> tuple[bytes, list[oracle.Batch]]:
    """Return the bytes that `data` becomes, and its batches as the other oracle reads them. Raises
    CorruptRecordError.
    """
    headers, end = scan(data)
    if end.status != END or end.position != len(data):
        raise CorruptRecordError("input", end.position, 0, f"scan: {end.status}")
    made, found = bring_up(data, headers, "input", **options)
    assert (found["magic"] == MAGIC).all()
    assert found["position"].tolist() == [0, *found["size"].cumsum().tolist()[:-1]]
    made = bytes(made[: found["size"].sum()])
    return made, oracle.decode_batches(plain_batches(made))


def said(batches: list[oracle.Batch]) -> list[Message]:
    """Return the records of batches; a batch of append time has one time."""
    found = []
    for batch in batches:
        appended = bool(batch.attributes & oracle.APPEND_TIME)
        for r in batch.records:
            stamp = batch.max_timestamp if appended else r.timestamp
            found.append(Message(r.offset, stamp, r.key, r.value, appended))
    return found


@settings(max_examples=150)
@given(logs())
def test_it_says_what_the_oracle_says(drawn: Drawn) -> None:
    made, batches = brought_up(drawn.data)
    assert said(batches) == drawn.messages
    headers, _ = scan(made)
    records = decode(made, headers, "input")
    assert records.offsets.tolist() == [m.offset for m in drawn.messages]
    assert records.timestamps.tolist() == [m.timestamp for m in drawn.messages]
    assert records.keys == [m.key for m in drawn.messages]
    assert records.values == [m.value for m in drawn.messages]
    assert records.timestamp_types.tolist() == [m.append_time for m in drawn.messages]


@pytest.mark.parametrize("name", KINDS)
def test_each_kind(name: str) -> None:
    drawn = KINDS[name]
    _, batches = brought_up(drawn.data)
    assert said(batches) == drawn.messages == message_sets.messages(drawn.data)
    assert len(batches) == 1
    batch = batches[0]
    nobody = batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.leader_epoch
    assert nobody == (-1, -1, -1, -1)
    assert batch.base_offset + batch.last_offset_delta == drawn.messages[-1].offset
    assert batch.max_timestamp == max(m.timestamp for m in drawn.messages)


def test_all_kinds_in_one_log() -> None:
    _, batches = brought_up(EACH_KIND.data)
    assert said(batches) == EACH_KIND.messages


def test_offsets_too_far_apart_for_one_batch() -> None:
    """A batch holds offset deltas of 31 bits."""
    far = [Message(offset, 5, None, b"v") for offset in (0, 1, 1 << 31, (1 << 31) + 1, 1 << 62)]
    for magic in (0, 1):
        _, batches = brought_up(message_sets.plain(magic, far))
        assert [r.offset for batch in batches for r in batch.records] == [m.offset for m in far]


def test_times_of_each_message_stay_where_they_were_appended_one_by_one() -> None:
    messages = [Message(i, 1000 + i // 2, None, b"v", True) for i in range(6)]
    _, batches = brought_up(message_sets.plain(1, messages))
    assert said(batches) == messages


# --- what is refused ---------------------------------------------------------------------------


def wrapper(value: bytes | None, magic: int = 1, codec: int = GZIP, offset: int = 9) -> bytes:
    return message_sets.encode(Entry(offset, magic, codec, 5 if magic else -1, None, value))


def around(inner: bytes, magic: int = 1, codec: int = GZIP, offset: int = 9) -> bytes:
    return wrapper(message_sets.compress(codec, inner, magic), magic, codec, offset)


def plain(magic: int, *offsets: int) -> bytes:
    return message_sets.plain(magic, [Message(offset, 5, b"k", b"v") for offset in offsets])


def with_size(size: int) -> bytes:
    """A message with another size, which no CRC covers."""
    data = plain(1, 0)
    return data[:8] + struct.pack(">i", size) + data[12:]


def with_lengths(key: int, value: int) -> bytes:
    """A message whose CRC holds, and whose lengths say something else than there is."""
    body = struct.pack(">bbqi", 1, 0, 5, key) + b"k" + struct.pack(">i", value) + b"v"
    return struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body


def bomb(levels: int) -> bytes:
    """Wrappers within wrappers, as deep as `levels`: each holds nine of the next."""
    inner = plain(1, *range(9))
    for _ in range(levels):
        each = message_sets.compress(GZIP, inner)
        inner = b"".join(message_sets.encode(Entry(i, 1, GZIP, 5, None, each)) for i in range(9))
    return around(inner, offset=1 << 40)


REFUSED: dict[str, Callable[[], bytes]] = {
    "a wrapper in a wrapper": lambda: around(around(plain(1, 0, 1))),
    "a wrapper in a wrapper of magic 0": lambda: around(around(plain(0, 8, 9), 0), 0),
    "wrappers six deep": lambda: bomb(6),
    "a message of magic 0 in a wrapper of magic 1": lambda: around(plain(0, 0, 1)),
    "a message of magic 1 in a wrapper of magic 0": lambda: around(plain(1, 8, 9), 0),
    "a record batch in a wrapper": lambda: around(oracle.encode_batch(oracle.Batch())),
    "a wrapper without a value": lambda: wrapper(None),
    "a wrapper of no bytes": lambda: wrapper(b""),
    "a wrapper without messages": lambda: around(b""),
    "a wrapper of half a message": lambda: around(plain(1, 0)[:-1]),
    "offsets that run backwards": lambda: around(plain(1, 1, 0)),
    "offsets that run backwards, magic 0": lambda: around(plain(0, 8, 9, 7), 0),
    "the same offset twice": lambda: around(plain(1, 0, 1, 1)),
    "a last offset above the wrapper's": lambda: around(plain(1, 0, 10)),
    "a last offset above the wrapper's, magic 0": lambda: around(plain(0, 9, 10), 0),
    "an offset below 0": lambda: around(plain(1, -1, 0)),
    "a last offset below 0": lambda: around(plain(1, -2, -1)),
    "an offset of 2^63 - 1": lambda: around(plain(1, 0, (1 << 63) - 1)),
    "a message of 13 bytes": lambda: around(with_size(13)),
    "a message of no bytes": lambda: around(with_size(0)),
    "a message of fewer than no bytes": lambda: around(plain(1, 0) + with_size(-1)),
    "a message that takes all behind it": lambda: around(with_size(len(plain(1, 0)) + 22) + plain(1, 1)),
    "a CRC that does not hold": lambda: around(plain(1, 0)[:-1] + b"x"),
    "a key of -2 bytes": lambda: around(with_lengths(-2, 1)),
    "a key of more than there are": lambda: around(with_lengths(7, 1)),
    "a key of 2^31 - 1 bytes": lambda: around(with_lengths((1 << 31) - 1, 1)),
    "a value of fewer than there are": lambda: around(with_lengths(1, 0)),
    "a value of -2 bytes": lambda: around(with_lengths(1, -2)),
    "a plain message with such a key": lambda: with_lengths(-2, 1),
    "a plain message with such a value": lambda: with_lengths(1, 7),
    "zstd, which came later": lambda: wrapper(b"\x28\xb5\x2f\xfd" + bytes(20), codec=4),
    "a codec that is none": lambda: wrapper(bytes(20), codec=7),
    **{f"no {CODECS[c]}": lambda c=c: wrapper(b"\x01" * 40, codec=c) for c in (GZIP, SNAPPY, LZ4)},
    **{
        f"half of a {CODECS[c]} frame": lambda c=c: wrapper(
            message_sets.compress(c, plain(1, *range(40)))[:-30], codec=c
        )
        for c in (GZIP, SNAPPY, LZ4)
    },
    "lz4 of magic 1 with the header checksum of magic 0": lambda: wrapper(
        message_sets.compress(LZ4, plain(1, 0), magic=0), codec=LZ4
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_damage_is_refused_by_name(name: str) -> None:
    """... wherever it lies, and the oracle says so too."""
    data = REFUSED[name]()
    with pytest.raises(Malformed):
        message_sets.messages(data)
    before = message_sets.plain(1, some(0, 3))
    with pytest.raises(CorruptRecordError) as told:
        brought_up(before + data)
    assert (told.value.position, str(told.value.file)) == (len(before), "input")


def test_a_wrapper_begins_behind_a_record_batch_before_it() -> None:
    """... which is not brought up with it."""
    before = entry(2, NONE, some(18, 3)).data
    data = before + around(plain(0, 9, 24), 0, offset=24)
    with pytest.raises(CorruptRecordError, match="rise") as told:
        decode(data, scan(data)[0], "input")
    assert told.value.position == len(before)


def test_a_wrapper_must_fit_into_a_batch() -> None:
    """No wrapper spans more offsets than a batch may have, though none of Kafka's rules says so."""
    data = around(plain(1, 0, 1 << 31), offset=1 << 40)
    assert len(message_sets.messages(data)) == 2
    with pytest.raises(CorruptRecordError, match="offsets"):
        brought_up(data)


ODD: dict[str, bytes] = {
    "half a message behind the last one": around(plain(1, 0, 1) + plain(1, 2)[:-1]),
    "a few bytes behind the last one": around(plain(1, 0, 1) + b"\0" * 11),
    "lz4 of magic 0 with the right header checksum": wrapper(
        message_sets.compress(LZ4, plain(0, 8, 9), magic=1), 0, LZ4
    ),
    "lz4 of magic 0 with no checksum that anyone knows": around(plain(0, 8, 9), 0, LZ4),
    "unused bits in the attributes": message_sets.encode(Entry(3, 1, 0xF0 - 256, 5, b"k", b"v")),
    "the bit of append time in magic 0": message_sets.encode(Entry(3, 0, 0x08, -1, b"k", b"v")),
    "a key on a wrapper": message_sets.encode(
        Entry(9, 1, GZIP, 5, b"key", message_sets.compress(GZIP, plain(1, 0)))
    ),
    "raw snappy": message_sets.encode(
        Entry(9, 1, SNAPPY, 5, None, bytes(message_sets.cramjam.snappy.compress_raw(plain(1, 0, 1))))
    ),
    "timestamps below 0": message_sets.encode(Entry(3, 1, NONE, -(1 << 63), b"k", b"v")),
    "the largest timestamp": message_sets.encode(Entry(3, 1, NONE, (1 << 63) - 1, b"k", b"v")),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_read(name: str) -> None:
    data = ODD[name]
    _, batches = brought_up(data)
    assert said(batches) == message_sets.messages(data) != []


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4], ids=CODECS[1:])
def test_a_wrapper_may_become_so_many_bytes(codec: int) -> None:
    """The bound is that of compressed record batches."""
    data = around(message_sets.plain(1, [Message(0, 5, None, bytes(200_000))]), codec=codec)
    assert len(data) < 20_000
    _, batches = brought_up(data, limit=300_000)
    assert len(batches) == 1
    with pytest.raises(CorruptRecordError):
        brought_up(data, limit=100_000)
