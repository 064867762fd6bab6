"""Promise: segstore goes on with the share groups of a broker's directories, and the broker with those that
segstore wrote, also if records were locked when the other one stopped or was killed: each record is delivered
again with the count that a crash leaves, or never, if it was done with.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from broker_clients import produce
from kafka_tools import POM_4_3, classpath, console, why_not
from places import REPOSITORY
from share_broker import (
    GROUP,
    HAS_SHARE_CONSUMER,
    QUEUE,
    TOPIC,
    WITH_LETTERS,
    Worker,
    end,
    fill,
    first_offset,
    letters,
    share_broker,
)
from share_script import OFFSETS, Member, alter_offset, await_coordinator, written
from waiting import PATIENCE, until

import segstore
from segstore.coordinator.share.core.values import StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.share.state_log import TOPIC as STATES
from segstore.coordinator.share.state_log import StateLog, Update
from segstore.coordinator.shared import shared

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.skipif(not HAS_SHARE_CONSUMER, reason="this confluent-kafka has no share consumer"),
    pytest.mark.timeout(900),
    pytest.mark.kind("Kafka's broker"),
]
ACCEPT, RELEASE, REJECT = 1, 2, 3
ARCHIVING = 3
FIRST_EPOCH = 2
ENDS = {"killed": (True, 1), "stopped": (False, 2)}
"""Whether a process is killed, and the next delivery count of what ours has held: the end of a store is that
of its share consumers, which give back what they hold; the end of a broker is not.
"""
PRUNING = """\
share.coordinator.state.topic.prune.interval.ms=500
share.coordinator.cold.partition.snapshot.interval.ms=1000
"""
HOLDER = """
import json, sys, segstore
path, settings, acks = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
with segstore.open(path) as store:
    if "dlq.g" in store.topics():
        store.alter_topic("dlq.g", {"errors.deadletterqueue.group.enable": True})
    segstore.AdminClient(store).alter_configs([segstore.ConfigResource("GROUP", "g", settings)])
    queue = segstore.ShareConsumer(store, "t", group_id="g", share_acknowledgement_mode="explicit")
    given = {record.offset: record for record in queue.poll_flat(timeout_ms=int(sys.argv[4]))}
    print(json.dumps({offset: record.delivery_count for offset, record in given.items()}), flush=True)
    for offset, kind in acks.items():
        queue.acknowledge(given[int(offset)], segstore.AcknowledgeType(kind))
    print(json.dumps([str(error) for error in queue.commit_sync().values() if error]), flush=True)
    sys.stdin.read()
"""
"""Takes records, acknowledges some of them, and holds the others until its input ends, or it is killed."""


def work(
    logs: Path,
    acks: dict[int, int],
    kills: bool,
    settings: Mapping[str, str] = WITH_LETTERS,
    wait_ms: int = int(PATIENCE * 1000),
) -> dict[int, int]:
    """Let a process open the directories, and take records of the group, and acknowledge some; kill it with
    the others held, or let it close the store. Return the delivery counts.
    """
    told = [json.dumps(settings), json.dumps(acks), str(wait_ms)]
    command = [sys.executable, "-c", HOLDER, str(logs), *told]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        counts, errors = json.loads(process.stdout.readline()), json.loads(process.stdout.readline())
        if kills:
            process.kill()
        process.stdin.close()
        assert process.wait(PATIENCE) == (-9 if kills else 0)
    assert errors == []
    return {int(offset): number for offset, number in counts.items()}


def describe(address: str, start: str, lag: str, group: str = GROUP) -> str:
    """Check what Kafka's tool shows of the group's partition, and return its leader epoch."""
    tool = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
    told = console(tool, address, "--describe", "--offsets", "--verbose", "--group", group)
    (row,) = (line.split() for line in told.splitlines() if line.startswith(group))
    topic, partition, epoch, *rest = row[1:]
    assert (topic, partition, *rest) == (TOPIC, "0", start, lag)
    return epoch


def console_consumer(address: str, group: str, count: int) -> dict[int, int]:
    """Let Kafka's console consumer take so many records, and accept them; return the delivery counts."""
    shown = [f"--formatter-property=print.{each}=true" for each in ("offset", "delivery")]
    tool = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
    of = ("--topic", TOPIC, "--group", group, "--max-messages", str(count), "--timeout-ms", "60000")
    told = console(tool, address, *of, *shown)
    return {int(offset): int(number) for offset, number in re.findall(r"Offset:(\d+)\tDelivery:(\d+)", told)}


