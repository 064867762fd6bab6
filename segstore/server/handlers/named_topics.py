"""The topics of requests about groups' offsets, which have names, or, in newer versions, ids (KIP-848).

Threads: a `NamedTopics` is made in the loop's thread, then used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from segstore import names
from segstore.server.logs import Logs
from segstore.server.node import Node


class NamedTopics:
    """`known` are the topics of a request, each with its name; `unknown` those whose ids no topic has now."""

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
        """Return the ids that the client means, as text, by name."""
        return {name: names.topic_id_of(topic_id) for name, topic_id in self._ids.items()}

    def told(self, topics: list[Any], refuse: Callable[[Any], Any]) -> list[Any]:
        """Return the topics of an answer with the ids of their names; `refuse` makes those of `unknown`."""
        for topic in topics:
            topic.topic_id = self._ids.get(topic.name, topic.topic_id)
        return [*topics, *map(refuse, self.unknown)]
