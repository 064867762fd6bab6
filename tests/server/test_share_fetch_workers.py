"""Which thread does the work of a ShareFetch: the loop, if nothing is waited for, else a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from calls import FakeLoop
from share_members import ACCEPT, FINAL, ShareMember
from share_nodes import clock as clock
from share_nodes import member as member
from share_nodes import node as node
from share_nodes import put, turn
from share_nodes import store as store

import segstore
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.share import grants
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared
from segstore.protocol.error_codes import Code
from segstore.server.fetching.share_purgatory import AcquirableState
from segstore.storage.producers.aborted_transactions import MOST_SEARCHED


def with_flushes(store: segstore.Store) -> None:
    """The disk is waited for after each write of a state."""
    store.alter_topic("__share_group_state", {"flush.messages": 1})


def with_far_outcomes(store: segstore.Store) -> None:
    """The group reads committed records of a log that was not searched for aborted transactions yet."""
    group_settings(store).alter("g", {"share.isolation.level": "read_committed"})
    store.partition("t", 0).append_batch([b"x"] * (MOST_SEARCHED + 1))


def with_another_start(store: segstore.Store) -> None:
    """The share partition is loaded anew."""
    shared(store, ShareCoordinator).drop_group("g")


SLOW: dict[str, tuple[Callable[[segstore.Store], None], dict[str, Any]]] = {
    "the disk is waited for": (with_flushes, {}),
    "aborted transactions are to be searched": (with_far_outcomes, {}),
    "a state is to be loaded": (with_another_start, {}),
    "very many records": (lambda store: None, {"max_records": 10_001}),
    "the last request of a session": (lambda store: None, {"epoch": FINAL, "wanted": ()}),
}


def works(member: ShareMember) -> int:
    """How often a worker thread was handed something."""
    loop = member.node.loop
    assert isinstance(loop, FakeLoop)
    return loop.works


def test_what_waits_for_nothing_is_done_at_once(member: ShareMember) -> None:
    member.fetch()  # which loads the share partition
    before = works(member)
    put(member.node, 10)
    assert member.fetch({0: [(0, 9, [ACCEPT])]}).acquired() == [(10, 19, 1)]
    assert member.acknowledge({0: [(10, 14, [ACCEPT])]}).codes == {0: 0}
    waiting = member.fetch(max_wait_ms=500)
    assert waiting.body is None
    assert works(member) == before + 1  # to look for records behind those that can't be acquired
    put(member.node, 1)
    turn(member.node)
    assert waiting.acquired() == [(20, 20, 1)]
    assert works(member) == before + 1


def test_a_long_way_to_the_next_record_is_a_workers(
    member: ShareMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop reads each log once: what it finds may all be of aborted transactions."""
    node, threads = member.node, []
    group_settings(node.store).alter("g", {"share.isolation.level": "read_committed"})
    member.fetch()
    producer = segstore.Producer(node.store, transactional_id="x", linger_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(30):
        producer.send("t", value=b"x", partition=0).get(10)
    producer.abort_transaction()
    producer.close()
    put(node, 1)
    read = grants.read_batches

    def reading(*args: Any, **terms: Any) -> Any:
        threads.append(works(member))
        return read(*args, **terms)

    monkeypatch.setattr(grants, "read_batches", reading)
    before = works(member)
    assert member.fetch(max_records=1).acquired() == [(40, 40, 1)]  # the marker, a gap to the client
    assert threads.count(before) == 1
    assert threads.count(before + 1) > 10


def test_a_members_next_session_waits_for_the_release_of_its_last(member: ShareMember) -> None:
    put(member.node, 10)
    assert member.fetch(max_records=1).acquired() == [(0, 9, 1)]
    member.channel.close()  # the loop has not run since: the release is still to come
    again = ShareMember(member.node, member.member)
    found = again.fetch(max_records=1)
    assert found.acquired() == [(0, 9, 2)]
    assert again.acknowledge({0: [(0, 9, [ACCEPT])]}).codes == {0: 0}


@pytest.mark.parametrize(("change", "fields"), SLOW.values(), ids=SLOW)
def test_what_may_wait_is_a_workers(
    member: ShareMember,
    change: Callable[[segstore.Store], None],
    fields: dict[str, Any],
) -> None:
    member.fetch()
    change(member.node.store)
    before = works(member)
    told = member.fetch({0: [(0, 9, [ACCEPT])]}, **fields)
    assert told.code == Code.NONE
    assert works(member) == before + 1
    put(member.node, 1)


def test_acknowledgements_alone_that_may_wait_are_a_workers(member: ShareMember) -> None:
    member.fetch()
    with_flushes(member.node.store)
    before = works(member)
    assert member.acknowledge({0: [(0, 9, [ACCEPT])]}).codes == {0: 0}
    assert works(member) == before + 1


def test_news_that_come_again_and_again_do_not_hold_up_the_loop(
    member: ShareMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that finds nothing, but news since it has looked, is a worker's from then on."""
    member.fetch()
    looks = iter([True, True, False])
    monkeypatch.setattr(AcquirableState, "differs", lambda *_: next(looks))
    before = works(member)
    waiting = member.fetch(max_wait_ms=500)
    assert waiting.body is None
    assert works(member) == before + 3
