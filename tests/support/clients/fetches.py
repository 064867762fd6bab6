"""Fetch requests to a node without sockets: what they ask for by default, and answers whose stretches are
read and released, as the network does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from calls import FakeChannel, FakeLoop, coded, node_of

import segstore
from segstore.names import topic_id_bytes
from segstore.protocol.codec import structs
from segstore.server.apis import Api
from segstore.server.handlers import HANDLERS
from segstore.server.handlers.fetch import Fetches
from segstore.server.node import Node
from segstore.server.request import LATER, Request

_Request = structs("FetchRequest")
IDS_SINCE = 13


class FakeWatch:
    """A sleep that was asked for; `wake` ends it."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then, self.sleep = then, None

    def ask(self, sleep: Callable[[], object]) -> None:
        self.sleep = self.sleep or sleep

    def wake(self) -> None:
        """Sleep as the thread would, which must end at once, then tell the loop."""
        sleep, self.sleep = self.sleep, None
        if sleep is not None:
            sleep()
            self._then()


class WatchedLoop(FakeLoop):
    """A fake loop with watches, and calls at the end of turns."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[Callable[[], object]] = []
        self.watches: list[FakeWatch] = []

    def every_turn(self, call: Callable[[], object]) -> None:
        self.turns.append(call)

    def watch(self, wake: Callable[[], object], then: Callable[[], object]) -> FakeWatch:
        self.watches.append(FakeWatch(then))
        return self.watches[-1]

    def turn(self) -> None:
        """Do all that is to be done, and end the turn."""
        self.run()
        for each in self.turns:
            each()
        self.run()


def serving(store: segstore.Store, **settings: Any) -> Node:
    """Return a node whose loop a test runs."""
    node = node_of(store, **settings)
    node.loop = WatchedLoop()
    return node


def fetches(node: Node) -> Fetches:
    """Return the node's fetches."""
    return node.part(Fetches)


def id_of(node: Node, topic: str) -> bytes:
    return topic_id_bytes(node.store.topics()[topic].topic_id)


def topics(node: Node, version: int, wanted: dict[tuple[str, int], Any]) -> list[Any]:
    """Return the request's topics: for each (topic, partition) an offset, or fields of the partition."""
    found = []
    for (topic, partition), fields in wanted.items():
        fields = fields if isinstance(fields, dict) else {"fetch_offset": fields}
        fields = {"partition_max_bytes": 1 << 20, **fields}
        named = {"topic_id": id_of(node, topic)} if version >= IDS_SINCE else {"topic": topic}
        part = _Request.FetchPartition(partition=partition, **fields)
        found.append(_Request.FetchTopic(**named, partitions=[part]))
    return found


class Fetch:
    """A request that was sent, of the partitions `wanted`; `answer` is None while it is parked."""

    def __init__(
        self,
        node: Node,
        wanted: dict[tuple[str, int], Any],
        version: int = 12,
        client_id: str | None = "tests",
        **fields: Any,
    ) -> None:
        self.node, self.version = node, version
        self._answers: list[Any] = []
        fields = {"topics": topics(node, version, wanted), **fields}
        body = coded(_Request(**fields), version)
        self.channel = FakeChannel()
        self.request = Request(Api.FETCH, version, client_id, body, self.channel, self._take)
        answer = HANDLERS[Api.FETCH](node, self.request)
        if answer is not LATER:
            self._take(answer)

    def _take(self, body: Any) -> None:
        self._answers.append(coded(sent(body), self.version))

    @property
    def answer(self) -> Any:
        assert len(self._answers) <= 1
        return self._answers[0] if self._answers else None

    @property
    def parts(self) -> dict[tuple[Any, int], Any]:
        """The answer by topic or topic id, and partition."""
        return {
            (topic.topic or topic.topic_id, each.partition_index): each
            for topic in self.answer.responses
            for each in topic.partitions
        }

    @property
    def part(self) -> Any:
        """The only partition of the answer."""
        [part] = self.parts.values()
        return part

    @property
    def codes(self) -> list[int]:
        return [each.error_code for each in self.parts.values()]

    @property
    def numbers(self) -> list[int]:
        """The partitions that are answered, in order."""
        return [number for _, number in self.parts]


def sent(body: Any) -> Any:
    """Put bytes in place of the stretches, and release these."""
    for topic in body.responses:
        for each in topic.partitions:
            if hasattr(each.records, "fileno"):
                stretch = each.records
                each.records = os.pread(stretch.fileno(), len(stretch), stretch.position)
                stretch.release()
                assert stretch.fileno() == -1
    return body
