"""What a producer sends again and again is answered as if each request had come by a connection of its own:
then each is read field by field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sent import NOW, RECORDS, batch, of_producer
from serving import connections
from stores import Clock, values
from test_learned_standby_fetch import STANDBY, primary
from waiting import until
from wire_client import Sent, WireClient, request

import segstore
from segstore.coordinator.quotas import quotas
from segstore.protocol.codec import structs
from segstore.server.apis import Api
from segstore.server.learned.produce import LearnedProduce
from segstore.storage.meta.fence import Fence
from segstore.testing import Broker

_Request = structs("ProduceRequest")
Step = Callable[["Played"], Any]
TAIL = 3  # bytes of tags that end a request


class Played:
    """A server over a store, and steps that are played on it, by one connection or each by another."""

    def __init__(self, store: segstore.Store, server: segstore.Server, one: bool) -> None:
        self.store, self.server, self._one = store, server, one
        self._wire: WireClient | None = None
        self.repeats = 0

    def send(self, data: bytes, version: int) -> Any:
        """Send a request; return its answer."""
        if self._wire is None or not self._one:
            self.close()
            self._wire = WireClient(self.server.host, self.server.port)
        self._wire.socket.sendall(data)
        (correlation_id,) = struct.unpack_from(">i", data, 8)
        found = self._wire.receive(Sent("Produce", version, correlation_id))
        (connection,) = connections(self.server)
        self.repeats += isinstance(connection.learned, LearnedProduce)
        for topic in found.responses:
            topic.topic_id = bytes(16)  # which differs from store to store
        return found

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            until(lambda: not connections(self.server))
        self._wire = None


def made(version: int = 9, records: bytes | None = None, **fields: Any) -> bytes:
    """A request as it is sent; `topic`, `index` and `correlation_id` are those of "t", 0 and 1."""
    topic, index = fields.pop("topic", "t"), fields.pop("index", 0)
    correlation_id, topic_id = fields.pop("correlation_id", 1), fields.pop("topic_id", bytes(16))
    sent = batch(max_timestamp=NOW + 5) if records is None else records
    parts = [_Request.PartitionProduceData(index=each, records=sent) for each in fields.pop("also", [index])]
    name = {"topic_id": topic_id} if version >= 13 else {"name": topic}
    topics = [_Request.TopicProduceData(**name, partition_data=parts)]
    given = {"acks": -1, "timeout_ms": 1000, "topic_data": topics, **fields}
    return request("Produce", version, correlation_id, "wire", **given)


def sent(version: int = 9, **fields: Any) -> Step:
    def step(played: Played) -> Any:
        given = dict(fields)
        if version >= 13:
            topic_id = played.store.topics()["t"].topic_id
            given["topic_id"] = segstore.names.topic_id_bytes(topic_id)
        return played.send(made(version, **given), version)

    return step


def longer(played: Played) -> Any:
    """A request with tagged fields of its own, which mean nothing to a server."""
    data = bytearray(made())
    data[-1:] = b"\x01\x09\x02ab"
    struct.pack_into(">i", data, 0, len(data) - 4)
    return played.send(bytes(data), 9)


def cut(played: Played) -> Any:
    """A batch whose last byte is wrong."""
    data = bytearray(made())
    data[-TAIL - 1] ^= 1
    return played.send(bytes(data), 9)


def did(call: Callable[[segstore.Store], object]) -> Step:
    return lambda played: call(played.store) and None


def anew(store: segstore.Store) -> None:
    store.delete_topic("t")
    store.create_topic("t", 2)


def whole(store: segstore.Store) -> None:
    store.alter_topic("t", {"compression.type": "gzip"})


def fence(store: segstore.Store) -> None:
    primary(store).register(STANDBY, sync=False)
    primary(store).demote(Fence(7, 2, STANDBY, 0, "it was promoted"))


FLUSHED, STAMPED = {"flush.messages": 1}, {"message.timestamp.type": "LogAppendTime"}
QUOTA = {"producer_byte_rate": 1_000_000}
SMALL = {"max.message.bytes": 50}
transactional = of_producer(attributes=0x10)
many = [sent(correlation_id=i, records=batch(max_timestamp=NOW + 5)) for i in (5, -1, 1 << 30)]
large = batch(records=[RECORDS[0]._replace(value=b"x" * 20_000)], last_offset_delta=0, max_timestamp=NOW)
CASES: dict[str, tuple[list[Step], int]] = {
    "three in a row": ([*many], 3),
    "version 7, without varints": ([sent(7), sent(7), sent(7)], 3),
    "version 5, which has no zstd": ([sent(5), sent(5)], 0),
    "version 13, by id": ([sent(13), sent(13), sent(13)], 3),
    "another version": ([sent(9), sent(10), sent(9)], 3),
    "acks=1": ([sent(acks=1), sent(acks=1)], 2),
    "acks that don't exist": ([sent(acks=3), sent(acks=3)], 0),
    "other acks": ([sent(acks=1), sent(acks=-1), sent(acks=1)], 3),
    "batches of other sizes": (
        [sent(), sent(records=batch(payload=None, records=RECORDS[:1], last_offset_delta=0)), sent()], 3,
    ),
    "two partitions by turns": ([sent(index=0), sent(index=1), sent(index=0), sent(index=1)], 4),
    "two partitions at once": ([sent(also=[0, 1]), sent(also=[0, 1])], 0),
    "then two partitions at once": ([sent(), sent(also=[0, 1]), sent()], 2),
    "a producer with an id": ([sent(records=of_producer(seq)) for seq in (0, 1, 2)], 3),
    "a sequence twice": ([sent(records=of_producer(seq)) for seq in (0, 1, 1, 2)], 4),
    "a sequence left out": ([sent(records=of_producer(seq)) for seq in (0, 1, 3, 2)], 4),
    "tagged fields": ([sent(), longer, sent()], 2),
    "a damaged batch": ([sent(), cut, sent()], 3),
    "a batch of a transaction": (
        [sent(), sent(records=transactional), sent(11, records=transactional)],
        3,
    ),
    "a control batch": ([sent(), sent(records=of_producer(0, attributes=0x30)), sent()], 3),
    "no records": ([sent(), sent(records=b""), sent()], 3),
    "a topic that is gone": ([sent(), did(lambda s: s.delete_topic("t")), sent(), sent()], 3),
    "a topic that was made anew": ([sent(), sent(), did(anew), sent(), sent()], 4),
    "a topic that compresses": ([sent(), did(whole), sent(), sent()], 3),
    "a topic that stamps": (
        [sent(), did(lambda s: s.alter_topic("t", STAMPED)), sent(), sent()],
        3,
    ),
    "a topic that is flushed": (
        [sent(), did(lambda s: s.alter_topic("t", FLUSHED)), sent(), sent()], 3,
    ),
    "a topic that takes less": (
        [sent(), did(lambda s: s.alter_topic("t", SMALL)), sent()], 2,
    ),
    "a producer with a quota": (
        [sent(), did(lambda s: quotas(s).alter("wire", QUOTA)), sent(), sent()], 3,
    ),
    "a store that is fenced": ([sent(), sent(), did(fence), sent(), sent()], 4),
    "records that were deleted": ([sent(), did(lambda s: s.partition("t").delete_records(2)), sent()], 2),
    "a batch of 20 KB": ([sent(), sent(records=large), sent()], 3),
}  # fmt: skip


def played(where: Path, steps: list[Step], one: bool) -> tuple[list[Any], list[Any], int]:
    """Return the answers, the records that the log has afterwards, and how many answers left a repeat."""
    with segstore.open(where, clock=Clock(NOW)) as store:
        store.create_topic("t", 2)
        with segstore.serve(store, port=0) as server:
            on = Played(store, server, one)
            answers = [step(on) for step in steps]
            on.close()
        logs = [values(store.partition("t", n)) for n in (0, 1)] if "t" in store.topics() else []
    assert segstore.check(where) == []
    return answers, logs, on.repeats


@pytest.mark.parametrize("before", [0, 2], ids=["at once", "after two"])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_the_handler(name: str, before: int, tmp_path: Path) -> None:
    """The first two requests of a connection show what the later ones may have in common."""
    steps, repeats = [sent()] * before + CASES[name][0], before + CASES[name][1]
    expected, logs, _ = played(tmp_path / "each", steps, one=False)
    found, kept, left = played(tmp_path / "one", steps, one=True)
    assert found == expected
    assert kept == logs
    assert left == repeats


def test_the_first_batch_is_not_kept(tmp_path: Path) -> None:
    """A learned request lives as long as its connection, beyond the limit of memory for requests."""
    with segstore.open(tmp_path, clock=Clock(NOW)) as store:
        store.create_topic("t", 2)
        with segstore.serve(store, port=0) as server:
            played = Played(store, server, one=True)
            sent(records=large)(played)
            (connection,) = connections(server)
            assert isinstance(connection.learned, LearnedProduce)
            request = connection.learned.request
            assert (request.frame, request.body) == (None, None)
            played.close()


def test_a_broker_of_tests_sees_each_request(tmp_path: Path) -> None:
    with Broker(tmp_path, topics=["t"]) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with WireClient(host, int(port)) as wire:
            for correlation_id in range(5):
                wire.socket.sendall(made(correlation_id=correlation_id))
                wire.receive(Sent("Produce", 9, correlation_id))
        assert [each.api for each in broker.requests].count(Api.PRODUCE) == 5
