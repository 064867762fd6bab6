"""`AssignableTopics`: the topics of a store at one time, by name and by id (Kafka: MetadataImage).

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
"""Returns whether a client may describe the topic of this name."""


class AssignableTopics:
    """A store's topics: `ids` maps names to topic ids, `counts` maps topic ids to numbers of partitions.
    `ids` and `counts` leave out topics that can't be assigned: `__cluster_metadata`, and topics without an
    id, which a broker's log directory may have. `infos` has the descriptions of all topics of the store.
    """

    def __init__(self, infos: Mapping[str, TopicInfo]) -> None:
        self.infos = infos
        there = [info for info in infos.values() if info.topic_id and info.name != CLUSTER_METADATA]
        self.ids = {info.name: names.topic_id_bytes(info.topic_id) for info in there}
        self.names = {topic_id: name for name, topic_id in self.ids.items()}
        self.counts = {self.ids[info.name]: info.partitions for info in there}

    def ids_of(self, topics: Iterable[str]) -> frozenset[bytes]:
        """Return the ids of topics, given by name; topics that don't exist are left out."""
        return frozenset(self.ids[name] for name in topics if name in self.ids)

    def partitions(self, assignment: Assignment) -> tuple[TopicPartition, ...]:
        """Return the partitions of an assignment as sorted (topic name, partition) pairs; deleted topics are
        left out.
        """
        found = [
            TopicPartition(self.names[topic_id], number)
            for topic_id, numbers in assignment.items()
            if topic_id in self.names
            for number in numbers
        ]
        return tuple(sorted(found))

    def assignment(self, partitions: Iterable[TopicPartition]) -> Assignment:
        """Return these partitions as an assignment, which has topic ids; topics that don't exist are left
        out.
        """
        found: dict[bytes, frozenset[int]] = {}
        for topic, number in partitions:
            if topic in self.ids:
                topic_id = self.ids[topic]
                found[topic_id] = found.get(topic_id, frozenset()) | {number}
        return found

    def matching(self, regex: str, may_describe: MayDescribe | None = None) -> frozenset[str]:
        """Return the topics whose whole name matches `regex`, and which the client may describe. Raises
        InvalidRegularExpressionError.
        """
        pattern = compiled(regex)
        found = (name for name in self.ids if pattern.matches(name))
        return frozenset(found if may_describe is None else filter(may_describe, found))

    def digest(self, topics: Iterable[str]) -> int:
        """Return a hash of the topics' ids, names and numbers of partitions; 0 if none of the topics exists
        (KIP-1101; Kafka uses another hash, XXH3).
        """
        found = hashlib.blake2b(digest_size=8)
        there = sorted(name for name in set(topics) if name in self.ids)
        for name in there:
            topic_id, text = self.ids[name], name.encode()
            found.update(topic_id + struct.pack(">ii", self.counts[topic_id], len(text)) + text)
        return int.from_bytes(found.digest(), "big", signed=True) if there else 0


def compiled(regex: str) -> LinearPattern:
    """Return `regex` as a compiled pattern. Raises InvalidRegularExpressionError."""
    try:
        return LinearPattern(regex)
    except InvalidArgumentError as error:
        raise InvalidRegularExpressionError(str(error)) from None
