"""The bytes of `__share_group_state`: those that a broker of Kafka 4.4.0 wrote (rule Q51)."""

from __future__ import annotations

import random

import pytest

from segstore import names
from segstore.coordinator.share.core.durable import StateDelta
from segstore.coordinator.share.core.values import Durable, StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_schema import (
    StateKind,
    parse_snapshot,
    parse_state_key,
    parse_update,
    snapshot_value,
    state_key,
    update_value,
)
from segstore.errors import InvalidArgumentError, InvalidRequestError, UnsupportedVersionError
from segstore.protocol.codec import structs
from segstore.protocol.record_codec import encode_value

B = StateBatch


def raw(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", "").replace("|", ""))


KEY = ShareKey("g1", names.topic_id_of(raw("d39061a0652e46a0b28fa1cca9a2025a")), 0)
KEYS = {
    StateKind.SNAPSHOT: raw("0000 00026731 d39061a0652e46a0b28fa1cca9a2025a 00000000"),
    StateKind.UPDATE: raw("0001 00026731 d39061a0652e46a0b28fa1cca9a2025a 00000000"),
}
FIRST = Durable(0, 2, 0, -1, -1, (), 0x1A2239E1DF4, 0x1A2239E1DF4)
SNAPSHOTS = {
    "after initialising": (
        FIRST,
        raw("0000 00000000 00000002 00000000 ffffffffffffffff 000001a2239e1df4 000001a2239e1df4 01 00"),
    ),
    "with batches": (
        Durable(1, 2, 3, 4, 0, (B(4, 9, 0, 25),), 1, 2),
        raw(
            "0000 00000001 00000002 00000003 0000000000000004 0000000000000001 0000000000000002 02"
            "0000000000000004 0000000000000009 00 0019 00 | 01 00 04 00000000"
        ),
    ),
}
UPDATES = {
    "three batches": (
        StateDelta(0, 0, 0, 5, (B(0, 2, 2, 1), B(3, 5, 0, 1), B(6, 7, 4, 1))),
        raw(
            "0000 00000000 00000000 0000000000000000 04"
            "| 0000000000000000 0000000000000002 02 0001 00"
            "| 0000000000000003 0000000000000005 00 0001 00"
            "| 0000000000000006 0000000000000007 04 0001 00"
            "| 01 00 04 00000005"
        ),
    ),
    "another leader": (StateDelta(0, 2, -1, -1), raw("0000 00000000 00000002 ffffffffffffffff 01 00")),
}


@pytest.mark.parametrize("kind", StateKind)
def test_q51_keys(kind: StateKind) -> None:
    assert state_key(kind, KEY) == KEYS[kind]
    assert parse_state_key(kind, KEYS[kind]) == KEY


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_q51_snapshots(name: str) -> None:
    state, data = SNAPSHOTS[name]
    assert snapshot_value(state) == data
    assert parse_snapshot(data) == state


@pytest.mark.parametrize("name", UPDATES)
def test_q51_updates(name: str) -> None:
    delta, data = UPDATES[name]
    assert update_value(delta) == data
    assert parse_update(data) == delta


def test_many_batches_and_tags_of_a_newer_broker() -> None:
    many = tuple(B(2 * n, 2 * n, 2, 1 + n % 3) for n in range(500))
    assert parse_update(update_value(StateDelta(0, 0, 0, 0, many))).batches == many
    # A batch with a tagged field 3 of two bytes, and the same behind the value's own tag.
    tagged = raw(
        "0000 00000000 00000000 0000000000000000 02"
        "0000000000000001 0000000000000002 02 0001 01 03 02 abcd"
        "02 00 04 00000002 03 02 abcd"
    )
    assert parse_update(tagged) == StateDelta(0, 0, 0, 2, (B(1, 2, 2, 1),))


BROKEN = {
    "nothing": b"",
    "a cut version": b"\0",
    "cut": UPDATES["three batches"][1][:40],
    "more batches than bytes": raw("0000 00000000 00000000 0000000000000000 7f"),
    "null batches": raw("0000 00000000 00000000 0000000000000000 00 00"),
    "a negative version": b"\xff\xff" + UPDATES["another leader"][1][2:],
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_value_is_refused(name: str) -> None:
    for parse in (parse_snapshot, parse_update):
        with pytest.raises(InvalidRequestError):
            parse(BROKEN[name])


def test_a_newer_version_is_told_apart() -> None:
    for parse in (parse_snapshot, parse_update):
        with pytest.raises(UnsupportedVersionError, match="of version 1: versions 0 to 0 are known"):
            parse(b"\0\1" + SNAPSHOTS["after initialising"][1][2:])


@pytest.mark.parametrize(
    "batch", [B(-(2**63) - 1, 0, 0, 0), B(0, 2**63, 0, 0), B(0, 0, 128, 0), B(0, 0, 0, 2**15)], ids=repr
)
def test_numbers_that_no_record_holds_are_refused(batch: StateBatch) -> None:
    with pytest.raises(InvalidArgumentError, match="can't hold"):
        update_value(StateDelta(0, 0, 0, 0, (batch,)))


def test_a_group_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        state_key(StateKind.UPDATE, KEY._replace(group="g" * 40_000))


def by_messages(delta: StateDelta) -> bytes:
    """The value of a ShareUpdate as Kafka's definition of the message gives it."""
    body = structs("ShareUpdateValue")
    batches = [
        body.StateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
        for first, last, state, count in delta.batches
    ]
    return encode_value(
        body(
            snapshot_epoch=delta.snapshot_epoch,
            leader_epoch=delta.leader_epoch,
            start_offset=delta.start,
            delivery_complete_count=delta.complete,
            state_batches=batches,
        ),
        0,
    )


@pytest.mark.parametrize("number", [0, 1, 126, 127, 128, 20_000])
def test_an_update_has_the_bytes_of_the_definition_whatever_its_numbers(number: int) -> None:
    draw = random.Random(number)
    batches = tuple(
        B(draw.getrandbits(63), draw.getrandbits(63), draw.randrange(5), draw.getrandbits(15))
        for _ in range(number)
    )
    for complete in (-1, 0, draw.getrandbits(31)):
        delta = StateDelta(
            draw.getrandbits(31), draw.getrandbits(31), draw.getrandbits(63), complete, batches
        )
        assert update_value(delta) == by_messages(delta), f"number {number}, complete {complete}"
        assert parse_update(update_value(delta)) == delta


@pytest.mark.parametrize(
    "delta",
    [
        StateDelta(1 << 31, 0, 0, 0),
        StateDelta(0, 1 << 31, 0, 0),
        StateDelta(0, 0, 1 << 63, 0),
        StateDelta(0, 0, 0, 1 << 31),
        StateDelta(0, 0, 0, 0, (B(0, 1 << 63, 0, 0),)),
    ],
    ids=["snapshot epoch", "leader epoch", "start", "count", "batch"],
)
def test_numbers_that_no_update_holds_are_refused(delta: StateDelta) -> None:
    with pytest.raises(InvalidArgumentError, match="can't hold"):
        update_value(delta)
