"""Requests as bytes, and a client that does nothing but send them and read the answers: what is measured is
the server. Threads: one a client.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from oracle import Record
from sent import batch as sent_batch
from waiting import PATIENCE
from wire_client import WireClient, request

from segstore.protocol.codec import structs

_Produce, _Fetch, _Offsets = structs("ProduceRequest"), structs("FetchRequest"), structs("ListOffsetsRequest")
_SIZE = struct.Struct(">i")
BUFFER = 1 << 20
WHOLE_BATCH = 1 << 16
"""Bytes of a batch of which a fetch takes a whole number."""
LATEST = -1


def batch(value_bytes: int) -> bytes:
    """One record of now, as a producer without an id sends it."""
    now = time.time_ns() // 1_000_000
    one = Record(0, now, None, b"x" * value_bytes, [])
    return bytes(sent_batch(records=[one], last_offset_delta=0, base_timestamp=now, max_timestamp=now))


def batch_of(size: int) -> bytes:
    """One record, in a batch of exactly so many bytes."""
    made = batch(size - len(batch(size)) + size)
    assert len(made) == size
    return made


def produce(topic: str, records: bytes, partition: int = 0) -> bytes:
    """A request of version 9, which all leaders acknowledge at once: there is one replica."""
    part = _Produce.PartitionProduceData(index=partition, records=records)
    topics = [_Produce.TopicProduceData(name=topic, partition_data=[part])]
    return request("Produce", 9, 1, "bench", acks=-1, timeout_ms=30_000, topic_data=topics)


def fetch(topic: str, offset: int, max_bytes: int, wait_ms: int = 0) -> bytes:
    """A request of version 12, outside of a session."""
    part = _Fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = [_Fetch.FetchTopic(topic=topic, partitions=[part])]
    return request(
        "Fetch", 12, 1, "bench", max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, topics=topics,
        session_epoch=-1,
    )  # fmt: skip


def metadata(topic: str) -> bytes:
    topics = [structs("MetadataRequest").MetadataRequestTopic(name=topic)]
    return request("Metadata", 12, 1, "bench", topics=topics, allow_auto_topic_creation=False)


def leads(wire: WireClient, topic: str, partition: int) -> bool:
    """Whether a partition answers."""
    return bool(_offset(wire, topic, partition).error_code == 0)


def end_offset(wire: WireClient, topic: str) -> int:
    found = _offset(wire, topic, 0)
    assert found.error_code == 0, f"ListOffsets of {topic} has error {found.error_code}"
    return int(found.offset)


def _offset(wire: WireClient, topic: str, partition: int) -> Any:
    part = _Offsets.ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
    (told,) = wire.ask(
        "ListOffsets", 7, topics=[_Offsets.ListOffsetsTopic(name=topic, partitions=[part])]
    ).topics
    (found,) = told.partitions
    return found


class Raw:
    """One connection, one request at a time."""

    def __init__(self, address: str | tuple[str, int], buffer: bytearray | None = None) -> None:
        if isinstance(address, str):
            host, _, port = address.rpartition(":")
            address = host, int(port)
        self.socket = socket.create_connection(address, timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(buffer or bytearray(BUFFER))

    def exchange(self, data: bytes) -> int:
        """Send a request, read its answer, and return the answer's bytes without its size. Of an answer that
        is larger than the buffer only the end stays.
        """
        self.socket.sendall(data)
        return self.receive()

    def receive(self) -> int:
        into, buffer = self.socket.recv_into, self._buffer
        got = into(buffer)
        while got < _SIZE.size:
            got += self._more(into(buffer[got:]))
        (size,) = _SIZE.unpack_from(buffer)
        left = size + _SIZE.size - got
        while left > 0:
            left -= self._more(into(buffer, min(left, len(buffer))))
        assert left == 0, "an answer is longer than its size says"
        return int(size)

    @staticmethod
    def _more(count: int) -> int:
        if not count:
            raise ConnectionResetError("the server has closed the connection within an answer")
        return count

    def close(self) -> None:
        self.socket.close()


@contextmanager
def raw(address: str | tuple[str, int], buffer: bytearray | None = None) -> Iterator[Raw]:
    """Clients that are used by turns may have one buffer."""
    with closing(Raw(address, buffer)) as client:
        yield client


def repeated(client: Raw, data: bytes, seconds: float) -> list[float]:
    """Send a request again and again; the seconds of each."""
    took: list[float] = []
    clock, exchange = time.perf_counter, client.exchange
    before = clock()
    end = before + seconds
    while before < end:
        exchange(data)
        now = clock()
        took.append(now - before)
        before = now
    return took


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def micros(took: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """p50 and p99 in µs, under these names."""
    return {name: percentile(took, share) * 1e6 for name, share in zip(names, (0.5, 0.99), strict=True)}
