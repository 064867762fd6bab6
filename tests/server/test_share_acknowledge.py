"""Acknowledgements in ShareFetch and ShareAcknowledge (KIP-932): which are refused, and which are done."""

from __future__ import annotations

from typing import Any

import pytest
from share_members import ACCEPT, GAP, REJECT, RELEASE, RENEW, ShareMember
from share_nodes import Clock, put, waiting
from share_nodes import clock as clock
from share_nodes import member as member
from share_nodes import node as node
from share_nodes import store as store

from segstore.coordinator.group_settings import group_settings
from segstore.protocol.error_codes import Code

FORMS = {
    "last below first": ([(5, 4, [ACCEPT])], Code.INVALID_REQUEST),
    "out of order": ([(4, 6, [ACCEPT]), (3, 3, [ACCEPT])], Code.INVALID_REQUEST),
    "no types": ([(0, 1, [])], Code.INVALID_REQUEST),
    "types of other offsets": ([(0, 2, [ACCEPT, ACCEPT])], Code.INVALID_REQUEST),
    "an unknown type": ([(0, 0, [5])], Code.INVALID_REQUEST),
    "a negative type": ([(0, 0, [-1])], Code.INVALID_REQUEST),
    "an unknown type among others": ([(0, 1, [ACCEPT, 5])], Code.INVALID_REQUEST),
    "a renewal in a request of others": ([(0, 0, [RENEW])], Code.INVALID_REQUEST),
    "behind what was fetched": ([(9, 10, [ACCEPT])], Code.INVALID_REQUEST),
    "the same offset twice": ([(0, 4, [ACCEPT]), (4, 4, [ACCEPT])], Code.INVALID_RECORD_STATE),
    "one type for all": ([(0, 9, [ACCEPT])], Code.NONE),
    "a type for each": ([(0, 4, [ACCEPT, RELEASE, REJECT, GAP, ACCEPT]), (5, 9, [GAP])], Code.NONE),
}


@pytest.mark.parametrize("alone", [True, False], ids=["acknowledge", "fetch"])
@pytest.mark.parametrize(("batches", "code"), FORMS.values(), ids=FORMS)
def test_forms_of_acknowledgements(member: ShareMember, batches: Any, code: Code, alone: bool) -> None:
    """Nothing is done of a partition with a fault; other partitions have none."""
    put(member.node, 1, 1)
    member.fetch(wanted=(0, 1))
    acks = {0: batches, 1: [(0, 0, [ACCEPT])]}
    if not member.fetch(wanted=(1,)).acquired(1):
        acks = {0: batches}
    told = member.acknowledge(acks) if alone else member.fetch(acks, max_records=0)
    found = told.codes if alone else told.acknowledged
    assert found == dict.fromkeys(acks, 0) | {0: code}
    if code:
        assert member.acknowledge({0: [(0, 9, [ACCEPT])]}).codes == {0: 0}


def test_a_partition_without_a_fault_beside_one_with(member: ShareMember) -> None:
    put(member.node, 1, 1)
    member.fetch(wanted=(0,))
    member.fetch(wanted=(1,))
    told = member.acknowledge({0: [(3, 2, [ACCEPT])], 1: [(0, 0, [ACCEPT])]})
    assert told.codes == {0: Code.INVALID_REQUEST, 1: 0}


def test_renewals_need_version_2(member: ShareMember) -> None:
    old = ShareMember(member.node, member.member, version=1)
    old.fetch()
    assert old.acknowledge({0: [(0, 0, [RENEW])]}).codes == {0: Code.INVALID_REQUEST}
    assert old.acknowledge({0: [(0, 0, [REJECT])]}).codes == {0: 0}


def test_q32_a_renewed_lock_begins_anew(member: ShareMember, clock: Clock) -> None:
    member.fetch()
    clock.now += 20_000
    told = member.acknowledge({0: [(0, 4, [RENEW])]}, is_renew_ack=True)
    assert (told.codes, told.body.acquisition_lock_timeout_ms) == ({0: 0}, 30_000)
    clock.now += 20_000
    assert ShareMember(member.node, "b").fetch().acquired() == [(5, 9, 2)]
    assert member.acknowledge({0: [(0, 4, [ACCEPT])]}).codes == {0: 0}


def test_q32_renewals_may_be_off(member: ShareMember) -> None:
    group_settings(member.node.store).alter("g", {"share.renew.acknowledge.enable": False})
    member.fetch()
    told = member.acknowledge({0: [(0, 4, [RENEW])]}, is_renew_ack=True)
    assert told.codes == {0: Code.INVALID_RECORD_STATE}


def test_q30_who_acknowledges_must_hold(member: ShareMember, clock: Clock) -> None:
    member.fetch()
    other = ShareMember(member.node, "b")
    other.fetch()
    assert other.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: Code.INVALID_RECORD_STATE}
    clock.now += 30_001
    assert other.fetch().acquired() == [(0, 9, 2)]
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: Code.INVALID_RECORD_STATE}
    assert other.acknowledge({0: [(0, 9, [ACCEPT])]}).codes == {0: 0}
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: 0}  # below the start: Q29


def test_q31_all_or_nothing_of_a_partition(member: ShareMember) -> None:
    member.fetch()
    member.acknowledge({0: [(4, 4, [ACCEPT])]})
    told = member.acknowledge({0: [(0, 0, [ACCEPT]), (4, 4, [ACCEPT])]})
    assert told.codes == {0: Code.INVALID_RECORD_STATE}
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: 0}


def test_q95_a_fetch_takes_what_its_request_releases(member: ShareMember) -> None:
    member.fetch()
    told = member.fetch({0: [(0, 4, [RELEASE]), (5, 9, [ACCEPT])]})
    assert (told.acknowledged, told.acquired()) == ({0: 0}, [(0, 4, 2)])


def test_q96_an_error_of_acknowledgements_stands_beside_the_fetch_s(member: ShareMember) -> None:
    member.fetch(max_records=1, share_acquire_mode=1)
    (row,) = member.fetch({0: [(7, 7, [ACCEPT])]}).rows.values()
    assert (row.error_code, row.acknowledge_error_code) == (Code.NONE, Code.INVALID_RECORD_STATE)
    assert len(row.acquired_records) == 1


def test_acknowledgements_are_answered_behind_the_wait(member: ShareMember) -> None:
    member.fetch()
    told = waiting(member, acks={0: [(0, 9, [ACCEPT])]})
    member.node.loop.pass_time(1.1)
    assert told.acknowledged == {0: 0}
