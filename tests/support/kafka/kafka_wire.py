"""Kafka's protocol as brokers speak it to controllers and to each other.

Fetch and ListOffsets are encoded by kafka-python. It has no schemas of the three requests that only brokers
send to controllers: these are written here, each in the one version that is used.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka_schema import Reader, array, int8, int16, int32, int64, string, tags

from segstore import errors
from segstore.replication.core.messages import AlterPartition, AlterPartitionReply
from segstore.replication.metadata.records import uuid_bytes, uuid_text

Address = tuple[str, int]
NO_TAGS = tags({})

CODES: Mapping[int, type[errors.SegstoreError]] = {
    1: errors.OffsetOutOfRangeError,
    6: errors.NotLeaderOrFollowerError,
    41: errors.NotControllerError,
    42: errors.InvalidRequestError,
    55: errors.OperationNotAttemptedError,
    56: errors.ReplicaOfflineError,
    74: errors.FencedLeaderEpochError,
    75: errors.UnknownLeaderEpochError,
    77: errors.StaleBrokerEpochError,
    95: errors.InvalidUpdateVersionError,
    101: errors.DuplicateBrokerRegistrationError,
    107: errors.IneligibleReplicaError,
    108: errors.NewLeaderElectedError,
}
"""Kafka's error codes (org.apache.kafka.common.protocol.Errors)."""
UNKNOWN_TOPIC_ID = 100


def code_of(error: errors.SegstoreError) -> int:
    """Return the code by which Kafka tells an error."""
    return next(code for code, kind in CODES.items() if isinstance(error, kind))


class Heartbeat(NamedTuple):
    """A controller's answer to a heartbeat."""

    error: int
    caught_up: bool
    fenced: bool
    may_shut_down: bool


def read_message(stream: socket.socket) -> bytes:
    """Read a message and its length. Raises ConnectionError at the end."""
    return _exactly(stream, struct.unpack(">i", _exactly(stream, 4))[0])


def _exactly(stream: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = stream.recv(count - len(data))
        if not part:
            raise ConnectionError("the other side has closed the connection")
        data += part
    return bytes(data)


class Connection:
    """A connection to a broker or controller, for one thread. It is made when it is needed, and made anew
    after an OSError.
    """

    def __init__(self, address: Address, seconds: float = 5) -> None:
        self._address, self._seconds = address, seconds
        self._stream: socket.socket | None = None
        self._count = 0

    def call(self, request: Any, answer: Any) -> Any:
        """Send a request of kafka-python, whose version is set, and return its answer. Raises OSError."""
        self._count += 1
        request.with_header(correlation_id=self._count, client_id="segstore")
        data = self._exchange(request.encode(header=True, framed=True))
        return answer.decode(data, version=request.API_VERSION, header=True)

    def send(self, key: int, version: int, body: bytes) -> Reader:
        """Send a request of a flexible version, and return a reader of its answer. Raises OSError."""
        self._count += 1
        data = int16(key) + int16(version) + int32(self._count) + string("segstore") + NO_TAGS + body
        reader = Reader(self._exchange(int32(len(data)) + data))
        assert reader.int32() == self._count
        reader.tags()
        return reader

    def _exchange(self, data: bytes) -> bytes:
        try:
            if self._stream is None:
                self._stream = socket.create_connection(self._address, self._seconds)
                self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._stream.sendall(data)
            return read_message(self._stream)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


# --- what brokers tell controllers ----------------------------------------------------------------


def _text(value: str) -> bytes:
    return string(value, compact=True)


def _structures(parts: list[bytes]) -> bytes:
    return array([part + NO_TAGS for part in parts], compact=True)


def register(
    to: Connection,
    broker: int,
    cluster_id: str,
    incarnation: str,
    address: Address,
    features: Mapping[str, tuple[int, int]],
    directory_id: str,
    previous_epoch: int,
) -> tuple[int, int]:
    """Send BrokerRegistration v4; return an error code and the broker epoch."""
    host, port = address
    reader = to.send(
        62,
        4,
        int32(broker)
        + _text(cluster_id)
        + uuid_bytes(incarnation)
        + _structures([_text("PLAINTEXT") + _text(host) + struct.pack(">Hh", port, 0)])
        + _structures([_text(name) + int16(low) + int16(high) for name, (low, high) in features.items()])
        + string(None, compact=True)
        + int8(0)
        + array([uuid_bytes(directory_id)], compact=True)
        + int64(previous_epoch)
        + NO_TAGS,
    )
    reader.int32()
    return reader.int16(), reader.int64()


def heartbeat(
    to: Connection, broker: int, epoch: int, metadata_offset: int, want_shutdown: bool = False
) -> Heartbeat:
    """Send BrokerHeartbeat v1."""
    wants = int8(0) + int8(want_shutdown)
    reader = to.send(63, 1, int32(broker) + int64(epoch) + int64(metadata_offset) + wants + NO_TAGS)
    reader.int32()
    return Heartbeat(reader.int16(), *(bool(reader.int8()) for _ in range(3)))


def alter_partition(
    to: Connection, epoch: int, topic_id: str, partition: int, message: AlterPartition
) -> AlterPartitionReply:
    """Send AlterPartition v3 for one partition."""
    state = (
        int32(partition)
        + int32(message.leader_epoch)
        + _structures([int32(broker) + int64(of) for broker, of in message.isr])
        + int8(message.recovering)
        + int32(message.partition_epoch)
    )
    topic = uuid_bytes(topic_id) + _structures([state])
    reader = to.send(56, 3, int32(message.leader) + int64(epoch) + _structures([topic]) + NO_TAGS)
    reader.int32()
    if error := reader.int16():
        return AlterPartitionReply(CODES[error])
    replies: list[AlterPartitionReply] = []
    reader.array(lambda: (uuid_text(reader.uuid()), _replies(reader, replies), reader.tags()), compact=True)
    return replies[0]


def _replies(reader: Reader, replies: list[AlterPartitionReply]) -> None:
    def one() -> None:
        reader.int32()
        error = reader.int16()
        reader.int32()
        epoch = reader.int32()
        isr = tuple(reader.array(reader.int32, compact=True))
        reader.int8()
        replies.append(AlterPartitionReply(CODES[error] if error else None, epoch, reader.int32(), isr))
        reader.tags()

    reader.array(one, compact=True)
