"""A controller that has stopped is asked nothing for ever, and decides nothing any more."""

from __future__ import annotations

from typing import Any

import pytest

from segstore.errors import QuorumLostError, StorageError, TopicAlreadyExistsError
from segstore.replication.core.controller import Controller, ControllerConfig
from segstore.replication.metadata.image import MetadataImage, PartitionKey
from segstore.replication.metadata.records import TopicRecord
from segstore.replication.quorum_controller import Decision, QuorumController
from segstore.replication.replica_manager import ReplicaManager


class Registered:
    epoch = 1


class Leader:
    """Sends its proposal again whenever it hears that it was not decided."""

    broker, key = 0, PartitionKey("t", 0)

    def __init__(self, manager: ReplicaManager, message: Any) -> None:
        self._manager, self._message, self.heard = manager, message, 0

    def on_alter_reply(self, sent: Any, reply: Any) -> None:
        self.heard += 1
        assert self.heard < 5, "it is asked for ever"
        self._manager.send(self, self._message)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [None, StorageError(5, "the disk of the metadata has failed")])
def test_r21_a_proposal_is_not_sent_to_a_controller_that_has_stopped(error: Exception | None) -> None:
    """A store that was abandoned kept a thread busy for ever, in which leader and controller answered each
    other; so did one whose controller had failed.
    """
    manager = ReplicaManager(lambda key, partition: None, lambda broker, keys: [])
    none: Any = None
    controller = QuorumController(none, none, none, lambda published: None, 1000, none)
    manager.controller, manager.brokers[0] = controller, Registered()  # type: ignore[assignment]
    controller.error = error
    leader = Leader(manager, none)
    manager.send(leader, none)  # type: ignore[arg-type]
    controller.stop(0)
    controller._run()
    assert leader.heard == 0


class Lost:
    """A metadata log that no majority of voters takes."""

    next_offset = 0

    def append(self, records: Any) -> None:
        raise QuorumLostError("2 of the 3 voters are needed")


def test_r31_nobody_is_refused_by_what_was_decided_and_did_not_become_durable() -> None:
    """Who was told that a topic is there already looked for it, in vain."""
    none: Any = None
    image, lost = MetadataImage(), Lost()
    controller = QuorumController(
        lost, image, Controller(ControllerConfig()), lambda published: None, 1000, none
    )
    told: list[Any] = []

    def create(core: Controller, now: int) -> Decision:
        if "t" in image.topics:
            raise TopicAlreadyExistsError("topic 't' is there already")
        return Decision([TopicRecord("t", "id")])

    controller.decide([(create, lambda answers, error: told.append(error))] * 2)
    assert list(map(type, told)) == [QuorumLostError] * 2
