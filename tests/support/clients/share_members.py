"""Members of share groups that make raw requests to a node without sockets (KIP-932).

member = ShareMember(node, "a")
member.beat()
assert member.fetch().acquired() == [(0, 9, 1)]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from calls import FakeChannel, FakeLoop, coded
from fetches import id_of, sent

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.handlers import HANDLERS
from segstore.server.node import Node
from segstore.server.request import LATER, Request

FETCH, ACKNOWLEDGE = Api.SHARE_FETCH, Api.SHARE_ACKNOWLEDGE
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FINAL = -1
LATEST = 2
Acks = Mapping[int, Sequence[tuple[int, int, Sequence[int]]]]
"""By partition: first offset, last offset, types."""
TERMS = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100, "batch_size": 100}


class ShareAnswer:
    """The answer to a request that was sent; `body` is None while the request waits."""

    def __init__(self, node: Node, request: Request) -> None:
        self._node, self.request = node, request
        self._bodies: list[Any] = []
        request.answer = self._take

    def _take(self, body: Any) -> None:
        read = sent(body) if self.request.api is FETCH else body
        self._bodies.append(coded(read, self.request.version))

    def begin(self) -> ShareAnswer:
        """Hand the request to its handler, and let the loop do what it can do at once."""
        answer = HANDLERS[self.request.api](self._node, self.request)
        if answer is not LATER:
            self._take(answer)
        self._loop.run()
        return self

    @property
    def _loop(self) -> FakeLoop:
        assert isinstance(self._node.loop, FakeLoop)
        return self._node.loop

    @property
    def body(self) -> Any:
        self._loop.run()
        assert len(self._bodies) <= 1
        return self._bodies[0] if self._bodies else None

    @property
    def code(self) -> int:
        """The error of the whole request."""
        return int(self.body.error_code)

    @property
    def rows(self) -> dict[int, Any]:
        """The rows of the answer by partition."""
        assert self.body.error_code == Code.NONE, self.body
        return {row.partition_index: row for topic in self.body.responses for row in topic.partitions}

    @property
    def codes(self) -> dict[int, int]:
        """The errors of partitions: of fetches, or of a ShareAcknowledge."""
        return {number: row.error_code for number, row in self.rows.items()}

    @property
    def acknowledged(self) -> dict[int, int]:
        """The errors of acknowledgements that came with a fetch."""
        return {number: row.acknowledge_error_code for number, row in self.rows.items()}

    def acquired(self, partition: int = 0) -> list[tuple[int, int, int]]:
        """What was acquired of a partition: first offset, last offset, delivery count."""
        row = self.rows.get(partition)
        if row is None:
            return []
        return [(each.first_offset, each.last_offset, each.delivery_count) for each in row.acquired_records]


class ShareMember:
    """A member of a group at one connection. Without an epoch a request has the next one."""

    def __init__(
        self,
        node: Node,
        member: str = "a",
        group: str = "g",
        topic: str = "t",
        channel: FakeChannel | None = None,
        version: int = LATEST,
    ) -> None:
        self.node, self.member, self.group, self.version = node, member, group, version
        self.topic_id = id_of(node, topic)
        self.channel = channel or FakeChannel()
        self.epoch, self.client_id = 0, "tests"

    def beat(self, epoch: int = 0, topics: Sequence[str] | None = ("t",), **fields: Any) -> Any:
        """Return the answer to a heartbeat."""
        names = None if topics is None else list(topics)
        asked = {"group_id": self.group, "member_id": self.member, "member_epoch": epoch, **fields}
        return self._send(Api.SHARE_GROUP_HEARTBEAT, 1, subscribed_topic_names=names, **asked).body

    def fetch(
        self,
        acks: Acks | None = None,
        wanted: Iterable[int] = (0,),
        epoch: int | None = None,
        forgotten: Sequence[int] = (),
        **fields: Any,
    ) -> ShareAnswer:
        """Fetch partitions, and acknowledge records of some."""
        kind = structs("ShareFetchRequest")
        rows = self._rows(kind, kind.FetchPartition, acks or {}, wanted)
        gone = [kind.ForgottenTopic(topic_id=self.topic_id, partitions=list(forgotten))] if forgotten else []
        named = {
            "topics": [kind.FetchTopic(topic_id=self.topic_id, partitions=rows)] if rows else [],
            "forgotten_topics_data": gone,
        }
        return self._ask(FETCH, epoch, {**named, **TERMS, **fields})

    def acknowledge(self, acks: Acks | None = None, epoch: int | None = None, **fields: Any) -> ShareAnswer:
        """Acknowledge records outside of a fetch."""
        kind = structs("ShareAcknowledgeRequest")
        rows = self._rows(kind, kind.AcknowledgePartition, acks or {}, ())
        topics = [kind.AcknowledgeTopic(topic_id=self.topic_id, partitions=rows)] if rows else []
        return self._ask(ACKNOWLEDGE, epoch, {"topics": topics, **fields})

    def _rows(self, kinds: Any, kind: Any, acks: Acks, wanted: Iterable[int]) -> list[Any]:
        def batches(number: int) -> list[Any]:
            return [
                kinds.AcknowledgementBatch(
                    first_offset=first, last_offset=last, acknowledge_types=list(types)
                )
                for first, last, types in acks.get(number, ())
            ]

        numbers = dict.fromkeys([*wanted, *acks])
        return [kind(partition_index=each, acknowledgement_batches=batches(each)) for each in numbers]

    def _ask(self, api: Api, epoch: int | None, fields: dict[str, Any]) -> ShareAnswer:
        if epoch is None:
            epoch, self.epoch = self.epoch, self.epoch + 1
        who = {"group_id": self.group, "member_id": self.member, "share_session_epoch": epoch}
        return self._send(api, self.version, **{**who, **fields})

    def _send(self, api: Api, version: int, **fields: Any) -> ShareAnswer:
        body = coded(structs(f"{api.message}Request")(**fields), version)
        request = Request(api, version, self.client_id, body, self.channel, lambda body: None)
        return ShareAnswer(self.node, request).begin()
