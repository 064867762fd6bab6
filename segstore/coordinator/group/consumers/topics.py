"""`AssignableTopics`: what a store's topics are to consumer groups at one time (Kafka: MetadataImage).

On disk: nothing. Threads: any; immutable.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping

from segstore import names
from segstore.coordinator.linear_pattern import LinearPattern
from segstore.coordinator.offsets.consumer_schema import Assignment
from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidArgumentError, InvalidRegularExpressionError
from segstore.storage.meta.topic_info import CLUSTER_METADATA, TopicInfo

MayDescribe = Callable[[str], bool]
"""Whether a client may know of a topic by its name."""


class AssignableTopics:
    """`ids` has the ids of topics by name, `counts` their numbers of partitions by id. A topic of a broker's
    directory without an id can't be assigned, and is not among them. `infos` is what this was made of.
    """

    def __init__(self, infos: Mapping[str, TopicInfo]) -> None:
        self.infos = infos
        there = [info for info in infos.values() if info.topic_id and info.name != CLUSTER_METADATA]
        self.ids = {info.name: names.topic_id_bytes(info.topic_id) for info in there}
        self.names = {topic_id: name for name, topic_id in self.ids.items()}
        self.counts = {self.ids[info.name]: info.partitions for info in there}

    def ids_of(self, topics: Iterable[str]) -> frozenset[bytes]:
        """Return the ids of those topics that are there."""
        return frozenset(self.ids[name] for name in topics if name in self.ids)

    def partitions(self, assignment: Assignment) -> tuple[TopicPartition, ...]:
        """Return the partitions of an assignment by the names of topics that are there, in order."""
        found = [
            TopicPartition(self.names[topic_id], number)
            for topic_id, numbers in assignment.items()
            if topic_id in self.names
            for number in numbers
        ]
        return tuple(sorted(found))

    def assignment(self, partitions: Iterable[TopicPartition]) -> Assignment:
        """Return partitions by the ids of topics that are there."""
        found: dict[bytes, frozenset[int]] = {}
        for topic, number in partitions:
            if topic in self.ids:
                topic_id = self.ids[topic]
                found[topic_id] = found.get(topic_id, frozenset()) | {number}
        return found

    def matching(self, regex: str, may_describe: MayDescribe | None = None) -> frozenset[str]:
        """Return the topics whose names match as a whole, of those that may be described. Raises
        InvalidRegularExpressionError.
        """
        pattern = compiled(regex)
        found = (name for name in self.ids if pattern.matches(name))
        return frozenset(found if may_describe is None else filter(may_describe, found))

    def digest(self, topics: Iterable[str]) -> int:
        """Return a number that differs where these topics do: their ids, names and numbers of partitions; 0
        for none (KIP-1101; Kafka's is another one, by XXH3).
        """
        found = hashlib.blake2b(digest_size=8)
        there = sorted(name for name in set(topics) if name in self.ids)
        for name in there:
            topic_id, text = self.ids[name], name.encode()
            found.update(topic_id + struct.pack(">ii", self.counts[topic_id], len(text)) + text)
        return int.from_bytes(found.digest(), "big", signed=True) if there else 0


def compiled(regex: str) -> LinearPattern:
    """Return the pattern of a regular expression. Raises InvalidRegularExpressionError."""
    try:
        return LinearPattern(regex)
    except InvalidArgumentError as error:
        raise InvalidRegularExpressionError(str(error)) from None
