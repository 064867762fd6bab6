"""`NamedTopics`: the topics of an OffsetCommit, OffsetFetch or TxnOffsetCommit request. Older versions of
these requests have topic names; newer versions have topic ids (KIP-848). Threads: a `NamedTopics` is made in
the loop's thread, and used afterwards by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from segstore import names
from segstore.server.logs import Logs
from segstore.server.node import Node


class NamedTopics:
    """The topic structs of a request: `known` structs, whose names are set, and `unknown` structs, whose
    topic ids belong to no topic.
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
        """Return topic name -> topic id as text, for the topics that the request has by id."""
        return {name: names.topic_id_of(topic_id) for name, topic_id in self._ids.items()}

    def with_ids(self, topics: list[Any], refuse: Callable[[Any], Any]) -> list[Any]:
        """Set the ids of `topics`, the structs of an answer. Return `topics`, followed by what `refuse`
        returns for each struct in `unknown`.
        """
        for topic in topics:
            topic.topic_id = self._ids.get(topic.name, topic.topic_id)
        return [*topics, *map(refuse, self.unknown)]
