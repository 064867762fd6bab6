"""Requests that may be parked, and members of groups that make them: what `calls` has for answers that come
at once.
"""

from __future__ import annotations

from typing import Any

from calls import FakeChannel, FakeLoop, coded

from segstore.coordinator.consumer_protocol import decode_assignment, encode_assignment, encode_subscription
from segstore.coordinator.group.assignors.base import MemberSubscription
from segstore.coordinator.structs import TopicPartition
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api, served
from segstore.server.handlers import HANDLERS
from segstore.server.node import Node
from segstore.server.request import LATER, Request

JOIN: dict[str, Any] = {
    "group_id": "g",
    "member_id": "a",
    "member_epoch": 0,
    "rebalance_timeout_ms": 60_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}
"""The first ConsumerGroupHeartbeat of a member (KIP-848)."""
BEAT: dict[str, Any] = {"group_id": "g", "member_id": "a", "member_epoch": 1}
"""A later one."""


class Asked:
    """A request that was sent. `answer` is None while it is parked; it is looked for anew each time."""

    def __init__(self, node: Node, api: Api, version: int, **fields: Any) -> None:
        self._node, self._version = node, version
        self._answers: list[Any] = []
        body = coded(structs(f"{api.message}Request")(**fields), version)
        request = Request(api, version, "tests", body, FakeChannel(), self._answers.append)
        answer = HANDLERS[api](node, request)
        if answer is not LATER:
            self._answers.append(answer)

    @property
    def answer(self) -> Any:
        assert isinstance(self._node.loop, FakeLoop)
        self._node.loop.run()
        assert len(self._answers) <= 1
        return coded(self._answers[0], self._version) if self._answers else None


def ask(node: Node, api: Api, version: int, **fields: Any) -> Any:
    """Return the answer of a request that is not parked."""
    answer = Asked(node, api, version, **fields).answer
    assert answer is not None
    return answer


def high(api: Api) -> int:
    """Return the newest version."""
    return served(api).high


class WireMember:
    """A member of a group, which speaks one version of each API; `given` are its partitions."""

    def __init__(
        self,
        node: Node,
        group: str = "g",
        topics: tuple[str, ...] = ("t",),
        instance: str | None = None,
        join_version: int | None = None,
    ) -> None:
        self.node, self.group, self._topics, self.instance = node, group, topics, instance
        self._version = high(Api.JOIN_GROUP) if join_version is None else join_version
        self.member_id, self.generation = "", -1
        self.place: Any = None
        self.given: list[TopicPartition] = []

    def join(self) -> Asked:
        """Ask to join; with an id first, where the version asks for one."""
        asked = self._join()
        answer = asked.answer
        if answer is not None and answer.error_code == Code.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            asked = self._join()
        return asked

    def _join(self) -> Asked:
        subscription = encode_subscription(MemberSubscription(self._topics, (), b"", -1, None))
        kind = structs("JoinGroupRequest").JoinGroupRequestProtocol
        return Asked(
            self.node,
            Api.JOIN_GROUP,
            self._version,
            group_id=self.group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[kind(name="range", metadata=subscription)],
        )

    def joined(self, asked: Asked) -> Any:
        """Take the place that a join was answered with."""
        self.place = asked.answer
        assert self.place is not None
        assert self.place.error_code == Code.NONE
        self.member_id, self.generation = self.place.member_id, self.place.generation_id
        return self.place

    @property
    def leads(self) -> bool:
        return bool(self.place.leader == self.member_id)

    def sync(self, assignments: dict[str, list[TopicPartition]] | None = None) -> Asked:
        """Ask for the assignment; a leader brings all."""
        kind = structs("SyncGroupRequest").SyncGroupRequestAssignment
        brought = [
            kind(member_id=member, assignment=encode_assignment(given))
            for member, given in (assignments or {}).items()
        ]
        return Asked(
            self.node,
            Api.SYNC_GROUP,
            high(Api.SYNC_GROUP),
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=brought,
        )

    def synced(self, asked: Asked) -> None:
        """Take the assignment that a sync was answered with."""
        answer = asked.answer
        assert answer is not None
        assert answer.error_code == Code.NONE
        self.given = decode_assignment(answer.assignment)

    def alone(self, *partitions: TopicPartition) -> WireMember:
        """Be the only member, with these partitions."""
        self.joined(self.join())
        self.synced(self.sync({self.member_id: list(partitions)}))
        return self

    def heartbeat(self) -> Code:
        answer = ask(
            self.node,
            Api.HEARTBEAT,
            high(Api.HEARTBEAT),
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        return Code(answer.error_code)
