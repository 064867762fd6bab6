"""A ShareFetch whose answer can't be given, because a connection, a session, the server or the store ends:
other members are given its records.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fetches import serving
from share_members import ACCEPT, FINAL, ShareMember
from share_nodes import clock as clock
from share_nodes import member as member
from share_nodes import node as node
from share_nodes import put, turn, waiting
from share_nodes import store as store

import segstore
from segstore.coordinator.quotas import CONSUMER_BYTE_RATE, quotas
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared
from segstore.protocol.error_codes import Code
from segstore.server.handlers.share_fetches import ShareFetches
from segstore.server.node import Node


def test_q93_a_parked_fetch_of_a_broken_connection_grants_nothing(node: Node) -> None:
    member, other = ShareMember(node), ShareMember(node, "b")
    member.beat()
    told = waiting(member)
    member.channel.close()
    put(node, 1)
    turn(node)
    assert told.body is None
    assert other.fetch().acquired() == [(0, 0, 1)]


def test_q93_all_sessions_of_a_connection_end_with_it(member: ShareMember) -> None:
    """Also if one of them was closed before."""
    put(member.node, 5, 1)
    put(member.node, 5, 2)
    mates = [ShareMember(member.node, name, channel=member.channel) for name in "bc"]
    member.fetch()
    for partition, mate in enumerate(mates, 1):
        assert mate.fetch(wanted=(partition,)).acquired(partition) == [(0, 4, 1)]
    mates[0].fetch(wanted=(), epoch=FINAL)
    member.channel.close()
    member.node.loop.run()
    other = ShareMember(member.node, "d")
    told = other.fetch(wanted=(0, 1, 2), max_records=1000)
    assert [told.acquired(number) for number in range(3)] == [[(0, 9, 2)], [(0, 4, 2)], [(0, 4, 2)]]


def test_q94_a_connection_that_breaks_while_records_are_acquired(member: ShareMember) -> None:
    """A worker has acquired them, and the loop finds out: their delivery counts for nothing."""
    loop = member.node.loop
    member.fetch(wanted=())
    run, loop.run = loop.run, lambda: None  # type: ignore[method-assign]
    member.fetch()
    calls = list(loop.calls)
    loop.calls.clear()
    member.channel.close()
    loop.calls.extendleft(reversed(calls))
    loop.run = run  # type: ignore[method-assign]
    loop.run()
    assert ShareMember(member.node, "b").fetch().acquired() == [(0, 9, 1)]


ENDS: dict[str, Callable[[ShareMember], object]] = {
    "connection": lambda member: member.channel.close(),
    "final epoch": lambda member: ShareMember(member.node).acknowledge(epoch=FINAL),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_q94_a_session_s_end_that_is_faster_than_the_loop(
    member: ShareMember, monkeypatch: pytest.MonkeyPatch, end: Callable[[ShareMember], object]
) -> None:
    """A worker has acquired records, and another one releases what the member holds, before the loop finds
    that nobody can be answered: their delivery counts for nothing.
    """
    loop, works = member.node.loop, []
    member.fetch(wanted=())
    with monkeypatch.context() as patch:
        patch.setattr(loop, "work", lambda run, done, waits=False: works.append((run, done)))
        member.fetch()
    ((run, done),) = works
    acquired = run()
    end(member)
    loop.run()
    done(acquired)
    loop.run()
    assert ShareMember(member.node, "b").fetch().acquired() == [(0, 9, 1)]


def test_q94_a_session_that_moves_on_while_a_fetch_waits(node: Node) -> None:
    member = ShareMember(node)
    member.beat()
    told = waiting(member)
    put(node, 1)
    elsewhere = ShareMember(node)
    assert elsewhere.fetch(epoch=1).acquired() == [(0, 0, 1)]
    assert told.code == Code.INVALID_SHARE_SESSION_EPOCH


@pytest.mark.parametrize("epoch", [0, FINAL], ids=["begins anew", "ends"])
def test_a_session_that_is_over_while_a_fetch_waits(
    node: Node, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """The fetch is answered at once, and acquires nothing more."""
    member = ShareMember(node)
    member.beat()
    told = waiting(member)
    asked: list[Any] = []
    monkeypatch.setattr(shared(node.store, ShareCoordinator), "acquire", lambda *_: asked.append(_) or [])
    assert ShareMember(node).fetch(wanted=(), epoch=epoch).code == Code.NONE
    assert (told.code, asked) == (Code.INVALID_SHARE_SESSION_EPOCH, [])


def test_nothing_is_kept_of_sessions_that_are_over(member: ShareMember) -> None:
    fetches = member.node.part(ShareFetches)
    member.fetch(epoch=0)
    member.fetch(epoch=0)
    ShareMember(member.node, "b").fetch(wanted=(), epoch=0)
    ShareMember(member.node, "b").fetch(wanted=(), epoch=FINAL)
    waiting(member, epoch=1)
    member.channel.close()
    member.node.loop.run()
    assert len(fetches.sessions) == len(fetches.waits) == len(fetches.waits._groups) == 0
    assert (fetches._parked, fetches._granted, fetches.sessions._by_group) == ({}, {}, {})


def test_q94_a_throttled_client_acquires_nothing(member: ShareMember) -> None:
    """Its acknowledgements are taken all the same."""
    quotas(member.node.store).alter("slow", {CONSUMER_BYTE_RATE: 10})
    put(member.node, 10)
    member.client_id = "slow"
    told = member.fetch(max_records=1)
    assert told.acquired() == [(0, 9, 1)]
    assert told.body.throttle_time_ms > 0
    told = member.fetch({0: [(0, 9, [ACCEPT])]})
    assert (told.acknowledged, told.acquired()) == ({0: 0}, [])
    assert told.body.throttle_time_ms > 0
    assert ShareMember(member.node, "b").fetch().acquired() == [(10, 19, 1)]


def test_the_server_s_end_frees_locks(member: ShareMember) -> None:
    member.fetch()
    member.node.close()
    member.node.loop.run()
    again = serving(member.node.store)
    assert ShareMember(again, "b").fetch().acquired() == [(0, 9, 2)]
    again.close()


def test_the_store_s_end_ends_waits(store_dir: Path) -> None:
    store = segstore.open(store_dir)
    store.create_topic("t")
    node = serving(store)
    member = ShareMember(node)
    member.beat()
    told = waiting(member)
    store.close()
    turn(node)
    assert told.codes == {0: Code.NOT_LEADER_OR_FOLLOWER}
    node.close()
