"""Fetch sessions (KIP-227): what a session is told, in which order, and when it ends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fetches import Fetch, fetches, id_of, serving

import segstore
from segstore.integers import INT32_MAX
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.fetching.sessions import EVICTION_MS, FetchSessions, Wanted, next_epoch
from segstore.server.node import Node

_Request, _Response = structs("FetchRequest"), structs("FetchResponse")
T0, T1, T2 = ("t", 0), ("t", 1), ("t", 2)
VERSIONS = [7, 12, 13, 18]


@pytest.fixture
def node(store: segstore.Store) -> Iterator[Node]:
    store.create_topic("t", partitions=3)
    node = serving(store)
    yield node
    node.close()


def begun(node: Node, wanted: dict[tuple[str, int], Any], version: int = 12) -> int:
    """Begin a session, and return its id."""
    got = Fetch(node, wanted, version, session_epoch=0)
    assert got.answer.session_id > 0
    return int(got.answer.session_id)


def ask(
    node: Node, session_id: int, epoch: int, wanted: Any = None, version: int = 12, **fields: Any
) -> Fetch:
    return Fetch(node, wanted or {}, version, session_id=session_id, session_epoch=epoch, **fields)


def put(node: Node, *partitions: int) -> None:
    for partition in partitions:
        node.store.partition("t", partition).append(b"x")


def forget(node: Node, version: int, *partitions: int) -> dict[str, Any]:
    named = {"topic_id": id_of(node, "t")} if version >= 13 else {"topic": "t"}
    return {"forgotten_topics_data": [_Request.ForgottenTopic(**named, partitions=list(partitions))]}


# --- what a session is told --------------------------------------------------------------------


def test_the_first_answer_has_all_partitions(node: Node) -> None:
    put(node, 1)
    for version in VERSIONS:
        got = Fetch(node, {T0: 0, T1: 0}, version, session_epoch=0)
        assert (got.numbers, got.codes) == ([0, 1], [0, 0])
        assert 1 <= got.answer.session_id <= INT32_MAX


@pytest.mark.parametrize("version", VERSIONS)
def test_an_incremental_answer_has_what_changed(node: Node, version: int) -> None:
    session = begun(node, {T0: 0, T1: 0, T2: 0}, version)
    assert ask(node, session, 1, version=version).numbers == []
    put(node, 1)
    got = ask(node, session, 2, version=version)
    assert (got.numbers, got.answer.session_id, len(got.part.records) > 0) == ([1], session, True)
    assert ask(node, session, 3, {T1: 1}, version).numbers == []


def test_records_are_told_until_they_were_fetched(node: Node) -> None:
    put(node, 0)
    session = begun(node, {T0: 0})
    assert ask(node, session, 1).numbers == [0]
    assert ask(node, session, 2, {T0: 1}).numbers == []


def test_a_new_high_watermark_is_told(node: Node) -> None:
    put(node, 0, 0)
    session = begun(node, {T0: {"fetch_offset": 2}})
    put(node, 0)
    got = ask(node, session, 1, {T0: {"fetch_offset": 3}})
    assert (got.numbers, got.part.high_watermark, bytes(got.part.records)) == ([0], 3, b"")
    assert ask(node, session, 2).numbers == []


def test_a_new_log_start_is_told(node: Node) -> None:
    put(node, 0, 0)
    session = begun(node, {T0: 2})
    node.store.partition("t", 0).delete_records(1)
    got = ask(node, session, 1)
    assert (got.numbers, got.part.log_start_offset) == ([0], 1)
    assert ask(node, session, 2).numbers == []


def test_an_error_is_told_again_and_again_and_its_end_too(node: Node) -> None:
    session = begun(node, {T0: 0, T1: 5})
    for epoch in (1, 2):
        assert ask(node, session, epoch).codes == [Code.OFFSET_OUT_OF_RANGE]
    got = ask(node, session, 3, {T1: 0})
    assert (got.numbers, got.codes) == ([1], [0])
    assert ask(node, session, 4).numbers == []


def test_a_diverging_epoch_is_told() -> None:
    wanted = Wanted("t", bytes(16), _Request.FetchPartition())
    same = {"high_watermark": 4, "log_start_offset": 0, "records": b""}
    assert [wanted.note_answer(_Response.PartitionData(**same)) for _ in range(2)] == [True, False]
    diverging = _Response.EpochEndOffset(epoch=3, end_offset=7)
    assert wanted.note_answer(_Response.PartitionData(**same, diverging_epoch=diverging))


def test_partitions_with_records_go_to_the_end(node: Node) -> None:
    """So that each has its turn where an answer is too small for all."""
    put(node, 0, 1, 2)
    session = begun(node, {T0: 0, T1: 0, T2: 0})
    served = []
    for epoch in range(1, 7):
        got = ask(node, session, epoch, max_bytes=1)
        served += [number for (_, number), part in got.parts.items() if part.records]
    assert served == [0, 1, 2, 0, 1, 2]


def test_partitions_are_added_and_changed(node: Node) -> None:
    session = begun(node, {T0: 0})
    put(node, 1, 1)
    got = ask(node, session, 1, {T1: {"fetch_offset": 0, "partition_max_bytes": 1}})
    assert (got.numbers, got.part.high_watermark) == ([1], 2)
    one = len(got.part.records)
    got = ask(node, session, 2, {T1: {"fetch_offset": 0}})
    assert len(got.part.records) == 2 * one


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_are_forgotten(node: Node, version: int) -> None:
    session = begun(node, {T0: 0, T1: 0}, version)
    put(node, 0, 1)
    got = ask(node, session, 1, version=version, **forget(node, version, 0, 2))
    assert got.numbers == [1]


def test_a_partition_that_is_named_twice_counts_once(node: Node) -> None:
    put(node, 0)
    part = _Request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
    last = _Request.FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=100)
    got = Fetch(node, {}, 12, topics=[_Request.FetchTopic(topic="t", partitions=[part, last])])
    assert (got.numbers, bytes(got.part.records)) == ([0], b"")


# --- epochs and errors -------------------------------------------------------------------------


def test_an_unknown_session(node: Node) -> None:
    for version in VERSIONS:
        answer = ask(node, 77, 1, version=version).answer
        assert (answer.error_code, answer.session_id, answer.responses) == (70, 0, [])


def test_an_epoch_out_of_turn(node: Node) -> None:
    session = begun(node, {T0: 0})
    for epoch in (2, 5, INT32_MAX, -2):
        answer = ask(node, session, epoch).answer
        assert (answer.error_code, answer.session_id, answer.responses) == (71, 0, [])
    assert ask(node, session, 1).answer.error_code == 0  # the session is as it was


def test_an_epoch_that_was_used(node: Node) -> None:
    session = begun(node, {T0: 0})
    assert ask(node, session, 1).answer.error_code == 0
    assert ask(node, session, 1).answer.error_code == Code.INVALID_FETCH_SESSION_EPOCH


def test_epochs_begin_anew_behind_the_largest() -> None:
    assert [next_epoch(e) for e in (-1, 0, 1, INT32_MAX - 1, INT32_MAX)] == [-1, 1, 2, INT32_MAX, 1]


@pytest.mark.parametrize(("begins", "goes_on"), [(12, 13), (13, 12)])
def test_a_session_has_names_or_ids(node: Node, begins: int, goes_on: int) -> None:
    session = begun(node, {T0: 0}, begins)
    assert ask(node, session, 1, version=goes_on).answer.error_code == Code.FETCH_SESSION_TOPIC_ID_ERROR
    assert ask(node, session, 1, version=begins).answer.error_code == 0


def test_a_parked_answer_of_a_session_that_went_on(node: Node) -> None:
    """Its records would be lost: the client gets an error, and begins a new session."""
    session = begun(node, {T0: 0})
    parked = ask(node, session, 1, max_wait_ms=1000, min_bytes=1)
    assert ask(node, session, 2).answer.error_code == 0
    put(node, 0)
    node.loop.turn()
    assert (parked.answer.error_code, parked.answer.session_id) == (71, session)
    assert parked.answer.responses == []


# --- topics ------------------------------------------------------------------------------------


def test_a_topic_that_was_deleted(node: Node) -> None:
    session = begun(node, {T0: 0}, 13)
    node.store.delete_topic("t")
    assert ask(node, session, 1, version=13).codes == [Code.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_topic_that_was_made_anew(node: Node) -> None:
    by_id, by_name = begun(node, {T0: 0}, 13), begun(node, {T0: 0}, 12)
    node.store.delete_topic("t")
    node.store.create_topic("t", partitions=1)
    put(node, 0)
    assert ask(node, by_id, 1, version=13).codes == [Code.INCONSISTENT_TOPIC_ID]
    assert ask(node, by_name, 1).codes == [0]


def test_an_unknown_id_stays_in_the_session(node: Node) -> None:
    part = _Request.FetchPartition(partition=0, partition_max_bytes=10)
    unknown = [_Request.FetchTopic(topic_id=b"\x07" * 16, partitions=[part])]
    session = Fetch(node, {}, 13, topics=unknown, session_epoch=0).answer.session_id
    assert ask(node, session, 1, version=13).codes == [Code.UNKNOWN_TOPIC_ID]


# --- beginnings and ends -----------------------------------------------------------------------


def test_no_session_is_asked_for(node: Node) -> None:
    got = Fetch(node, {T0: 0, T1: 0}, session_epoch=-1)
    assert (got.answer.session_id, got.numbers, len(fetches(node).sessions)) == (0, [0, 1], 0)


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_request_ends_the_session_that_it_names(node: Node, epoch: int) -> None:
    session = begun(node, {T0: 0})
    got = ask(node, session, epoch, {T0: 0})
    assert got.answer.session_id != session
    assert (got.answer.session_id > 0) is (epoch == 0)
    assert ask(node, session, 1).answer.error_code == Code.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_without_partitions_is_over(node: Node) -> None:
    session = begun(node, {T0: 0})
    answer = ask(node, session, 1, **forget(node, 12, 0)).answer
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert ask(node, session, 2).answer.error_code == Code.FETCH_SESSION_ID_NOT_FOUND


def test_no_slots(store: segstore.Store) -> None:
    """Each answer is a full one then."""
    store.create_topic("t")
    node = serving(store, max_incremental_fetch_session_cache_slots=0)
    assert Fetch(node, {T0: 0}, session_epoch=0).answer.session_id == 0
    node.close()


def test_a_throttled_answer_leaves_the_session(node: Node) -> None:
    session = begun(node, {T0: 0})
    throttle = fetches(node)._quotas.throttle("consumer_byte_rate", "tests", "ANONYMOUS")
    throttle.set_bound(1000)
    throttle.charge(1_000_000)
    put(node, 0)
    got = ask(node, session, 1)
    assert (got.answer.session_id, got.numbers, got.answer.error_code) == (session, [], 0)
    assert got.answer.throttle_time_ms > 0
    throttle.set_bound(None)
    assert ask(node, session, 2).numbers == [0]


# --- eviction ----------------------------------------------------------------------------------


class Cache:
    """Sessions of given sizes without a server, and a clock that tests set."""

    def __init__(self, slots: int) -> None:
        self.now = 1000
        self.sessions = FetchSessions(slots, lambda: self.now, random.Random(1))

    def begin(self, size: int) -> int:
        return self.sessions.begin({("t", n): Any for n in range(size)}, False)  # type: ignore[misc]

    def use(self, session_id: int) -> Code | None:
        session = self.sessions._sessions.get(session_id)
        body = SimpleNamespace(
            session_id=session_id,
            session_epoch=session.epoch if session else 1,
            topics=[],
            forgotten_topics_data=[],
        )
        if session is not None:
            session.wanted = {key: SimpleNamespace(topic="t") for key in session.wanted}
        found = self.sessions.open(12, body, None)  # type: ignore[arg-type]
        return found if isinstance(found, Code) else None

    def has(self, session_id: int) -> bool:
        return session_id in self.sessions._sessions


def test_a_stale_session_gives_way() -> None:
    cache = Cache(2)
    first, second = cache.begin(9), cache.begin(9)
    cache.now += EVICTION_MS
    assert cache.begin(1) == 0  # not stale yet
    cache.use(first)
    cache.now += 1
    third = cache.begin(1)
    assert [cache.has(each) for each in (first, second, third)] == [True, False, True]


def test_a_smaller_session_gives_way_once_it_is_old() -> None:
    cache = Cache(2)
    small, large = cache.begin(2), cache.begin(5)
    assert cache.begin(6) == 0
    cache.now += EVICTION_MS + 1
    for each in (small, large):
        assert cache.use(each) is None
    assert cache.begin(2) == 0  # it is not larger
    third = cache.begin(3)
    assert [cache.has(each) for each in (small, large, third)] == [False, True, True]
    assert cache.begin(3) == 0  # the third is too young
    assert cache.use(small) is Code.FETCH_SESSION_ID_NOT_FOUND


def test_ids_are_of_one_session() -> None:
    """An id that is drawn again is not given twice."""
    cache = Cache(3)
    drawn = iter([5, 5, 7, 7, 5, 6])
    cache.sessions._rng = SimpleNamespace(randint=lambda low, high: next(drawn))  # type: ignore[assignment]
    assert [cache.begin(1) for _ in range(3)] == [5, 7, 6]
