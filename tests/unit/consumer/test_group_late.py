"""A member that could not poll because of the store itself, and not because of its own work, joins again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consumers import fill
from groups import MAX_POLL_MS, Monotonic, coordinator, member
from waiting import until

import segstore
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets

MOST_JOINS = 5


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config={"offsets.topic.num.partitions": 1}) as store:
        yield store


def test_a_slow_disk_does_not_keep_a_member_out_for_ever(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first assignment takes longer to be written than max_poll_interval_ms: it joins once more."""
    clock, joins, slow = Monotonic(), [], [2 * MAX_POLL_MS]
    coordinator(store, clock)
    join, write = GroupCoordinator.join, GroupOffsets.write_group

    def counted(self: GroupCoordinator, *arguments: Any) -> Any:
        joins.append(arguments)
        assert len(joins) <= MOST_JOINS, "it joins again and again within one poll"
        return join(self, *arguments)

    def slowly(self: GroupOffsets, record: Any) -> None:
        clock.now += slow.pop() if slow else 0
        write(self, record)

    monkeypatch.setattr(GroupCoordinator, "join", counted)
    monkeypatch.setattr(GroupOffsets, "write_group", slowly)
    fill(store)
    with member(store, "t") as consumer:
        assert until(consumer.poll)
        assert len(coordinator(store).members("g")) == 1
    assert slow == []
