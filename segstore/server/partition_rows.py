"""`PartitionRows`: the partitions of topics, encoded as Metadata tells them, and remembered: clients ask
again and again, and a topic of 1,000 partitions takes milliseconds to encode.

Rows are told again only where the partitions, and who leads them, are those that they were made of: nothing
has to be said to this module when a leader changes. Nothing is on disk. Threads: any.
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
"""Bytes that are remembered: of 600,000 partitions."""


class _EncodedRows(NamedTuple):
    """What was encoded, and of what."""

    numbers: Sequence[int]
    leaders: list[PartitionLeader]
    packed: Packed
    size: int


class PartitionRows:
    """The rows of one server's topics, by name and version."""

    def __init__(self, _node: Node) -> None:
        self._held: dict[tuple[str, int], _EncodedRows] = {}
        self._size = 0
        self._lock = Mutex()

    def knows(self, topic: str, version: int, numbers: Sequence[int]) -> bool:
        """Return whether rows of these partitions are remembered, if only from before a leader changed."""
        rows = self._held.get((topic, version))
        return rows is not None and rows.numbers == numbers

    def of(self, topic: str, version: int, numbers: Sequence[int], leaders: list[PartitionLeader]) -> Packed:
        """Return the rows of a topic's partitions, of which each has a leader in `leaders`."""
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
    """Return a partition as Metadata and DescribeTopicPartitions tell it: its one replica is on this node, in
    sync if it leads.
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
