"""Promise: a small request takes few Python calls of the server's thread, whatever the machine is: these are
most of its time.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from sent import NOW, batch
from serving import within
from waiting import until
from wire_client import WireClient

import segstore
from segstore.protocol.codec import structs
from segstore.server.handlers.fetch import Fetches

_Produce, _Fetch, _Metadata = structs("ProduceRequest"), structs("FetchRequest"), structs("MetadataRequest")
TIMES, WIDE = 20, 50
Ask = Callable[[WireClient], None]


def produce(wire: WireClient) -> None:
    part = _Produce.PartitionProduceData(index=0, records=batch(max_timestamp=NOW + 5))
    topics = [_Produce.TopicProduceData(name="t", partition_data=[part])]
    (topic,) = wire.ask("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics).responses
    assert topic.partition_responses[0].error_code == 0


def fetched(offset: int, wait_ms: int) -> dict[str, Any]:
    part = _Fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=100)
    topics = [_Fetch.FetchTopic(topic="t", partitions=[part])]
    return {"max_wait_ms": wait_ms, "min_bytes": 1, "topics": topics}


def fetch(wire: WireClient) -> None:
    (topic,) = wire.ask("Fetch", 12, **fetched(0, 0)).responses
    assert topic.partitions[0].records


def poll_in_vain(wire: WireClient) -> None:
    """A long poll, until its time is over."""
    (topic,) = wire.ask("Fetch", 12, **fetched(3, 1)).responses
    assert not topic.partitions[0].records


def metadata(wire: WireClient) -> None:
    (topic,) = wire.ask("Metadata", 12, topics=[_Metadata.MetadataRequestTopic(name="t")]).topics
    assert len(topic.partitions) == 1


def wide_metadata(wire: WireClient) -> None:
    (topic,) = wire.ask("Metadata", 12, topics=[_Metadata.MetadataRequestTopic(name="wide")]).topics
    assert len(topic.partitions) == WIDE


MOST: dict[str, tuple[Ask, int]] = {
    "produce": (produce, 13),
    "fetch": (fetch, 19),
    "a long poll in vain": (poll_in_vain, 90),
    "metadata": (metadata, 121),
    "metadata of many partitions": (wide_metadata, 121),
}

IN_SESSION: dict[str, tuple[int | None, int, int]] = {
    "records of one partition": (0, 0, 76),
    "nothing new": (None, 0, 51),
    "a long poll in vain": (None, 1, 90),
}
"""The fetch offset, None where no partition is named, how long to wait, and the most calls. Read field by
field these requests take 138, 101 and 145 calls.
"""


@pytest.fixture
def filled(store: segstore.Store, wire: WireClient) -> WireClient:
    """A client whose requests are known to the server, of a topic with one batch of three records."""
    store.create_topic("t")
    store.create_topic("wide", WIDE)
    produce(wire)
    return wire


def counted(server: segstore.Server, asked: Callable[[], object]) -> Counter[str]:
    """Return the Python calls of the server's thread meanwhile."""
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, called: object) -> None:
        if event == "call":
            calls[f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}"] += 1

    within(server, lambda: sys.setprofile(profile))
    try:
        asked()
    finally:
        within(server, lambda: sys.setprofile(None))
    return calls


def assert_at_most(most: int, calls: Counter[str]) -> None:
    told = "\n".join(f"{count / TIMES:.1f} {name}" for name, count in calls.most_common())
    assert calls.total() <= most * TIMES, f"{calls.total() / TIMES} calls a request:\n{told}"


@pytest.mark.parametrize("name", MOST)
def test_a_request_takes_few_calls(server: segstore.Server, filled: WireClient, name: str) -> None:
    ask, most = MOST[name]
    for _ in range(3):  # what later ones find at hand
        ask(filled)

    def asked() -> None:
        for _ in range(TIMES):
            ask(filled)

    assert_at_most(most, counted(server, asked))


@pytest.mark.parametrize("name", IN_SESSION)
def test_a_request_in_a_session_takes_few_calls(
    server: segstore.Server, filled: WireClient, name: str
) -> None:
    offset, wait_ms, most = IN_SESSION[name]
    session_id, epoch = 0, 0

    def ask(offset: int | None, wait_ms: int) -> None:
        nonlocal session_id, epoch
        wanted = fetched(offset or 0, wait_ms) | ({} if offset is not None else {"topics": []})
        answer = filled.ask("Fetch", 12, session_id=session_id, session_epoch=epoch, **wanted)
        assert answer.error_code == 0
        session_id, epoch = answer.session_id, epoch + 1
        assert bool(answer.responses) is (offset == 0 or epoch == 1)

    def asked() -> None:
        for _ in range(TIMES):
            ask(offset, wait_ms)

    ask(3, 0)
    for _ in range(3):  # what later ones find at hand
        ask(offset, wait_ms)
    assert_at_most(most, counted(server, asked))


def test_a_parked_fetch_is_counted_by_its_partition_s_ends(
    server: segstore.Server, filled: WireClient
) -> None:
    """When something was appended, what it waits for is looked at once, for its answer."""

    def polled(wire: WireClient) -> None:
        sent = wire.send("Fetch", 12, **fetched(3, 600_000))
        until(lambda: within(server, lambda: len(server.node.part(Fetches).purgatory)))
        produce(filled)
        (topic,) = wire.receive(sent).responses
        assert topic.partitions[0].records

    with WireClient(server.host, server.port) as wire:
        calls = counted(server, lambda: polled(wire))
    looks = {name: count for name, count in calls.items() if name.endswith((":look", ":counted"))}
    assert looks["segstore.server.fetching.reading:look"] == 2
    assert "segstore.server.fetching.reading:counted" not in looks
