"""Fetches between our replicas and brokers of a real Kafka cluster: `RemoteLeader` asks for our followers,
`Server` answers for our leaders.

`RemoteLeader` is what a `LocalReplica` sees of a leader elsewhere. Threads: that of the data directory calls
it; the server has one for each connection.
"""

from __future__ import annotations

import base64
import socket
import threading
import time
import uuid
from contextlib import suppress
from typing import Any, Protocol

from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.consumer.offsets import ListOffsetsRequest, ListOffsetsResponse
from kafka_wire import CODES, UNKNOWN_TOPIC_ID, Address, Connection, code_of, read_message

from segstore.errors import NotLeaderOrFollowerError, OffsetOutOfRangeError, SegstoreError
from segstore.integers import INT64_MAX
from segstore.leader_epochs import EpochEnd
from segstore.records import scan
from segstore.replication.core import messages
from segstore.replication.local_replica import LocalReplica
from segstore.replication.metadata.image import PartitionKey
from segstore.storage.log.recent_appends import RecentAppends

FETCH, LIST_OFFSETS = 1, 2
LATEST, EARLIEST = -1, -2
FETCH_VERSION, OFFSETS_VERSION = 17, 9
MAX_BYTES = 1 << 20
PATIENT = 1.5
"""Seconds that a leader may need for an answer: as long, the directory's thread sends no heartbeats."""
LOOK = 0.005  # seconds between two looks for records that a follower waits for


def to_uuid(text: str) -> uuid.UUID:
    """Return an id that Kafka writes in base64."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def to_text(of: uuid.UUID) -> str:
    """Return an id as Kafka writes it."""
    return base64.urlsafe_b64encode(of.bytes).decode().rstrip("=")


class RemoteLeader:
    """Another broker, as the leader of the partition that `of` was called for last."""

    def __init__(self, node: int, broker: int, address: Address) -> None:
        self.broker, self._node = broker, node
        self._to = Connection(address, PATIENT)
        self._key, self._topic_id, self._data = PartitionKey("", -1), uuid.UUID(int=0), b""

    def of(self, key: PartitionKey, topic_id: str) -> RemoteLeader:
        self._key, self._topic_id = key, to_uuid(topic_id)
        return self

    @property
    def replica(self) -> _Fetched:
        """Return what reads the records that `fetch` has brought."""
        return _Fetched(self._data)

    def fetch(self, asked: messages.FetchRequest, synced: int) -> messages.FetchAnswer:
        """See `LocalReplica.fetch`. A broker that can't be reached is one that does not lead."""
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=self._key.partition,
            current_leader_epoch=asked.current_leader_epoch,
            fetch_offset=asked.fetch_offset,
            last_fetched_epoch=asked.last_fetched_epoch,
            log_start_offset=asked.log_start_offset,
            partition_max_bytes=MAX_BYTES,
            version=FETCH_VERSION,
        )
        state = FetchRequest.ReplicaState(
            replica_id=asked.replica, replica_epoch=asked.broker_epoch, version=FETCH_VERSION
        )
        topic = FetchRequest.FetchTopic(
            topic_id=self._topic_id, partitions=[partition], version=FETCH_VERSION
        )
        request = FetchRequest(
            version=FETCH_VERSION, replica_state=state, max_wait_ms=0, min_bytes=0, topics=[topic]
        )
        answer = self._call(request, FetchResponse)
        assert answer.error_code == 0, answer
        found = answer.responses[0].partitions[0]
        self._check(found.error_code, asked.fetch_offset)
        self._data = bytes(found.records or b"")
        batches, _ = scan(self._data)
        end = int(batches["last_offset"][-1]) + 1 if len(batches) else asked.fetch_offset
        diverging = None
        if found.diverging_epoch is not None and found.diverging_epoch.end_offset >= 0:
            diverging = EpochEnd(found.diverging_epoch.epoch, found.diverging_epoch.end_offset)
        return messages.FetchAnswer(diverging, found.high_watermark, found.log_start_offset, end)

    def takes_tails(self) -> bool:
        """Return False: what is appended on another machine comes by fetches alone."""
        return False

    def offsets(self, current_leader_epoch: int) -> tuple[int, int]:
        """See `LocalReplica.offsets`."""
        return self._offset(EARLIEST, current_leader_epoch), self._offset(LATEST, current_leader_epoch)

    def _offset(self, timestamp: int, epoch: int) -> int:
        wanted = ListOffsetsRequest.ListOffsetsTopic
        partition = wanted.ListOffsetsPartition(
            partition_index=self._key.partition,
            current_leader_epoch=epoch,
            timestamp=timestamp,
            version=OFFSETS_VERSION,
        )
        topic = wanted(name=self._key.topic, partitions=[partition], version=OFFSETS_VERSION)
        request = ListOffsetsRequest(
            version=OFFSETS_VERSION, replica_id=self._node, isolation_level=0, topics=[topic]
        )
        found = self._call(request, ListOffsetsResponse).topics[0].partitions[0]
        self._check(found.error_code, -1)
        return int(found.offset)

    def _call(self, request: Any, answer: Any) -> Any:
        try:
            return self._to.call(request, answer)
        except OSError as error:
            raise NotLeaderOrFollowerError(f"broker {self.broker}: {error}") from None

    def _check(self, code: int, offset: int) -> None:
        if code == 0:
            return
        kind = CODES.get(code, NotLeaderOrFollowerError)
        if kind is OffsetOutOfRangeError:
            raise OffsetOutOfRangeError(offset, -1, -1)
        raise kind(f"broker {self.broker}: error {code}")


