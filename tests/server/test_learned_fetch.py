"""What a consumer asks again and again is answered, byte for byte, as if each request had come by a
connection of its own: then each is read field by field.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from fetch_frames import asked, fill, made, parked, received
from serving import told_by, within
from test_learned_standby_fetch import primary
from waiting import until
from wire_client import WireClient

import segstore
from segstore.coordinator.quotas import quotas
from segstore.server.learned.fetch import LearnedFetch

Change = Callable[[segstore.Store], object]
Fields = dict[str, Any]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    return told_by(LearnedFetch, monkeypatch)


@pytest.fixture
def filled(store: segstore.Store) -> segstore.Store:
    return fill(store)


def appended(value: bytes) -> Change:
    return lambda store: store.partition("t").append(value)


def anew(store: segstore.Store) -> None:
    store.delete_topic("t")
    store.create_topic("t", 2)
    store.partition("t").append(b"another")


def by_quota(store: segstore.Store) -> None:
    quotas(store).alter("wire", {"consumer_byte_rate": 1_000_000_000})


def begin_epoch(store: segstore.Store) -> None:
    primary(store).begin_epochs(3)


def mixed(store: segstore.Store) -> None:
    """A topic of two plain batches, and then an aborted one."""
    store.create_topic("m")
    for value in (b"plain", b"as well"):
        store.partition("m").append(value)
    with closing(segstore.Producer(store, transactional_id="mixed", linger_ms=0)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("m", b"aborted")
        producer.flush()
        producer.abort_transaction()


COMMITTED, OF_EPOCH = {"isolation_level": 1}, {"current_leader_epoch": 0}
SHORT: Fields = {"partition_max_bytes": 400}
walk: list[Fields | Change] = [{"offset": n, "correlation_id": n - 3} for n in (0, 1, 2, 3, 4, 5, 0)]
CASES: dict[str, tuple[list[Fields | Change], int]] = {
    "one after the other": (walk, 6),
    "read_committed": ([{**each, **COMMITTED} for each in walk if isinstance(each, dict)], 6),
    **{
        f"version {version}": ([{"version": version, "offset": n} for n in (0, 3, 5)], 2)
        for version in range(4, 19)
    },
    "an offset behind the end": ([{}, {"offset": 6}, {"offset": -1}, {"offset": 1}], 1),
    "limits of the partition": ([{"partition_max_bytes": 400, "offset": n} for n in range(4)], 3),
    "no bytes": ([{"partition_max_bytes": 0}, {"partition_max_bytes": 0, "offset": 1}], 1),
    "limits of the request": ([{"max_bytes": 400, "offset": n} for n in range(4)], 3),
    "other limits": ([{}, {"max_bytes": 400}, {"max_bytes": 400}, {"partition_max_bytes": 1}], 1),
    "more bytes than there are": ([{"min_bytes": 1 << 16, "max_wait_ms": 1, "offset": n} for n in (1, 4)], 0),
    "polls in vain": ([{"offset": 5, "max_wait_ms": 1}] * 3, 2),
    "no bytes wanted": ([{"offset": 5, "min_bytes": 0, "max_wait_ms": 60_000}] * 2, 1),
    "the leader's epoch": ([{"current_leader_epoch": 0}] * 2, 1),
    "an epoch begins": ([*[OF_EPOCH] * 2, begin_epoch, *[OF_EPOCH] * 2], 1),
    "an epoch that is to come": ([{"current_leader_epoch": 9}] * 2, 0),
    "the epoch of the last batch": ([{"last_fetched_epoch": 0, "offset": 1}] * 2, 0),
    "two partitions": ([{"numbers": [0, 1]}] * 2, 0),
    "another partition by turns": ([{"numbers": [0]}, {"numbers": [1]}] * 2, 0),
    "a replica": ([{"replica_id": 1}] * 2, 0),
    "gaps of compaction": ([{"topic": "c", "offset": n, "partition_max_bytes": 1} for n in (0, 54, 55)], 2),
    "transactions": ([{"topic": "x", "offset": n} for n in range(5)], 4),
    "transactions, committed": ([{"topic": "x", "offset": n, **COMMITTED} for n in range(5)], 1),
    "transactions behind plain batches, committed": (
        [mixed, *({"topic": "m", "offset": n, "max_bytes": 1, **COMMITTED} for n in (0, 1, 0, 2, 0))],
        3,
    ),
    "a topic that is not there": ([{"topic": "none"}] * 2, 0),
    "a topic that is gone": ([{}, {}, lambda s: s.delete_topic("t"), {}, {}], 1),
    "a topic that was made anew": ([{}, {}, anew, {}, {}], 2),
    "a topic that was made anew, by id": ([{"version": 13}, anew, {"version": 13}, {"version": 13}], 1),
    "records that were deleted": ([{}, lambda s: s.partition("t").delete_records(2), {}, {"offset": 2}], 1),
    "records that came": ([{"offset": 5}, appended(b"new"), {"offset": 5}, {"offset": 6}], 2),
    "a quota": ([{}, {}, by_quota, {}], 1),
    "a quota, of answers by C": ([*[SHORT] * 4, by_quota, SHORT], 3),
    "an epoch begins, of answers by C": ([*[SHORT | OF_EPOCH] * 4, begin_epoch, SHORT | OF_EPOCH], 3),
    "a topic that is gone, of answers by C": ([*[SHORT] * 4, lambda s: s.delete_topic("t"), SHORT], 3),
}  # fmt: skip


def answers_alike(server: segstore.Server, wire: WireClient, data: bytes) -> None:
    with WireClient(server.host, server.port) as other:
        expected = asked(other, data)
    assert asked(wire, data) == expected


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_the_handler(
    name: str, filled: segstore.Store, server: segstore.Server, wire: WireClient, told: list[bool]
) -> None:
    steps, repeats = CASES[name]
    for step in steps:
        if isinstance(step, dict):
            answers_alike(server, wire, made(filled, **step))
        else:
            step(filled)
    assert within(server, lambda: sum(told)) == repeats  # the last one was answered before it was noted


def drawn(rng: random.Random) -> Iterator[Fields]:
    """A few requests that differ in their offsets."""
    topic, end = rng.choice([("t", 5), ("c", 60), ("x", 4)])
    fields = {
        "topic": topic,
        "version": rng.randint(4, 18),
        "isolation_level": rng.randint(0, 1),
        "partition_max_bytes": rng.choice([0, 1, 100, 1000, 1 << 20]),
        "max_bytes": rng.choice([0, 200, 1 << 20]),
        "min_bytes": rng.choice([0, 1, 500]),
        "max_wait_ms": rng.choice([0, 1]),
    }
    for _ in range(rng.randint(2, 6)):
        yield {**fields, "offset": rng.randint(-1, end + 1), "correlation_id": rng.randint(-9, 9)}


def test_drawn_requests(
    filled: segstore.Store, server: segstore.Server, wire: WireClient, told: list[bool]
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(60):
        for fields in drawn(rng):
            answers_alike(server, wire, made(filled, **fields))
    assert within(server, lambda: sum(told)) > 20


CHANGES: dict[str, Change] = {
    "a record": appended(b"late"),
    "a topic that is gone": lambda store: store.delete_topic("t"),
    "a topic made anew": anew,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_waits_is_answered_when_something_comes(
    name: str, filled: segstore.Store, server: segstore.Server, wire: WireClient, told: list[bool]
) -> None:
    asked(wire, made(filled, offset=4, max_wait_ms=600_000))
    poll = made(filled, offset=5, max_wait_ms=600_000, correlation_id=77)
    with WireClient(server.host, server.port) as other:
        for each in (wire, other):
            each.socket.sendall(poll)
        until(lambda: parked(server) == 2)
        assert told == [True]
        within(server, lambda: CHANGES[name](filled))  # the server sees all of a change at once
        assert received(wire) == received(other)
    assert parked(server) == 0


def test_a_client_that_leaves_is_forgotten(
    filled: segstore.Store, server: segstore.Server, wire: WireClient, told: list[bool]
) -> None:
    with WireClient(server.host, server.port) as other:
        asked(other, made(filled))
        other.socket.sendall(made(filled, offset=5, max_wait_ms=1))
        received(other)
        other.socket.sendall(made(filled, offset=5, max_wait_ms=600_000))
        until(lambda: parked(server) == 1)
    filled.partition("t").append(b"wakes all")
    until(lambda: parked(server) == 0)
    answers_alike(server, wire, made(filled, offset=5))


def test_pipelined_requests_are_answered_in_order(
    filled: segstore.Store, server: segstore.Server, wire: WireClient, told: list[bool]
) -> None:
    offsets = (0, 5, 1, 5, 3, 2)
    sent = [made(filled, offset=n, max_wait_ms=1, correlation_id=i) for i, n in enumerate(offsets)]
    wire.socket.sendall(b"".join(sent))
    came = b""
    expected = b""
    with WireClient(server.host, server.port) as other:
        for each in sent:
            expected += asked(other, each)
    while len(came) < len(expected):
        came += wire.socket.recv(1 << 16)
    assert came == expected
