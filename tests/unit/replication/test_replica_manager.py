"""What the directories of a replicated store tell its controller while no majority of voters answers it."""

from __future__ import annotations

from typing import Any

import pytest
from replication import NOW, controller

from segstore.replication import quorum_controller
from segstore.replication.metadata.image import MetadataImage
from segstore.replication.metadata.records import TopicRecord
from segstore.replication.quorum_controller import Decision, Event, QuorumController
from segstore.replication.replica_manager import ReplicaManager

DIRECTORIES = 0, 1, 2
STALL_MS, BEAT_MS = 300_000, 300
TOPIC: Event = lambda core, now: Decision([TopicRecord("t", "id")])  # noqa: E731


class Hanging:
    """A metadata log whose voters answer after minutes, in which all directories send heartbeats."""

    next_offset = 0

    def __init__(self, manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch) -> None:
        self._manager, self.now = manager, NOW
        monkeypatch.setattr(quorum_controller, "now_ms", lambda: self.now)

    def append(self, records: Any) -> None:
        for _ in range(STALL_MS // BEAT_MS):
            self.now += BEAT_MS
            self.beat()

    def beat(self) -> None:
        for directory in DIRECTORIES:
            self._manager.heartbeat(directory)


class Quiet:
    """It takes no snapshots."""

    def look(self, image: MetadataImage) -> None:
        """Nothing is to be done."""


@pytest.fixture
def manager() -> ReplicaManager:
    return ReplicaManager(lambda key, partition: None, lambda broker, keys: [])


@pytest.fixture
def hanging(manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch) -> Hanging:
    voters: Any = Hanging(manager, monkeypatch)
    core, quiet = controller(), Quiet()
    manager.brokers.update(core.cluster.brokers)
    manager.controller = QuorumController(
        voters, MetadataImage(), core, lambda published: None, 1, quiet  # type: ignore[arg-type]
    )  # fmt: skip
    return voters  # type: ignore[no-any-return]


def decide(manager: ReplicaManager, *events: Event) -> int:
    """Decide what waits, and these events; return how many have waited."""
    assert manager.controller is not None
    waiting = [] if manager.controller._asked.empty() else manager.controller._next()
    manager.controller.decide(waiting + [(event, lambda answers, error: None) for event in events])
    return len(waiting)


def test_heartbeats_do_not_pile_up_while_the_controller_waits_for_voters(
    manager: ReplicaManager, hanging: Hanging
) -> None:
    """Each heartbeat of the minutes without a majority waited, and all were decided at the end."""
    decide(manager, TOPIC)
    assert decide(manager) == len(DIRECTORIES)
    assert decide(manager) == 0
    hanging.beat()
    assert decide(manager) == len(DIRECTORIES)


def test_r27_who_sends_heartbeats_while_the_controller_waits_for_voters_is_not_fenced(
    manager: ReplicaManager, hanging: Hanging
) -> None:
    """A heartbeat whose decision is being written does not stand for those that are sent meanwhile."""
    hanging.beat()
    decide(manager, TOPIC)
    decide(manager)
    core = manager.controller._core  # type: ignore[union-attr]
    assert {each.contact_ms for each in core.cluster.sessions.values()} == {hanging.now}
    assert core.on_time(hanging.now) == ()


def test_a_heartbeat_that_is_refused_keeps_no_later_one_away(
    manager: ReplicaManager, hanging: Hanging
) -> None:
    """A directory that registers anew has sent one with its old epoch."""
    known = manager.brokers[0]
    manager.brokers[0] = known._replace(epoch=known.epoch - 1)
    manager.heartbeat(0)
    assert decide(manager) == 1
    manager.brokers[0] = known
    manager.heartbeat(0)
    assert decide(manager) == 1
