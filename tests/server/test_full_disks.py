"""Promise: what a full disk refuses is told with a code after which clients try again, in the same
connection; nothing that was acknowledged is lost, and once there is room all goes on, without a second copy.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faults import FailingFiles
from sent import of_producer
from stores import logs, records
from waiting import until
from wire_client import WireClient

import segstore
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api

WRITES = ("pwrite", "pwritev", "allocate", "mkdir")
FOR_EVER = 1 << 30
CONFIG = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


class Disk(NamedTuple):
    """A served store on a disk that may be full."""

    store: segstore.Store
    files: FailingFiles
    wire: WireClient

    def fill(self) -> None:
        self.files.arm(1, FOR_EVER)

    def empty(self) -> None:
        assert self.files.hits
        self.files.arm(0, 0)


@pytest.fixture
def disk(store_dir: Path) -> Iterator[Disk]:
    files = FailingFiles(WRITES, OSError(errno.ENOSPC, "No space left on device"), nth=0)
    with segstore.open(store_dir, config=CONFIG, files=files) as store:
        store.create_topic("t", 1, {"segment.bytes": 1000})
        with segstore.serve(store, port=0) as server, WireClient(server.host, server.port) as wire:
            yield Disk(store, files, wire)


def produce(wire: WireClient, sequence: int) -> tuple[int, int]:
    kind = structs("ProduceRequest")
    data = [kind.PartitionProduceData(index=0, records=bytes(of_producer(sequence, 3)))]
    topics = [kind.TopicProduceData(name="t", partition_data=data)]
    body = wire.ask(Api.PRODUCE, 9, acks=-1, timeout_ms=1000, topic_data=topics)
    told = body.responses[0].partition_responses[0]
    return told.error_code, told.base_offset


def test_a_batch_is_written_once_when_there_is_room(disk: Disk) -> None:
    """At each of the batches until the log has rolled several times."""
    for n in range(40):
        disk.fill()
        for _ in range(3):
            assert produce(disk.wire, 3 * n) == (Code.KAFKA_STORAGE_ERROR, -1)
        disk.empty()
        assert produce(disk.wire, 3 * n) == (Code.NONE, 3 * n)
        assert produce(disk.wire, 3 * n) == (Code.NONE, 3 * n)  # its answer was lost
    log = disk.store.partition("t")
    assert len(logs(Path(disk.store.context.root))) > 2
    assert [record.offset for record in records(log)] == [*range(120)]


@pytest.mark.parametrize(
    ("version", "said"), [(7, None), (8, "No space left on device"), (9, "No space left on device")]
)
def test_the_answer_says_why(disk: Disk, version: int, said: str | None) -> None:
    """The message has no path."""
    disk.fill()
    kind = structs("ProduceRequest")
    data = [kind.PartitionProduceData(index=0, records=bytes(of_producer(0, 3)))]
    topics = [kind.TopicProduceData(name="t", partition_data=data)]
    body = disk.wire.ask(Api.PRODUCE, version, acks=-1, timeout_ms=1000, topic_data=topics)
    told = body.responses[0].partition_responses[0]
    assert (told.error_code, told.error_message) == (Code.KAFKA_STORAGE_ERROR, said)
    disk.empty()


def test_a_server_says_it_once(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.fill()
    for _ in range(30):
        assert produce(disk.wire, 0)[0] == Code.KAFKA_STORAGE_ERROR
    lines = [record.getMessage() for record in caplog.records]
    until(lambda: disk.store.stats()[0].error)
    assert len([line for line in lines if "appends fail until there is room" in line]) <= 1
    disk.empty()
    assert produce(disk.wire, 0) == (Code.NONE, 0)


def test_what_is_there_is_read_meanwhile(disk: Disk) -> None:
    produce(disk.wire, 0)
    disk.fill()
    assert produce(disk.wire, 3)[0] == Code.KAFKA_STORAGE_ERROR
    kind = structs("FetchRequest")
    part = kind.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [kind.FetchTopic(topic="t", partitions=[part])]
    body = disk.wire.ask(Api.FETCH, 11, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
    found = body.responses[0].partitions[0]
    assert (found.error_code, found.high_watermark, bool(found.records)) == (Code.NONE, 3, True)
    disk.empty()


def _commit(wire: WireClient) -> int:
    kind = structs("OffsetCommitRequest")
    part = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic = kind.OffsetCommitRequestTopic(name="t", partitions=[part])
    body = wire.ask(Api.OFFSET_COMMIT, 7, group_id="g", generation_id_or_member_epoch=-1, topics=[topic])
    return int(body.topics[0].partitions[0].error_code)


def _create(wire: WireClient) -> int:
    topic = structs("CreateTopicsRequest").CreatableTopic(name="new", num_partitions=2, replication_factor=1)
    return int(wire.ask(Api.CREATE_TOPICS, 5, topics=[topic], timeout_ms=1000).topics[0].error_code)


def _init(wire: WireClient) -> int:
    told = {"transactional_id": "x", "transaction_timeout_ms": 1000}
    return int(wire.ask(Api.INIT_PRODUCER_ID, 4, **told).error_code)


AGAIN = {Code.KAFKA_STORAGE_ERROR, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}
"""After these clients try again."""
REQUESTS: dict[str, Callable[[WireClient], int]] = {
    "a commit of offsets": _commit, "a new topic": _create, "a producer id": _init,
}  # fmt: skip


@pytest.mark.parametrize("first", [True, False], ids=["nothing is there", "it was asked before"])
@pytest.mark.parametrize("name", REQUESTS)
def test_others_are_refused_until_there_is_room(disk: Disk, name: str, first: bool) -> None:
    """`first`: what the request needs, such as an internal topic, is to be made too."""
    ask: Any = REQUESTS[name]
    if not first and name != "a new topic":
        assert ask(disk.wire) == Code.NONE
    disk.fill()
    for _ in range(2):
        assert ask(disk.wire) in AGAIN
    disk.empty()
    assert ask(disk.wire) == Code.NONE
