"""Quotas and producer ids of a replicated store outlive each of its directories."""

from __future__ import annotations

from typing import Any

import pytest
from plain_stores import filled
from replicated_stores import QUICK, Directories, await_in_sync, states
from waiting import until

import segstore
from segstore.coordinator.quotas import Entity, quotas
from segstore.coordinator.transaction.producer_ids import BLOCK, ProducerIds

pytestmark = pytest.mark.kind("replicated stores")

RATES = {"producer_byte_rate": 1_000_000}


def ids(store: Any, count: int = 3) -> list[int]:
    """Some producer ids, as a coordinator that has just begun hands them out."""
    made = ProducerIds(store)
    return [made.next() for _ in range(count)]


def test_no_producer_id_is_handed_out_twice_where_directories_come_and_go(three: Directories) -> None:
    """It was: each open went by a file in the first directory that was there."""
    seen: list[int] = []
    for away in (None, 0, None, 1, 0, 2, None):
        if away is not None:
            three.lose(away)
        with three.open() as store:
            seen += ids(store)
        three.bring_back()
    assert len({*seen}) == len(seen)
    assert seen == sorted(seen)


def test_quotas_are_those_that_were_set_last(three: Directories) -> None:
    with three.open() as store:
        quotas(store).alter("client", RATES)
        quotas(store).alter_entity(Entity("user", "client"), RATES)
    three.lose(0)
    with three.open() as store:
        both = {Entity(None, "client"): RATES, Entity("user", "client"): RATES}
        assert quotas(store).limits() == both
        quotas(store).alter("client", {"producer_byte_rate": 7_000})
    three.bring_back()
    for _ in range(2):
        with three.open() as store:
            assert quotas(store).effective("client") == {"producer_byte_rate": 7_000}
    with segstore.open(three.paths[1], mode="r") as reader:
        assert quotas(reader).effective("client") == {"producer_byte_rate": 7_000}
        assert quotas(reader).effective("client", "user") == RATES


@pytest.mark.parametrize("at", [0, 1])
def test_a_plain_store_brings_them_and_gets_them_back(three: Directories, at: int) -> None:
    filled(three.paths[at])
    with segstore.open(three.paths[at]) as plain:
        quotas(plain).alter("client", RATES)
        first = ids(plain)
    with three.open(adopt=True) as store:
        assert quotas(store).describe() == {"client": RATES}
        quotas(store).alter("<default>", RATES)
        second = ids(store)
        store.reassign({key: [at, 2] for key in states(store)})
        until(lambda: store.reassignments() == {})
        await_in_sync(store)
    three.judged = False
    segstore.unreplicate(three.paths, 2, config=QUICK)
    with segstore.open(three.paths[2]) as plain:
        assert quotas(plain).describe() == {"client": RATES, "<default>": RATES}
        third = ids(plain)
    assert first[0] // BLOCK < second[0] // BLOCK < third[0] // BLOCK
