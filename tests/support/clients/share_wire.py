"""A member of a share group at a server, by raw requests (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from wire_client import Sent, WireClient

import segstore
from segstore.names import topic_id_bytes
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code

ACCEPT, VERSION = 1, 2
Acquired = tuple[int, int, int]
"""First offset, last offset, delivery count."""


class ShareWire:
    """A connection, and the session of its member."""

    def __init__(
        self, server: segstore.Server, member: str, group: str = "g", topic: str = "t", partition: int = 0
    ) -> None:
        info = server.node.store.topics()[topic]
        self.topic_id, self.topic, self.partition = topic_id_bytes(info.topic_id), topic, partition
        self.group, self.member, self._epoch = group, member, 0
        self.wire = WireClient(server.host, server.port)
        self._sent: Sent | None = None

    def __enter__(self) -> ShareWire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Break the connection."""
        self.wire.close()

    def beat(self, epoch: int = 0) -> Any:
        """Return the answer to a heartbeat."""
        who = {"group_id": self.group, "member_id": self.member, "member_epoch": epoch}
        return self.wire.ask("ShareGroupHeartbeat", 1, subscribed_topic_names=[self.topic], **who)

    def fetch(self, **fields: Any) -> list[Acquired]:
        """Return what was acquired."""
        self.send_fetch(**fields)
        return self.take()

    def send_fetch(self, **fields: Any) -> None:
        """Send a fetch, and do not wait for its answer."""
        kind = structs("ShareFetchRequest")
        part = kind.FetchPartition(partition_index=self.partition)
        wanted = [kind.FetchTopic(topic_id=self.topic_id, partitions=[part])]
        terms = {"max_wait_ms": 0, "min_bytes": 1, "max_records": 500, "batch_size": 500, **fields}
        self._sent = self.wire.send("ShareFetch", VERSION, topics=wanted, **self._who(), **terms)

    def take(self) -> list[Acquired]:
        """Return what was acquired by the fetch that was sent."""
        assert self._sent is not None
        answer = self.wire.receive(self._sent)
        assert answer.error_code == Code.NONE, answer
        rows = [row for topic in answer.responses for row in topic.partitions]
        assert {row.error_code for row in rows} <= {Code.NONE}, rows
        return [
            (each.first_offset, each.last_offset, each.delivery_count)
            for row in rows
            for each in row.acquired_records
        ]

    def accept(self, acquired: Iterable[Acquired]) -> None:
        """Accept records that were acquired."""
        kind = structs("ShareAcknowledgeRequest")
        batches = [
            kind.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[ACCEPT])
            for first, last, _ in acquired
        ]
        part = kind.AcknowledgePartition(partition_index=self.partition, acknowledgement_batches=batches)
        topic = kind.AcknowledgeTopic(topic_id=self.topic_id, partitions=[part])
        answer = self.wire.ask("ShareAcknowledge", VERSION, topics=[topic], **self._who())
        codes = {row.error_code for each in answer.responses for row in each.partitions}
        assert (answer.error_code, codes <= {Code.NONE}) == (Code.NONE, True), answer

    def _who(self) -> dict[str, Any]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return {"group_id": self.group, "member_id": self.member, "share_session_epoch": epoch}
