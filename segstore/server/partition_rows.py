"""`PartitionRows`: a cache of topics' partitions, encoded for answers to Metadata. Clients send Metadata
requests again and again, and a topic with 1,000 partitions takes milliseconds to encode. Cached rows are used
only if the partitions and the leaders are those that were encoded, so the cache need not be notified of
changes. Owns nothing on disk. Threads: any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from segstore.mutex import Mutex
from segstore.protocol.codec import packed, structs
from segstore.protocol.primitives import Packed
from segstore.server.node import NODE_ID, Node
from segstore.server.topics import PartitionLeader

_Response = structs("MetadataResponse")
_MOST_BYTES = 16 << 20
"""The maximum size of the cache, in bytes: enough for 600,000 partitions."""


class _EncodedRows(NamedTuple):
    """Encoded rows of a topic (the partition structs of a Metadata answer), with the partitions and leaders
    from which they were made.
    """

    numbers: Sequence[int]
    leaders: list[PartitionLeader]
    packed: Packed
    size: int


class PartitionRows:
    """The cached rows of a server's topics, by topic name and version of the Metadata request. A row is the
    encoded struct of one partition.
    """

    def __init__(self, _node: Node) -> None:
        self._held: dict[tuple[str, int], _EncodedRows] = {}
        self._size = 0
        self._lock = Mutex()

    def knows(self, topic: str, version: int, numbers: Sequence[int]) -> bool:
        """Return whether rows of these partitions are cached. The leaders in the cached rows may be
        outdated.
        """
        rows = self._held.get((topic, version))
        return rows is not None and rows.numbers == numbers

    def of(self, topic: str, version: int, numbers: Sequence[int], leaders: list[PartitionLeader]) -> Packed:
        """Return the encoded rows of a topic's partitions `numbers`; `leaders` has the leader of each
        partition, in the order of `numbers`.
        """
        rows = self._held.get((topic, version))
        if rows is not None and rows.numbers == numbers and rows.leaders == leaders:
            return rows.packed
        kind = _Response.MetadataResponsePartition
        made = [partition(kind, *each) for each in zip(numbers, leaders, strict=True)]
        array = packed("MetadataResponse", version, made)
        self._keep((topic, version), _EncodedRows(numbers, leaders, array, len(array.of(version))))
        return array

    def _keep(self, key: tuple[str, int], rows: _EncodedRows) -> None:
        with self._lock:
            if self._size + rows.size > _MOST_BYTES:
                self._held.clear()
                self._size = 0
            before = self._held.get(key)
            self._size += rows.size - (0 if before is None else before.size)
            self._held[key] = rows


def partition(kind: Any, number: int, led: PartitionLeader) -> Any:
    """Return a partition's struct for an answer to Metadata or DescribeTopicPartitions. The partition has one
    replica, on this node; the replica is in sync if this node leads the partition.
    """
    here, nowhere = [NODE_ID], list[int]()
    is_led = led.leader_id == NODE_ID
    return kind(
        error_code=led.error,
        partition_index=number,
        leader_id=led.leader_id,
        leader_epoch=led.leader_epoch,
        replica_nodes=here,
        isr_nodes=here if is_led else nowhere,
        offline_replicas=nowhere if is_led else here,
    )
