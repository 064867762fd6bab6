"""`NamedTopics`: the topics of OffsetCommit and OffsetFetch requests, by name or, in newer versions, by id
(KIP-848).

Threads: a `NamedTopics` is made in the loop's thread, then used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from segstore import names
from segstore.server.logs import Logs
from segstore.server.node import Node


class NamedTopics:
    """The topics of a request: `known` topics, whose names are set, and `unknown` topics, whose ids no topic
    has.
    """

    def __init__(self, node: Node, topics: Iterable[Any], have_ids: bool) -> None:
        self.known, self.unknown = list[Any](), list[Any]()
        self._ids: dict[str, bytes] = {}
        logs = node.part(Logs)
        for topic in topics:
            name = logs.name_of(topic.topic_id) if have_ids else topic.name
            if name is None:
                self.unknown.append(topic)
                continue
            self.known.append(topic)
            if have_ids:
                topic.name, self._ids[name] = name, topic.topic_id

    @property
    def ids(self) -> Mapping[str, str]:
        """Return the request's topic ids as text, by topic name."""
        return {name: names.topic_id_of(topic_id) for name, topic_id in self._ids.items()}

    def with_ids(self, topics: list[Any], refuse: Callable[[Any], Any]) -> list[Any]:
        """Set the ids of `topics`, the structs of an answer. Return `topics`, followed by the result of
        `refuse` for each topic of `unknown`.
        """
        for topic in topics:
            topic.topic_id = self._ids.get(topic.name, topic.topic_id)
        return [*topics, *map(refuse, self.unknown)]
