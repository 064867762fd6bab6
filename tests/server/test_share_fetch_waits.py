"""How long a ShareFetch waits for records, and which news end its wait (KIP-932)."""

from __future__ import annotations

from typing import Any

import pytest
from share_members import ACCEPT, RELEASE, ShareMember
from share_nodes import Clock, put, turn, waiting
from share_nodes import clock as clock
from share_nodes import member as member
from share_nodes import node as node
from share_nodes import store as store

from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared
from segstore.protocol.error_codes import Code
from segstore.server.handlers.share_fetches import ShareFetches
from segstore.server.node import Node


def test_q28_an_append_ends_the_wait(node: Node) -> None:
    member = ShareMember(node)
    member.beat()
    told = waiting(member)
    put(node, 1, 1)  # another partition
    turn(node)
    assert told.body is None
    put(node, 2)
    turn(node)
    assert told.acquired() == [(0, 1, 1)]


@pytest.mark.parametrize("news", ["an append", "a release"])
def test_q28_news_of_the_time_in_which_a_worker_acquires(
    member: ShareMember, monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    """It is not missed: nobody tells of it again."""
    member.fetch()
    coordinator = shared(member.node.store, ShareCoordinator)
    acquire = coordinator.acquire

    def then_news(*given: Any) -> Any:
        found = acquire(*given)
        monkeypatch.undo()
        if news == "an append":
            put(member.node, 2)
        else:
            coordinator.release("g", "a", [(topic_of(member), 0)])
            member.node.loop.run()  # which hears of it before the worker's end
        return found

    monkeypatch.setattr(coordinator, "acquire", then_news)
    told = ShareMember(member.node, "b").fetch(max_wait_ms=1000)
    assert told.acquired() == [(10, 11, 1) if news == "an append" else (0, 9, 2)]


def topic_of(member: ShareMember) -> str:
    return member.node.store.topics()["t"].topic_id


def test_q28_a_release_ends_the_wait(member: ShareMember) -> None:
    member.fetch()
    told = waiting(ShareMember(member.node, "b"))
    member.acknowledge({0: [(3, 4, [RELEASE])]})
    assert told.acquired() == [(3, 4, 2)]


def test_q28_the_end_of_a_lock_ends_the_wait(member: ShareMember, clock: Clock) -> None:
    member.fetch()
    told = waiting(ShareMember(member.node, "b"))
    clock.now += 30_001
    shared(member.node.store, ShareCoordinator)._timer.ring()
    assert told.acquired() == [(0, 9, 2)]


def test_q28_a_full_window_that_moves_ends_the_wait(member: ShareMember) -> None:
    group_settings(member.node.store).alter("g", {"share.partition.max.record.locks": 100})
    put(member.node, 100)
    member.fetch(max_records=500)
    put(member.node, 1)
    told = waiting(ShareMember(member.node, "b"))
    member.acknowledge({0: [(0, 109, [ACCEPT])]})
    assert told.acquired() == [(110, 110, 1)]


def test_q28_the_time_is_over(node: Node) -> None:
    member = ShareMember(node)
    member.beat()
    told = waiting(member)
    node.loop.pass_time(0.99)
    assert told.body is None
    node.loop.pass_time(0.02)
    assert (told.code, told.acquired()) == (Code.NONE, [])
    assert node.part(ShareFetches).waits.expired == 1


def test_q28_too_few_bytes_are_given_back(member: ShareMember) -> None:
    """Meanwhile another member has them; at the end of the wait the fetch takes what there is."""
    greedy = ShareMember(member.node, "b")
    told = waiting(greedy, min_bytes=1000)
    assert member.fetch().acquired() == [(0, 9, 1)]
    put(member.node, 3)
    turn(member.node)
    assert told.body is None
    member.node.loop.pass_time(1.1)
    assert told.acquired() == [(10, 12, 1)]


def test_q28_enough_bytes_end_the_wait(member: ShareMember) -> None:
    told = waiting(member, min_bytes=1000)
    for _ in range(10):
        put(member.node, 10)
        turn(member.node)
    assert told.acquired()[0][0] == 0


def test_two_fetches_that_want_more_leave_each_other_alone(member: ShareMember) -> None:
    """What one gives back does not wake the other: that would go on for ever."""
    first = waiting(ShareMember(member.node, "b"), min_bytes=1000)
    second = waiting(ShareMember(member.node, "c"), min_bytes=1000)
    put(member.node, 1)
    turn(member.node)
    assert (first.body, second.body) == (None, None)
