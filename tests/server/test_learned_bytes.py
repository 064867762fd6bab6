"""A request that differs in one byte from what its connection has learned: outside of the template's holes it
comes to the handler, and it is answered, byte for byte, as by the handler.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fetch_frames import asked, fill
from fetch_frames import made as fetch
from sent import NOW, batch
from serving import connections
from session_twins import Client, Twins
from stores import values
from test_exchange import Twin
from test_learned_produce import made as produce
from wire_client import WireClient

import segstore
from segstore.protocol.template import MessageTemplate

SIZE = 4
AFTER_API = SIZE + 4
"""The place of the correlation id: what stands before it may make another request that has no answer."""


def changed(data: bytes, at: int, bit: int) -> bytes:
    body = bytearray(data)
    body[at] ^= 1 << bit
    return bytes(body)


RECORDS = batch(max_timestamp=NOW + 5)
ASKED: dict[str, Callable[[segstore.Store], bytes]] = {
    "produce": lambda store: produce(records=RECORDS),
    "produce, without varints": lambda store: produce(7, records=RECORDS),
    "fetch": lambda store: fetch(store, partition_max_bytes=400),
    "fetch, by id": lambda store: fetch(store, version=17, partition_max_bytes=400),
}


@pytest.mark.parametrize("name", [name for name in ASKED if "by id" not in name])
def test_each_byte_is_answered_as_by_the_handler(name: str, tmp_path: Path, rng: random.Random) -> None:
    with closing(Twin(tmp_path / "one", True)) as one, closing(Twin(tmp_path / "each", False)) as each:
        data = ASKED[name](one.store)
        for at in range(AFTER_API, len(data)):
            bit = rng.randrange(8)
            for sent in data, data, changed(data, at, bit):
                assert one.ask(sent) == each.ask(sent), (at, bit)
        assert values(one.store.partition("t")) == values(each.store.partition("t"))
    for where in ("one", "each"):
        assert segstore.check(tmp_path / where) == []


def in_holes(made: MessageTemplate, data: bytes) -> Iterator[int]:
    """The places in a request's holes, and in its records."""
    for hole in made.holes:
        yield from range(SIZE + hole.at, SIZE + hole.at + hole.width)
    if made.records is not None:
        at = data.index(RECORDS)
        yield from range(at, at + len(RECORDS))


@pytest.mark.parametrize("name", ASKED)
def test_each_byte_outside_of_the_holes_counts(
    name: str, store: segstore.Store, server: segstore.Server, wire: WireClient
) -> None:
    fill(store)
    data = ASKED[name](store)
    for _ in range(2):
        asked(wire, data)
    (connection,) = connections(server)
    learned: Any = connection.learned
    matching = {
        at
        for at in range(SIZE, len(data))
        for bit in range(8)
        if learned.match(memoryview(changed(data, at, bit))[SIZE:]) is not None
    }
    shapes = [learned._template] if name.startswith("produce") else learned._shapes.values()
    (made,) = shapes
    assert matching == {*in_holes(made, data)}


STEPS: dict[str, dict[str, Any]] = {"no partition": {}, "a partition": {"wanted": {0: 2}}}


@pytest.mark.parametrize("version", [12, 17])
@pytest.mark.parametrize("name", STEPS)
def test_each_byte_of_a_session_is_answered_as_by_the_handler(
    name: str, version: int, store: segstore.Store, server: segstore.Server, rng: random.Random
) -> None:
    fill(store)
    at, end = AFTER_API, AFTER_API + 1
    while at < end:
        twins = Twins(server, store, version)
        for step in {"wanted": {0: 2}}, {"wanted": {0: 2}}, {}:
            twins.ask(**step)
        bit, frames = rng.randrange(8), [each.frame(**STEPS[name]) for each in (twins.known, twins.anew)]
        known, anew = (changed(data, at, bit) for data in frames)
        with WireClient(server.host, server.port) as other:
            expected = told(twins.anew, other, anew)
        assert twins.known._wire is not None
        assert told(twins.known, twins.known._wire, known) == expected, (at, bit)
        twins.close()
        at, end = at + 1, len(known)


def told(client: Client, wire: WireClient, data: bytes) -> bytes:
    """The answer, without the session's id; nothing if the connection is closed instead."""
    try:
        return client.told(asked(wire, data))
    except (AssertionError, ConnectionError):
        return b""


@pytest.mark.parametrize("version", [12, 17])
def test_each_byte_of_a_session_outside_of_the_holes_counts(
    version: int, store: segstore.Store, server: segstore.Server
) -> None:
    fill(store)
    twins = Twins(server, store, version)
    for step in {"wanted": {0: 2}}, {"wanted": {0: 2}}, {}:
        twins.ask(**step)
    (connection,) = connections(server)
    learned: Any = connection.learned
    for step in STEPS.values():
        data = twins.known.frame(**step)
        twins.known.epoch -= 1  # the request is not sent
        (made,) = (shape for size, shape in learned._shapes.items() if size == len(data) - SIZE)
        number, epoch, *offset = made.holes
        matching = {
            at
            for at in range(SIZE, len(data))
            for bit in range(8)
            if learned.match(memoryview(changed(data, at, bit))[SIZE:]) is not None
        }
        assert matching == {
            SIZE + at for hole in (number, *offset) for at in range(hole.at, hole.at + hole.width)
        }, "another epoch is another request"
        assert epoch.name == "session_epoch"
    twins.close()
