"""`ClusterOffsets`: reads the offsets of a cluster's partitions. One request reads the offsets of many
partitions. Threads: one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from segstore.cli.places.client import ClusterClients
from segstore.coordinator.structs import TopicPartition


class ClusterOffsets:
    """Reads log start offsets, end offsets and offsets for times (Kafka: ListOffsets). If an offset can't be
    read, the error's text is returned in place of the offset.
    """

    def __init__(self, client: ClusterClients) -> None:
        self._client = client
        self._spec: Any = client.kafka.admin.OffsetSpec

    def starts(self, partitions: Collection[TopicPartition]) -> Mapping[tuple[str, int], int | str]:
        """Return the log start offset of each partition."""
        return self._asked(partitions, self._spec.earliest())

    def ends(self, partitions: Collection[TopicPartition]) -> Mapping[tuple[str, int], int | str]:
        """Return the offset after the last readable record of each partition."""
        return self._asked(partitions, self._spec.latest())

    def at(self, partition: TopicPartition, timestamp: int) -> int | str:
        """Return the offset of the first record at or after a time (ms since the epoch), or -1 if there is
        none.
        """
        return self._asked([partition], self._spec.for_timestamp(timestamp))[partition]

    def _asked(self, partitions: Collection[TopicPartition], spec: Any) -> dict[tuple[str, int], int | str]:
        if not partitions:
            return {}
        client, asked = self._client, {}
        for topic, number in partitions:
            asked[client.kafka.TopicPartition(topic, number)] = spec
        found: dict[tuple[str, int], int | str] = {}
        for key, future in client.admin.list_offsets(asked).items():
            try:
                found[key.topic, key.partition] = future.result().offset
            except client.kafka.KafkaException as error:
                found[key.topic, key.partition] = client.reason(error)
        return found


class ClusterLog:
    """A partition of a cluster: implements `OffsetsLog`. Raises ClusterError."""

    def __init__(self, client: ClusterClients, partition: TopicPartition) -> None:
        self._client, self._key = client, partition
        self.topic, self.partition = partition
        self._offsets = ClusterOffsets(client)

    @property
    def start_offset(self) -> int:
        return self._known(self._offsets.starts([self._key])[self._key])

    @property
    def end_offset(self) -> int:
        return self._known(self._offsets.ends([self._key])[self._key])

    def offset_for_time(self, timestamp: int) -> int | None:
        found = self._known(self._offsets.at(self._key, timestamp))
        return None if found < 0 else found

    def _known(self, found: int | str) -> int:
        if isinstance(found, str):
            raise self._client.error(f"{self.topic}-{self.partition}", found)
        return found
