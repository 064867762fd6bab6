"""P6, R37: what a consumer has seen never vanishes or changes, whoever leads; groups go on."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from replicated_stores import Directories, Writer, assert_prefix, found, retrying
from waiting import until

import segstore
from segstore.coordinator import retriable
from segstore.errors import KafkaTimeoutError

pytestmark = pytest.mark.kind("replicated stores")


class Reader:
    """A thread with a consumer of one partition, which notes all that it sees."""

    def __init__(self, store: Any) -> None:
        self._store, self._over = store, threading.Event()
        self.seen: dict[int, bytes | None] = {}
        self.faults: list[object] = []
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        if kind is not None:
            return
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert not self.faults, self.faults

    def _run(self) -> None:
        at = 0
        try:
            with segstore.Consumer(self._store, "t", auto_offset_reset="earliest") as consumer:
                while not self._over.is_set():
                    for some in retrying(lambda: consumer.poll(50)).values():
                        for record in some:
                            if record.offset != at:
                                self.faults.append(f"offset {record.offset} comes after {at - 1}")
                            self.seen[record.offset] = record.value
                            at = record.offset + 1
        except Exception as error:
            self.faults.append(error)


@pytest.mark.hangs
def test_p6_what_was_seen_stays_while_leaders_come_and_go(three: Directories, rng: random.Random) -> None:
    """acks=1 and acks=all: of the first, records may be lost, but none that was shown."""
    store = three.open()
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    with Reader(store) as reader, Writer(log, acks=1, pause=0) as fast, Writer(log) as safe:
        for _ in range(4):
            fast.more(50)
            until(lambda: store.describe_partition("t", 0).leader >= 0)
            stuck = store.describe_partition("t", 0).leader
            if rng.random() < 0.5:
                three.files.hang(three.paths[stuck])
                until(lambda stuck=stuck: store.describe_partition("t", 0).leader not in (stuck, -1))
                three.files.mend()
            else:
                other = rng.choice([each for each in (0, 1, 2) if each != stuck])
                three.files.hang(three.paths[other])
                until(lambda other=other: other not in store.describe_partition("t", 0).isr)
                three.files.mend()
            until(lambda: len(store.describe_partition("t", 0).isr) == 3)
    assert_prefix(reader.seen, log)
    here = found(log)
    assert safe.acked.items() <= here.items()
    assert len({*here.values()}) == len(here)


def test_r40_what_was_acknowledged_is_read_at_once(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    for number in range(200):
        offset = log.append(b"%d" % number, acks="all")
        assert log.read_one(offset).value == b"%d" % number
        assert log.end_offset > offset


PROTOCOLS = ("classic", "consumer")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_goes_on_where_it_was_after_a_failover(three: Directories, protocol: str) -> None:
    """Its offsets lie in a replicated topic: what was committed stays committed."""
    store = three.open()
    store.create_topic("t", partitions=2, replication_factor=3)
    for number in range(2):
        store.partition("t", number).append_batch([b"%d" % n for n in range(100)])
    options: Any = {"group_id": "g", "auto_offset_reset": "earliest", "group_protocol": protocol}
    with segstore.Consumer(store, "t", **options) as consumer:
        first = _polled(consumer, 120)
        consumer.commit()
    assert store.describe_partition("__consumer_offsets", 0).replicas != ()
    three.lose(store.describe_partition("t", 0).leader)
    until(lambda: all(store.describe_partition("t", n).leader >= 0 for n in range(2)))
    with segstore.Consumer(store, "t", **options) as consumer:
        rest = _polled(consumer, 80)
        retrying(consumer.commit)
    assert len({*first, *rest}) == 200
    assert not {*first} & {*rest}, "what was committed came again"


READS: dict[str, Any] = {
    "poll": lambda consumer: len(_polled(consumer, 3)),
    "iteration": lambda consumer: [next(consumer) for _ in range(3)] and 3,
    "committed": lambda consumer: consumer.committed(segstore.TopicPartition("t", 0)),
    "commit": lambda consumer: (
        consumer.commit({segstore.TopicPartition("t", 0): segstore.OffsetAndMetadata(3, "")})
        or consumer.committed(segstore.TopicPartition("t", 0))
    ),
}


READS_OF_MEMBERS = ("poll", "iteration")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("call", READS)
def test_r38_a_group_waits_for_its_offsets_after_a_failover(
    three: Directories, monkeypatch: pytest.MonkeyPatch, call: str, ready: bool, protocol: str
) -> None:
    """Kafka's clients retry COORDINATOR_LOAD_IN_PROGRESS until the time of the call is over."""
    store = three.open()
    store.create_topic("t", replication_factor=3)
    store.partition("t", 0).append_batch([b"%d" % n for n in range(6)])
    options: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    options["group_protocol"] = protocol
    with segstore.Consumer(store, "t", **options) as consumer:
        assert len(_polled(consumer, 3)) >= 3
        consumer.commit({segstore.TopicPartition("t", 0): segstore.OffsetAndMetadata(3, "")})
    three.close()
    store = three.open()
    manager, asked = store.replicated.manager, list[object]()
    shows = type(manager).await_committed

    def late(self: Any, key: Any, seconds: float) -> bool:
        asked.append(key)
        return ready and len(asked) > 3 and shows(self, key, seconds)

    monkeypatch.setattr(type(manager), "await_committed", late)
    monkeypatch.setattr(retriable, "API_TIMEOUT_MS", 60_000.0 if ready else 300.0)
    options["consumer_timeout_ms"] = 60_000 if ready else 300
    with segstore.Consumer(store, *["t"] * (call in READS_OF_MEMBERS), **options) as consumer:
        if call not in READS_OF_MEMBERS:
            consumer.assign([segstore.TopicPartition("t", 0)])
        if ready:
            assert READS[call](consumer) == 3
        elif call == "poll":
            assert consumer.poll(300) == {}
        elif call == "iteration":
            assert list(consumer) == []
        else:
            with pytest.raises(KafkaTimeoutError, match="not loaded in 300 ms"):
                READS[call](consumer)
    assert len(asked) > 3 or not ready
    monkeypatch.undo()


def _polled(consumer: Any, count: int) -> list[tuple[int, int]]:
    """At least `count` records."""
    seen: list[tuple[int, int]] = []
    while len(seen) < count:
        left = count - len(seen)
        for some in retrying(lambda left=left: consumer.poll(200, max_records=left)).values():
            seen += [(record.partition, record.offset) for record in some]
    return seen


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_stays_in_its_group_while_a_leader_is_lost(three: Directories, protocol: str) -> None:
    settings: Any = {"group_id": "g", "auto_offset_reset": "earliest", "group_protocol": protocol}
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    seen: set[int] = set()
    with (
        segstore.Consumer(store, "t", **settings) as consumer,
        Writer(log) as writer,
    ):
        for lose in (False, True):
            writer.more(30)
            if lose:
                three.lose(store.describe_partition("t", 0).leader)
                writer.more(30)
            wanted = {*writer.acked}
            while not wanted <= seen:
                for some in retrying(lambda: consumer.poll(200)).values():
                    seen |= {record.offset for record in some}
                retrying(consumer.commit)
    writer.assert_kept(log)