@pytest.mark.parametrize(("kills", "held"), ENDS.values(), ids=ENDS)
def test_q64_a_queue_moves_between_a_broker_and_segstore(kills: bool, held: int, tmp_path: Path) -> None:
    broker = share_broker(tmp_path / "broker")
    logs = broker.logs
    with broker.running() as address:
        fill(address)
        worker = Worker(address)
        assert worker.take(10) == dict.fromkeys(range(10), 1)
        worker.acknowledge({3: ACCEPT, 4: RELEASE, 5: REJECT})
        assert letters(address, 1) == [("5", b"5")]
        end(broker, kills)
        worker.close()
    assert segstore.check(logs) == []
    # The counts of locks that were not ended are lost; 3 and 5 are done with.
    taken = work(logs, {0: ACCEPT, 1: RELEASE, 2: REJECT, 4: RELEASE}, kills)
    assert taken == {**dict.fromkeys((0, 1, 2, 6, 7, 8, 9), 1), 4: 2}
    assert segstore.check(logs) == []
    shutil.rmtree(logs / ".segstore")
    broker.properties.write_text(broker.properties.read_text() + PRUNING)
    with broker.running() as address:
        worker = Worker(address)
        assert worker.take(6) == {1: 2, 4: 3, **dict.fromkeys((6, 7, 8, 9), held)}
        assert letters(address, 2) == [("5", b"5"), ("2", b"2")]
        worker.acknowledge(dict.fromkeys((1, 4, 6, 7, 8, 9), ACCEPT))
        assert worker.more(1) == {}
        epoch = int(describe(address, start="1", lag="0"))
        assert epoch > 0  # the broker leads anew
        until(lambda: first_offset(address, STATES) > 0)  # it has pruned what is before its snapshot
        worker.close()
    assert segstore.check(logs) == []
    with segstore.open(logs) as store:
        state = shared(store, StateLog).read(ShareKey(GROUP, store.topics()[TOPIC].topic_id, 0))
        assert state is not None
        assert (state.start, state.leader_epoch, state.complete) == (1, epoch, 9)
    assert work(logs, {}, kills, wait_ms=1000) == {}


def test_a_broker_of_4_3_goes_on_with_what_segstore_wrote(tmp_path: Path) -> None:
    """It knows no dead letters (share.version 1): a record that was to become one when segstore was killed is
    not delivered, and holds the start offset until segstore has the directories again.
    """
    broker = share_broker(tmp_path / "broker", "", classpath(POM_4_3))
    logs = broker.logs
    with broker.running() as address:
        fill(address, QUEUE)
        worker = Worker(address)
        assert worker.take(10) == dict.fromkeys(range(10), 1)
        worker.acknowledge({3: ACCEPT, 4: RELEASE, 5: REJECT})
        end(broker, kills=True)
        worker.close()
    taken = work(logs, {0: ACCEPT, 1: RELEASE, 2: REJECT, 4: RELEASE}, True, QUEUE)
    assert taken == {**dict.fromkeys((0, 1, 2, 6, 7, 8, 9), 1), 4: 2}
    with segstore.open(logs) as store:
        states = shared(store, StateLog)
        (key,) = states.keys_of(GROUP)
        rejected = Update(2, 0, 1, 4, [StateBatch(6, 6, ARCHIVING, 1)])
        assert states.write({key: rejected}) == {key: None}
    shutil.rmtree(logs / ".segstore")
    with broker.running() as address:
        worker = Worker(address)
        assert worker.take(5) == {1: 2, 4: 3, **dict.fromkeys((7, 8, 9), 1)}
        worker.acknowledge(dict.fromkeys((1, 4, 7, 8, 9), ACCEPT))
        worker.close()
        describe(address, start="1", lag="1")
    assert segstore.check(logs) == []
    with segstore.open(logs) as store, segstore.ShareConsumer(store, TOPIC, group_id=GROUP) as queue:
        coordinator = shared(store, ShareCoordinator)
        until(lambda: queue.poll(100) or coordinator.offsets(GROUP)[key].lag == 0)
        assert coordinator.offsets(GROUP)[key][::2] == (6, 0)


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "answered"])
def test_q98_a_group_without_members_moves(is_noted: bool, tmp_path: Path) -> None:
    """A broker has no record of such a group's epoch, only of its partitions. It answers once the offset is
    in the state, and then notes that the partition has a state, which a kill may prevent.
    """
    group = TOPIC
    broker = share_broker(tmp_path / "broker")
    logs = broker.logs
    with broker.running() as address:
        fill(address)
        await_coordinator(address)
        alter_offset(address, group, 4)
        if is_noted:
            until(lambda: last_note(logs)["initializedTopics"])
        end(broker, kills=True)
    if not is_noted:
        cut_the_note(logs)
    assert segstore.check(logs) == []
    with segstore.open(logs) as store:
        admin = segstore.AdminClient(store)
        assert [(each["group_id"], each["group_type"]) for each in admin.list_groups()] == [(group, "share")]
        with segstore.ShareConsumer(store, TOPIC, group_id=group) as queue:
            taken = until(lambda: queue.poll_flat(timeout_ms=100))
        assert [(each.offset, each.delivery_count) for each in taken] == [(each, 1) for each in range(4, 10)]
        at = segstore.TopicPartition(TOPIC, 0)
        assert admin.alter_share_group_offsets(group, {at: 7}) == {at: None}
    shutil.rmtree(logs / ".segstore")
    with broker.running() as address:
        assert console_consumer(address, group, 3) == {7: 1, 8: 1, 9: 1}
        describe(address, start="7", lag="0", group=group)
        alter_offset(address, group, 2)
    with segstore.open(logs) as store, segstore.ShareConsumer(store, TOPIC, group_id=group) as queue:
        taken = until(lambda: queue.poll_flat(timeout_ms=100))
        assert [(each.offset, each.delivery_count) for each in taken] == [(each, 1) for each in range(2, 10)]


