"""Requests of Fetch as bytes, and topics to fetch from: for tests that compare answers byte for byte."""

from __future__ import annotations

import struct
from contextlib import closing
from typing import Any

from serving import within
from wire_client import WireClient, request

import segstore
from segstore.names import topic_id_bytes
from segstore.protocol.codec import structs
from segstore.server.handlers.fetch import Fetches

_Request = structs("FetchRequest")
IDS_SINCE = 13


def made(store: segstore.Store, **fields: Any) -> bytes:
    """A request as it is sent, by default of version 12 for the only partition of "t" from offset 0 on."""
    version, topic = fields.pop("version", 12), fields.pop("topic", "t")
    part = {"partition": 0, "fetch_offset": fields.pop("offset", 0), "partition_max_bytes": 1 << 20}
    part |= {each: fields.pop(each) for each in [*fields] if each in _Request.FetchPartition.__slots__}
    parts = [_Request.FetchPartition(**part | {"partition": n}) for n in fields.pop("numbers", [0])]
    topics = [_Request.FetchTopic(**named(store, topic, version), partitions=parts)]
    given = {"max_wait_ms": 0, "min_bytes": 1, "topics": topics, **fields}
    return request("Fetch", version, given.pop("correlation_id", 1), "wire", **given)


def named(store: segstore.Store, topic: str, version: int) -> dict[str, Any]:
    """How a request of a version names a topic; a topic that is not there has an id of zeros."""
    info = store.topics().get(topic)
    if version < IDS_SINCE:
        return {"topic": topic}
    return {"topic_id": topic_id_bytes(info.topic_id) if info else bytes(16)}


def asked(wire: WireClient, data: bytes) -> bytes:
    """Send a request; return its answer as it came, with its size."""
    wire.socket.sendall(data)
    return received(wire)


def received(wire: WireClient) -> bytes:
    came = b""
    while len(came) < 4 or len(came) < 4 + struct.unpack_from(">i", came)[0]:
        more = wire.socket.recv(1 << 16)
        assert more, "the connection was closed"
        came += more
    return came


def fill(store: segstore.Store) -> segstore.Store:
    """Topics: "t" of small and large batches, "c" with gaps, "x" with transactions."""
    store.create_topic("t", 2)
    for size in (10, 300, 5000, 20_000, 1):
        store.partition("t").append(b"v" * size)
    compacted = {"cleanup.policy": "compact", "segment.bytes": 1024, "min.cleanable.dirty.ratio": 0}
    store.create_topic("c", config=compacted)
    for n in range(60):
        store.partition("c").append(b"v" * 50, key=b"%d" % (n % 7))
    store.sweep()
    store.create_topic("x")
    with closing(segstore.Producer(store, transactional_id="tx", linger_ms=0)) as producer:
        producer.init_transactions()
        for ends in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send("x", b"in a transaction")
            producer.flush()
            ends()
    return store


def parked(server: segstore.Server) -> int:
    """How many fetches wait."""
    return within(server, lambda: len(server.node.part(Fetches).purgatory))
