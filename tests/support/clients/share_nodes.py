"""A node over a store with share groups, as fixtures: its loop and its clock are turned by the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fetches import serving
from share_members import ShareMember

import segstore
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared
from segstore.protocol.error_codes import Code
from segstore.server.node import Node


class Clock:
    """A monotonic clock in ms that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store_dir: Path, clock: Clock) -> Iterator[segstore.Store]:
    config = {
        "offsets.topic.num.partitions": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.share.max.size": 3,
        "group.share.max.share.sessions": 3,
    }
    with segstore.open(store_dir, config=config) as store:
        store.create_topic("t", partitions=3)
        group_settings(store).alter("g", {"share.auto.offset.reset": "earliest"})
        shared(store, ShareCoordinator, lambda store: ShareCoordinator(store, clock))
        yield store


@pytest.fixture
def node(store: segstore.Store) -> Iterator[Node]:
    node = serving(store)
    yield node
    node.close()
    node.loop.run()


@pytest.fixture
def member(node: Node) -> ShareMember:
    """A member of the group, which has a session; partition 0 has ten records in one batch."""
    put(node, 10)
    member = ShareMember(node)
    assert member.beat().error_code == Code.NONE
    return member


def put(node: Node, count: int, partition: int = 0) -> None:
    node.store.partition("t", partition).append_batch([b"x"] * count)


def turn(node: Node) -> None:
    """Let the loop see what was appended."""
    node.loop.turn()


def waiting(member: ShareMember, **fields: Any) -> Any:
    """Return a fetch that waits."""
    told = member.fetch(**{"max_wait_ms": 1000, **fields})
    assert told.body is None
    return told