def test_q48_a_broker_goes_on_with_a_state_that_was_cut(tmp_path: Path) -> None:
    """The log has lost its end in a crash, and got other records since."""
    broker = share_broker(tmp_path / "broker")
    logs = broker.logs
    file = logs / f"{TOPIC}-0" / f"{0:020d}.log"
    with broker.running() as address:
        fill(address)
        size = file.stat().st_size
        produce(address, TOPIC, [b""] * 5)
        worker = Worker(address)
        assert worker.take(15) == dict.fromkeys(range(15), 1)
        worker.acknowledge({0: ACCEPT, 9: RELEASE, **dict.fromkeys(range(10, 15), ACCEPT)})
        end(broker, kills=True)
        worker.close()
    os.truncate(file, size)
    with segstore.open(logs) as store:
        store.partition(TOPIC).append_batch([b""] * 5)
    taken = work(logs, {1: ACCEPT, 9: RELEASE, 10: ACCEPT}, True)
    assert taken == {**dict.fromkeys((*range(1, 9), *range(10, 15)), 1), 9: 2}
    assert segstore.check(logs) == []
    shutil.rmtree(logs / ".segstore")
    with broker.running() as address:
        assert console_consumer(address, GROUP, 12) == {
            **dict.fromkeys((*range(2, 9), *range(11, 15)), 1),
            9: 3,
        }
        describe(address, start="2", lag="0")
    with segstore.open(logs) as store:
        group = segstore.AdminClient(store).describe_share_groups([GROUP])[GROUP]
        states = shared(store, StateLog)
        state = states.read(*states.keys_of(GROUP))
        assert state is not None
        assert FIRST_EPOCH < state.state_epoch <= group.generation


def test_q83_a_broker_that_stops_between_two_heartbeats(tmp_path: Path) -> None:
    """It has noted a member, and a state that it was to begin, and nothing else."""
    broker = share_broker(tmp_path / "broker")
    logs = broker.logs
    with broker.running() as address:
        fill(address)
        await_coordinator(address)
        Member(address, TOPIC).join()
        end(broker, kills=True)
    offsets = logs / f"{OFFSETS}-0" / f"{0:020d}.log"
    os.truncate(offsets, first_batch(offsets.read_bytes()))
    os.truncate(logs / f"{STATES}-0" / f"{0:020d}.log", 0)
    with segstore.open(logs) as store:
        group = segstore.ConfigResource("GROUP", TOPIC, QUEUE)  # settings do not lie in the directories
        segstore.AdminClient(store).alter_configs([group])
        with segstore.ShareConsumer(store, TOPIC, group_id=TOPIC) as queue:
            taken = until(lambda: queue.poll_flat(timeout_ms=100, max_records=4))
        assert [(each.offset, each.delivery_count) for each in taken] == [(each, 1) for each in range(4)]
    assert segstore.check(logs) == []
    shutil.rmtree(logs / ".segstore")
    with broker.running() as address:
        assert console_consumer(address, TOPIC, 6).keys() == set(range(4, 10))
        describe(address, start="4", lag="0", group=TOPIC)


def first_batch(data: bytes) -> int:
    """Return the size of a log's first batch, which has those of a heartbeat's records."""
    return 12 + int.from_bytes(data[8:12], "big")


def last_note(logs: Path) -> Mapping[str, Any]:
    """Return the last record of the offsets topic, which lists a group's share partitions."""
    *_, (_, value) = written(logs, OFFSETS)
    assert value is not None
    return value["data"]


def cut_the_note(logs: Path) -> None:
    """Cut the last record of the offsets topic if it says that the share partition has a state."""
    if last_note(logs)["initializedTopics"]:
        file = logs / f"{OFFSETS}-0" / f"{0:020d}.log"
        os.truncate(file, last_batch(file.read_bytes()))
    assert last_note(logs)["initializingTopics"]


def last_batch(data: bytes) -> int:
    """Return the position of a log's last batch."""
    at = after = 0
    while after < len(data):
        at, after = after, after + first_batch(data[after:])
    return at
