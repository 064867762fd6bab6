"""Members of share groups (KIP-932) that are only requests, and the states of share partitions in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from group_members import id_of
from groups import coordinator

import segstore
from segstore.coordinator.group.share.group import ShareGroupInfo
from segstore.coordinator.group.share.member import ShareBeaten, ShareHeartbeat
from segstore.coordinator.offsets.consumer_schema import Assignment
from segstore.coordinator.share.core.values import Durable
from segstore.coordinator.share.keys import ShareKey
from segstore.errors import FencedStateEpochError, SegstoreError


class States:
    """States by share partition. `calls` has what was done, in order; `fails` is raised once by the next
    change.
    """

    def __init__(self) -> None:
        self.held: dict[ShareKey, Durable] = {}
        self.calls: list[tuple[str, Any]] = []
        self.fails: SegstoreError | None = None

    def read(self, key: ShareKey) -> Durable | None:
        return self.held.get(key)

    def initialise(self, states: Mapping[ShareKey, tuple[int, int]]) -> None:
        self._fail()
        for key, (epoch, _) in states.items():
            if key in self.held and self.held[key].state_epoch > epoch:
                raise FencedStateEpochError(f"{key} has state epoch {self.held[key].state_epoch}")
        for key, (epoch, start) in states.items():
            self.held[key] = Durable(state_epoch=epoch, start=start, complete=-1 if start < 0 else 0)
        self.calls.append(("initialise", dict(states)))

    def delete(self, keys: Collection[ShareKey]) -> None:
        self._fail()
        for key in keys:
            self.held.pop(key, None)
        self.calls.append(("delete", sorted(keys)))

    def keys_of(self, group: str) -> list[ShareKey]:
        return sorted(key for key in self.held if key.group == group)

    def _fail(self) -> None:
        error, self.fails = self.fails, None
        if error is not None:
            raise error


class SharingMember:
    """A member that does what it is told: `has` are its partitions of topic "t"."""

    def __init__(
        self, store: segstore.Store, member_id: str, *topics: str, group: str = "g", **said: Any
    ) -> None:
        self.store, self.member_id, self.epoch, self.group = store, member_id, 0, group
        self.said = {"topic_names": topics or ("t",), **said}
        self.given: Assignment = {}

    @property
    def has(self) -> set[int]:
        return set(self.given.get(id_of(self.store), ()))

    def join(self) -> SharingMember:
        self.epoch, self.given = 0, {}
        self.take(self.ask(epoch=0, **self.said))
        return self

    def ask(self, **said: Any) -> ShareBeaten:
        """Send a heartbeat, and do not do what it answers."""
        asked = {"member_id": self.member_id, "epoch": self.epoch, **said}
        return coordinator(self.store).share_heartbeat(self.group, ShareHeartbeat(**asked))

    def beat(self, **said: Any) -> ShareBeaten:
        """Send a heartbeat, and do what it answers."""
        beaten = self.ask(**said)
        self.take(beaten)
        return beaten

    def take(self, beaten: ShareBeaten) -> None:
        self.epoch = beaten.epoch
        if beaten.assignment is not None:
            self.given = dict(beaten.assignment)

    def leave(self) -> ShareBeaten:
        return self.ask(epoch=-1)


def share_info(store: segstore.Store, group: str = "g") -> ShareGroupInfo:
    found = coordinator(store).describe_share(group)
    assert found is not None
    return found


def key(store: segstore.Store, partition: int, topic: str = "t", group: str = "g") -> ShareKey:
    return ShareKey(group, store.topics()[topic].topic_id, partition)
