"""Observes the metadata log of a real Kafka cluster, as brokers do: a fetch from the controller, without a
vote.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka_wire import Address, Connection

from segstore.records import decode as decode_batches
from segstore.records import scan
from segstore.records.header import CONTROL_FLAG
from segstore.replication.metadata import records
from segstore.replication.metadata.image import MetadataImage

METADATA_LOG = uuid.UUID(int=1)
"""The id of the topic `__cluster_metadata`."""
PASSED_OVER = {
    15: "ProducerIds",
    23: "BeginTransaction",
    24: "EndTransaction",
    27: "RegisterController",
    28: "ClearElr",
}
"""Records of Kafka that say nothing of leaders and in-sync replicas. Only the features of a new cluster
are written in a metadata transaction, before any broker is there, and it is always ended. Other records that
are not known stop the observer.
"""


class Observer:
    """The metadata of a cluster; `image` has all that was committed when `poll` was called last.

    `replica` is the id of a broker that observes for itself; -1 for others.
    """

    def __init__(self, controller: Address, cluster_id: str, replica: int = -1) -> None:
        self.image = MetadataImage()
        self._controller, self._cluster_id, self._replica = Connection(controller), cluster_id, replica
        self._offset = self._last_epoch = self._quorum_epoch = 0
        self._fetched: list[tuple[int, list[bytes]]] = []

    def poll(self, wait_ms: int = 0) -> bool:
        """Fetch once, and apply what is committed; return whether the image has all of it. Raises OSError."""
        data = self._fetch(wait_ms)
        if data.error_code in (74, 75, 6):
            self._quorum_epoch = data.current_leader.leader_epoch
            return False
        assert data.error_code == 0, data
        assert data.snapshot_id is None or data.snapshot_id.end_offset < 0, "snapshots are not read here"
        self._fetched += self._batches(bytes(data.records or b""))
        while self._fetched and self._fetched[0][0] < data.high_watermark:
            self._apply(*self._fetched.pop(0))
        return self.image.next_offset >= data.high_watermark

    def _fetch(self, wait_ms: int) -> FetchResponse:
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=0,
            current_leader_epoch=self._quorum_epoch,
            fetch_offset=self._offset,
            last_fetched_epoch=self._last_epoch,
            log_start_offset=0,
            partition_max_bytes=8 << 20,
            version=17,
        )
        request = FetchRequest(
            version=17,
            cluster_id=self._cluster_id,
            replica_state=FetchRequest.ReplicaState(replica_id=self._replica, replica_epoch=-1, version=17),
            max_wait_ms=wait_ms,
            min_bytes=0,
            topics=[FetchRequest.FetchTopic(topic_id=METADATA_LOG, partitions=[partition], version=17)],
        )
        answer = self._controller.call(request, FetchResponse)
        assert answer.error_code == 0, answer
        return answer.responses[0].partitions[0]

    def _batches(self, data: bytes) -> Iterator[tuple[int, list[bytes]]]:
        batches, _ = scan(data)
        for n, batch in enumerate(batches):
            self._offset, self._last_epoch = int(batch["last_offset"]) + 1, int(batch["leader_epoch"])
            control = batch["attributes"] & CONTROL_FLAG
            found = () if control else decode_batches(data, batches[n : n + 1], "the metadata log")
            yield self._offset - 1, [bytes(record.value) for record in found]

    def _apply(self, last: int, values: list[bytes]) -> None:
        first = last + 1 - len(values)
        for offset, value in enumerate(values, first):
            if value[1] not in PASSED_OVER:
                self.image.apply(records.decode(value), offset)
        self.image.next_offset = last + 1

    def close(self) -> None:
        self._controller.close()
