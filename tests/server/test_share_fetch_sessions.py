"""Sessions of ShareFetch and ShareAcknowledge (KIP-932): their epochs, their number, their partitions."""

from __future__ import annotations

import pytest
from share_members import ACCEPT, FINAL, ShareMember
from share_nodes import clock as clock
from share_nodes import member as member
from share_nodes import node as node
from share_nodes import put
from share_nodes import store as store

from segstore.protocol.error_codes import Code
from segstore.server.node import Node


def test_q89_epochs(member: ShareMember) -> None:
    assert member.fetch(epoch=1).code == Code.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=1).code == Code.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=0).code == Code.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch(epoch=FINAL).code == Code.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=FINAL).code == Code.SHARE_SESSION_NOT_FOUND
    assert member.fetch(epoch=0).acquired() == [(0, 9, 1)]
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}, epoch=0).code == Code.INVALID_SHARE_SESSION_EPOCH
    for epoch in (2, 7, -2):
        assert member.fetch(epoch=epoch).code == Code.INVALID_SHARE_SESSION_EPOCH
        assert member.acknowledge(epoch=epoch).code == Code.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch(epoch=1).code == Code.NONE
    assert member.acknowledge({0: [(0, 9, [ACCEPT])]}, epoch=2).codes == {0: 0}
    assert member.fetch(epoch=3).code == Code.NONE


def test_q89_no_session_begins_with_acknowledgements(member: ShareMember) -> None:
    """The session that is there stays as it is."""
    member.fetch(epoch=0)
    told = member.fetch({0: [(0, 9, [ACCEPT])]}, epoch=0)
    assert told.code == Code.INVALID_REQUEST
    assert member.acknowledge({0: [(0, 9, [ACCEPT])]}, epoch=1).codes == {0: 0}


def test_q89_a_new_session_of_a_member_leaves_its_locks(member: ShareMember) -> None:
    member.fetch(epoch=0)
    again = ShareMember(member.node, member.member)  # by another connection
    assert again.fetch(epoch=0).acquired() == []
    member.channel.close()  # which is no session's any more
    assert again.fetch(epoch=1).acquired() == []
    assert again.acknowledge({0: [(0, 9, [ACCEPT])]}, epoch=2).codes == {0: 0}


@pytest.mark.parametrize("ends_by", ["fetch", "acknowledge"])
def test_q35_the_final_epoch_frees_the_locks(member: ShareMember, ends_by: str) -> None:
    member.fetch()
    acks = {0: [(0, 3, [ACCEPT])]}
    if ends_by == "fetch":
        last = member.fetch(acks, wanted=(), epoch=FINAL)
        assert last.acknowledged == {0: 0}
    else:
        last = member.acknowledge(acks, epoch=FINAL)
        assert last.codes == {0: 0}
    assert member.fetch(epoch=1).code == Code.SHARE_SESSION_NOT_FOUND
    other = ShareMember(member.node, "b")
    assert other.fetch().acquired() == [(4, 9, 2)]


def test_q88_there_is_a_limit_of_sessions(node: Node) -> None:
    """The answer comes after the time that the fetch would have waited, for its client asks at once again."""
    for name in "abc":
        assert ShareMember(node, name).fetch().code == Code.NONE
    late = ShareMember(node, "d")
    waiting = late.fetch(max_wait_ms=500)
    node.loop.pass_time(0.4)
    assert waiting.body is None
    node.loop.pass_time(0.2)
    assert waiting.code == Code.SHARE_SESSION_LIMIT_REACHED
    assert late.fetch(epoch=0).code == Code.SHARE_SESSION_LIMIT_REACHED
    first = ShareMember(node, "a")
    assert first.fetch(epoch=0).code == Code.NONE  # its own place
    assert first.fetch(epoch=FINAL, wanted=()).code == Code.NONE
    assert late.fetch(epoch=0).code == Code.NONE


def test_q90_partitions_of_a_session(member: ShareMember) -> None:
    node = member.node
    for partition in (1, 2):
        put(node, 1, partition)
    assert member.fetch(wanted=(0, 1)).acquired() == [(0, 9, 1)]
    told = member.fetch(wanted=(2,))
    assert [told.acquired(number) for number in (0, 1, 2)] == [[], [], [(0, 0, 1)]]
    put(node, 1, 1)
    assert member.fetch(wanted=(), forgotten=[1]).acquired(1) == []
    assert member.fetch(wanted=(1,)).acquired(1) == [(1, 1, 1)]


def test_q90_a_partition_that_is_forgotten_may_be_acknowledged(member: ShareMember) -> None:
    member.fetch()
    told = member.fetch({0: [(0, 9, [ACCEPT])]}, wanted=(), forgotten=[0])
    assert told.acknowledged == {0: 0}
    put(member.node, 1)
    assert member.fetch(wanted=()).acquired() == []


def test_q90_acknowledgements_alone_add_a_partition(member: ShareMember) -> None:
    member.fetch()
    other = ShareMember(member.node, "b")
    other.fetch(wanted=())
    told = other.fetch({0: [(0, 0, [ACCEPT])]}, wanted=())
    assert told.acknowledged == {0: Code.INVALID_RECORD_STATE}
    put(member.node, 1)
    assert other.fetch(wanted=()).acquired() == [(10, 10, 1)]


def test_q91_later_answers_name_partitions_with_news(node: Node) -> None:
    member = ShareMember(node)
    assert set(member.fetch(wanted=(0, 1)).codes) == {0, 1}  # both are new, and have an error
    assert member.fetch(wanted=()).codes == dict.fromkeys((0, 1), Code.UNKNOWN_SERVER_ERROR)
    member.beat()
    assert member.fetch(wanted=()).codes == {0: 0, 1: 0}  # had an error the last time
    assert member.fetch(wanted=()).codes == {}
    assert member.fetch(wanted=(2,)).codes == {2: 0}  # is new
    put(node, 1, 1)
    assert list(member.fetch(wanted=()).codes) == [1]
    assert member.fetch({1: [(0, 0, [ACCEPT])]}, wanted=()).acknowledged == {1: 0}