class _Fetched:
    """Records that have come already."""

    recent = RecentAppends()
    """What another broker has appended is not in our memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, end_offset: int, max_bytes: int, into: object = None) -> bytes:
        """See `Replica.read`."""
        return self._data


class Replicas(Protocol):
    """Whom a server asks for replicas."""

    def replica(self, topic_id: str, partition: int) -> LocalReplica | None:
        """Return a replica by its topic's id; None where there is none."""

    def replica_named(self, topic: str, partition: int) -> LocalReplica | None:
        """Return a replica by its topic's name."""


class Server:
    """Answers Fetch and ListOffsets of other brokers."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address: Address = ("127.0.0.1", self._socket.getsockname()[1])
        self.serves = True
        """Whether followers get records; without that their fetches are not answered."""
        self._lock, self._over = threading.Lock(), False

    def run(self) -> None:
        """Take connections, until `close`."""
        while not self._over:
            with suppress(OSError):
                stream, _ = self._socket.accept()
                threading.Thread(target=self._talk, args=(stream,), daemon=True).start()

    def close(self) -> None:
        self._over = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def settle(self) -> None:
        """Wait until no answer is being made."""
        with self._lock:
            pass

    def _talk(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with stream, suppress(ConnectionError):
            while not self._over:
                self._answer(stream, read_message(stream))

    def _answer(self, stream: socket.socket, data: bytes) -> None:
        key, version = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:4], "big")
        if key == FETCH:
            request: Any = FetchRequest.decode(data, version=version, header=True)
            answer = self._fetched(request, version)
        elif key == LIST_OFFSETS:
            request = ListOffsetsRequest.decode(data, version=version, header=True)
            answer = self._listed(request, version)
        else:
            raise ConnectionError(f"request {key} is not served here")
        answer.with_header(correlation_id=request.header.correlation_id)
        stream.sendall(answer.encode(header=True, framed=True))

    def _fetched(self, request: Any, version: int) -> Any:
        """Answer at once where there are records, a divergence or an error; else wait for them."""
        end = time.monotonic() + request.max_wait_ms / 1000
        while True:
            with self._lock:
                if self.serves:
                    topics, more = self._topics(request, version)
                    if more or time.monotonic() >= end:
                        return FetchResponse(version=version, responses=topics)
            if self._over:
                raise ConnectionError
            time.sleep(LOOK)

    def _topics(self, request: Any, version: int) -> tuple[list[Any], bool]:
        made, more = [], False
        for topic in request.topics:
            found = [
                self._partition(topic.topic_id, each, request.replica_state, version)
                for each in topic.partitions
            ]
            more = more or any(one.error_code or one.records or one.diverging_epoch for one in found)
            made.append(
                FetchResponse.FetchableTopicResponse(
                    topic_id=topic.topic_id, partitions=found, version=version
                )
            )
        return made, more

    def _partition(self, topic_id: uuid.UUID, asked: Any, follower: Any, version: int) -> Any:
        replica = self._replicas.replica(to_text(topic_id), asked.partition)
        if replica is None:
            return _partition(asked.partition, version, error_code=UNKNOWN_TOPIC_ID)
        request = messages.FetchRequest(
            follower.replica_id,
            follower.replica_epoch,
            asked.current_leader_epoch,
            asked.fetch_offset,
            asked.last_fetched_epoch,
            asked.log_start_offset,
        )
        try:
            answer = replica.fetch(request, INT64_MAX)  # nobody tells how far a broker has synced
            fields: dict[str, Any] = {
                "high_watermark": answer.high_watermark,
                "last_stable_offset": answer.high_watermark,
                "log_start_offset": answer.log_start_offset,
            }
            if answer.diverging is not None:
                epoch, offset = answer.diverging
                fields["diverging_epoch"] = FetchResponse.FetchableTopicResponse.PartitionData.EpochEndOffset(
                    epoch=epoch, end_offset=offset, version=version
                )
            elif answer.end_offset > asked.fetch_offset:
                limit = asked.partition_max_bytes
                fields["records"] = replica.replica.read(asked.fetch_offset, answer.end_offset, limit)
        except SegstoreError as error:
            return _partition(asked.partition, version, error_code=code_of(error))
        return _partition(asked.partition, version, **fields)

    def _listed(self, request: Any, version: int) -> Any:
        made = []
        for topic in request.topics:
            found = [self._offset(topic.name, each, version) for each in topic.partitions]
            made.append(
                ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=topic.name, partitions=found, version=version
                )
            )
        return ListOffsetsResponse(version=version, topics=made)

    def _offset(self, topic: str, asked: Any, version: int) -> Any:
        kind = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
        replica = self._replicas.replica_named(topic, asked.partition_index)
        fields: dict[str, Any] = {"error_code": UNKNOWN_TOPIC_ID}
        if replica is not None:
            try:
                start, end = replica.offsets(asked.current_leader_epoch)
                fields = {"offset": end if asked.timestamp == LATEST else start, "timestamp": -1}
                fields |= {"leader_epoch": asked.current_leader_epoch}
            except SegstoreError as error:
                fields = {"error_code": code_of(error)}
        return kind(partition_index=asked.partition_index, version=version, **fields)


def _partition(number: int, version: int, **fields: Any) -> Any:
    default = {"error_code": 0, "high_watermark": -1, "records": b"", "aborted_transactions": None}
    return FetchResponse.FetchableTopicResponse.PartitionData(
        partition_index=number, version=version, **{**default, **fields}
    )
