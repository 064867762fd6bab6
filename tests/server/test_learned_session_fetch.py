"""What a consumer asks again and again within a fetch session is answered, byte for byte, as if each request
had come by a connection of its own: then each is read field by field.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from fetch_frames import asked, fill, parked, received
from serving import told_by, within
from session_twins import Change, Fields, Twins
from waiting import until
from wire_client import WireClient

import segstore
from segstore.coordinator.quotas import quotas
from segstore.server.handlers.fetch import Fetches
from segstore.server.learned.fetch import FEW, LearnedFetch

COMMITTED = {"isolation_level": 1}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    return told_by(LearnedFetch, monkeypatch)


@pytest.fixture
def filled(store: segstore.Store) -> segstore.Store:
    fill(store)
    store.partition("t", 1).append(b"in another partition")
    store.create_topic("wide", FEW + 1)
    return store


def appended(number: int) -> Change:
    return lambda store: store.partition("t", number).append(b"new")


def anew(store: segstore.Store) -> None:
    store.delete_topic("t")
    store.create_topic("t", 2)
    store.partition("t").append(b"another")


def by_quota(store: segstore.Store) -> None:
    quotas(store).alter("wire", {"consumer_byte_rate": 1_000_000_000})


def fetched(*offsets: Any, **more: Any) -> list[Fields | Change]:
    """Requests that name the first partition with an offset, or none where that is None."""
    return [{"wanted": {} if n is None else {0: n}, **more} for n in offsets]


def wide(count: int) -> Fields:
    return {"topic": "wide", "wanted": dict.fromkeys(range(count), 0)}


def limited(offset: int) -> Fields:
    return {"fetch_offset": offset, "partition_max_bytes": 400}


BOTH: Fields = {"wanted": {0: 5, 1: 1}}
ONE: Fields = {"max_bytes": 1}
ENDS = fetched(5, None, None)
CASES: dict[str, tuple[list[Fields | Change], int]] = {
    "nothing new": (fetched(5, None, None, None, None), 3),
    "one after the other": (fetched(0, 1, 2, 3, 4, 5, None, None, 0), 6),
    "read_committed": (fetched(0, 1, 2, 3, 4, 5, None, None, 0, **COMMITTED), 6),
    **{
        f"version {version}": (fetched(0, 3, 5, None, None, 4, version=version), 3)
        for version in (7, 11, 12, 13, 15, 18)
    },
    "the same records again": (fetched(0, None, None, None), 2),
    "records that came": ([*ENDS, appended(0), *fetched(None, 6, None, 6)], 4),
    "records of one of two": ([BOTH, *fetched(None, None), appended(1), {}, {"wanted": {1: 2}}, {}], 3),
    "records of both of two": ([BOTH, {}, {}, appended(0), appended(1), {}, {}, {"wanted": {0: 6}}, {}], 2),
    "turns": ([{"wanted": {0: 0, 1: 0}, "max_bytes": 1}, *[{"max_bytes": 1}] * 5], 0),
    "turns of one that has no records": ([{"wanted": {0: 0, 1: 1}}, *[{"max_bytes": 1}] * 5], 4),
    "turns go on": ([{**BOTH, **ONE}, ONE, ONE, appended(0), ONE, appended(1), ONE, ONE], 2),
    "two are named": ([BOTH, BOTH, BOTH], 0),
    "one of two is named": ([BOTH, *[{"wanted": {n: n}} for n in (0, 1, 0, 1, 0)]], 3),
    "more partitions than few": ([wide(FEW + 1), {}, {}, {}], 0),
    "a few partitions": ([wide(FEW), {}, {}, {}], 2),
    "a partition comes": ([*ENDS, {"wanted": {1: 0}}, {"wanted": {1: 1}}, {}, {}], 4),
    "a partition goes": ([BOTH, {}, {}, {"forget": [0]}, {}, appended(0), {}, {"wanted": {0: 5}}, {}, {}], 5),
    "it goes and is named again": ([BOTH, *fetched(5, 5), {"forget": [0]}, *fetched(4, 4, None)], 2),
    "all go": ([*ENDS, {"forget": [0]}, {}], 1),
    "an offset behind the end": (fetched(0, None, None, 7, None, 1, None), 3),
    "limits of the partition": (fetched(*[limited(n) for n in range(4)], None), 2),
    "other limits": (fetched(limited(0), None, None, 0, 0, None), 3),
    "limits of the request": (fetched(0, 1, 2, None, max_bytes=400), 1),
    "other limits of the request": ([*ENDS, *fetched(0, 0, None, None, max_bytes=1)], 3),
    "more bytes than there are": (fetched(4, 4, 4, None, min_bytes=1 << 16, max_wait_ms=1), 0),
    "polls in vain": (fetched(5, None, None, 5, None, max_wait_ms=1), 2),
    "no bytes wanted": (fetched(5, 5, None, None, min_bytes=0, max_wait_ms=60_000), 1),
    "an epoch that is to come": (fetched(*[{"fetch_offset": 0, "current_leader_epoch": 9}] * 3), 0),
    "the leader's epoch": (fetched(*[{"fetch_offset": 1, "current_leader_epoch": 0}] * 3, None, None), 2),
    "the epoch of the last batch": (fetched(*[{"fetch_offset": 1, "last_fetched_epoch": 0}] * 3), 0),
    "a replica": (fetched(0, 0, None, None, replica_id=1), 0),
    "an epoch out of turn": ([*ENDS, {"session_epoch": 9}, *[{"session_epoch": n} for n in (3, 4)]], 3),
    "gaps of compaction": (fetched(0, 54, 55, None, topic="c"), 1),
    "transactions": (fetched(*range(5), topic="x"), 3),
    "transactions, committed": (fetched(*range(5), topic="x", **COMMITTED), 1),
    "a topic that is gone": ([*ENDS, {}, lambda store: store.delete_topic("t"), {}, {}], 2),
    "a topic that was made anew": ([*ENDS, {}, anew, {}, {}, {"wanted": {0: 1}}, {}, {}], 4),
    "a topic that was made anew, by id": ([*fetched(5, None, None, version=13), anew, {}, {}], 1),
    "records that were deleted": ([*ENDS, lambda s: s.partition("t").delete_records(2), {}, {}, {}], 4),
    "a quota": ([*ENDS, {}, by_quota, {}, {}], 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_the_handler(
    name: str, filled: segstore.Store, server: segstore.Server, told: list[bool]
) -> None:
    steps, repeats = CASES[name]
    first = next(step for step in steps if isinstance(step, dict))
    twins = Twins(server, filled, first.get("version", 12))
    for step in steps:
        if isinstance(step, dict):
            twins.ask(**{key: value for key, value in step.items() if key != "version"})
        else:
            step(filled)
    twins.close()
    assert sum(told) == repeats


# --- drawn requests -----------------------------------------------------------------------------


def drawn(rng: random.Random, store: segstore.Store) -> Iterator[Fields]:
    """What a consumer of two partitions may ask, and what happens meanwhile."""
    terms = {
        "isolation_level": rng.randint(0, 1),
        "max_bytes": rng.choice([0, 200, 1 << 20]),
        "min_bytes": rng.choice([0, 1, 500]),
        "max_wait_ms": rng.choice([0, 1]),
    }
    most = rng.choice([1, 100, 1 << 20])
    yield {**terms, "wanted": {n: rng.randint(0, 5) for n in range(rng.randint(1, 2))}}
    for _ in range(rng.randint(3, 9)):
        if rng.random() < 0.2:
            store.partition("t", rng.randint(0, 1)).append(b"v" * rng.choice([1, 300]))
        asked: Fields = dict(terms)
        if rng.random() < 0.5:
            asked["wanted"] = {
                rng.randint(0, 1): {"fetch_offset": rng.randint(-1, 7), "partition_max_bytes": most}
            }
        elif rng.random() < 0.1:
            asked["forget"] = [rng.randint(0, 1)]
        yield asked


def test_drawn_requests(filled: segstore.Store, server: segstore.Server, told: list[bool]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(40):
        twins = Twins(server, filled, rng.randint(7, 18))
        for fields in drawn(rng, filled):
            twins.ask(**fields)
        twins.close()
    assert sum(told) > 5, (sum(told), len(told))


# --- long polls ---------------------------------------------------------------------------------

WAITS: Fields = {"max_wait_ms": 600_000}
CHANGES: dict[str, Change] = {
    "a record": appended(0),
    "a record of another partition": appended(1),
    "records of both": lambda store: [store.partition("t", n).append(b"new") for n in (0, 1)],
    "a topic that is gone": lambda store: store.delete_topic("t"),
    "a topic made anew": anew,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_waits_is_answered_when_something_comes(
    name: str, filled: segstore.Store, server: segstore.Server, told: list[bool]
) -> None:
    twins = Twins(server, filled)
    twins.ask(wanted={0: 4, 1: 1}, **WAITS)
    twins.ask(wanted={0: 4}, **WAITS)
    twins.ask(wanted={0: 4}, **WAITS)
    with WireClient(server.host, server.port) as other:
        assert twins.known._wire is not None
        other.socket.sendall(twins.anew.frame(wanted={0: 5}, **WAITS))
        twins.known._wire.socket.sendall(twins.known.frame(wanted={0: 5}, **WAITS))
        until(lambda: parked(server) == 2)
        within(server, lambda: CHANGES[name](filled))  # the server sees all of a change at once
        expected = twins.anew.told(received(other))
        assert twins.known.told(received(twins.known._wire)) == expected
    assert sum(told) == 2
    assert parked(server) == 0
    twins.close()


def test_a_session_that_goes_on_without_what_waits(
    filled: segstore.Store, server: segstore.Server, told: list[bool]
) -> None:
    """What waits is answered with INVALID_FETCH_SESSION_EPOCH: its records would be lost."""
    twins = Twins(server, filled)
    for _ in range(2):
        twins.ask(wanted={0: 4}, **WAITS)
    answers = []
    for client in (twins.anew, twins.known):
        with WireClient(server.host, server.port) as other, WireClient(server.host, server.port) as third:
            wire = client._wire or other
            wire.socket.sendall(client.frame(wanted={0: filled.partition("t").end_offset}, **WAITS))
            until(lambda: parked(server) == 1)
            asked(third, client.frame(wanted={0: 4}))
            filled.partition("t").append(b"new")
            answers.append(client.told(received(wire)))
    assert answers[0] == answers[1]
    assert struct.unpack_from(">h", answers[0], 13) == (71,)
    assert sum(told) == 1
    twins.close()


def test_pipelined_requests_are_answered_in_order(
    filled: segstore.Store, server: segstore.Server, told: list[bool]
) -> None:
    twins = Twins(server, filled)
    twins.ask(wanted={0: 5}, max_wait_ms=1)
    steps = [{"wanted": {0: n}} if n is not None else {} for n in (0, 1, None, None, 5, None, 3, 2, None)]
    expected = b"".join(twins.anew.ask(**step, max_wait_ms=1) for step in steps)
    wire = twins.known._wire
    assert wire is not None
    wire.socket.sendall(b"".join(twins.known.frame(**step, max_wait_ms=1) for step in steps))
    came = b""
    for _ in steps:
        came += twins.known.told(exactly_one(wire))
    assert came == expected
    assert sum(told) == 7
    twins.close()


def exactly_one(wire: WireClient) -> bytes:
    data = bytes(wire.receive_bytes())
    return struct.pack(">i", len(data)) + data


def test_an_evicted_session_is_not_there(
    filled: segstore.Store, server: segstore.Server, told: list[bool]
) -> None:
    twins = Twins(server, filled)
    for step in ({"wanted": {0: 5}}, {}, {}):
        twins.ask(**step)
    sessions = within(server, lambda: server.node.part(Fetches).sessions)
    within(server, lambda: sessions._sessions.clear())
    answer = twins.ask()
    assert struct.unpack_from(">h", answer, 13) == (70,)
    assert sum(told) == 1


def test_a_client_that_begins_anew_gets_a_session(filled: segstore.Store, server: segstore.Server) -> None:
    """A request with epoch 0 is never answered as one outside of a session, however often it comes."""
    twins = Twins(server, filled)
    for _ in range(3):
        for client in (twins.known, twins.anew):
            client.session_id = client.epoch = 0
        twins.ask(wanted={0: 0})
        assert twins.known.session_id > 0
    twins.close()
