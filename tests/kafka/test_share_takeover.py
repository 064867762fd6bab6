"""Promise: segstore goes on with the share groups of a broker's directories, and the broker with those that
segstore wrote, also if records were locked when the other one stopped or was killed: each record is delivered
again with the count that a crash leaves, or never, if it was done with.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from kafka_tools import POM_4_3, classpath, console, why_not
from places import REPOSITORY
from waiting import PATIENCE, until

import segstore
from segstore.coordinator.share.core.values import StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.share.state_log import TOPIC as STATES
from segstore.coordinator.share.state_log import StateLog, Update
from segstore.coordinator.shared import shared

confluent_kafka = pytest.importorskip("confluent_kafka", reason="Kafka's broker needs a share consumer")
if not hasattr(confluent_kafka, "ShareConsumer"):
    pytest.skip("this confluent-kafka has no share consumer", allow_module_level=True)

from share_broker import (  # noqa: E402 - it needs the share consumer
    GROUP,
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

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),
]
ACCEPT, RELEASE, REJECT = 1, 2, 3
ARCHIVING = 3
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
    given = {}
    while len(given) < int(sys.argv[4]):
        given |= {record.offset: record for record in queue.poll_flat(timeout_ms=1000)}
    print(json.dumps({offset: record.delivery_count for offset, record in given.items()}), flush=True)
    for offset, kind in acks.items():
        queue.acknowledge(given[int(offset)], segstore.AcknowledgeType(kind))
    print(json.dumps([str(error) for error in queue.commit_sync().values() if error]), flush=True)
    sys.stdin.read()
"""
"""Takes records, acknowledges some of them, and holds the others until its input ends, or it is killed."""


def work(
    logs: Path, count: int, acks: dict[int, int], kills: bool, settings: Mapping[str, str] = WITH_LETTERS
) -> dict[int, int]:
    """Let a process open the directories, and take records of the group, and acknowledge some; kill it with
    the others held, or let it close the store. Return the delivery counts.
    """
    command = [
        sys.executable,
        "-c",
        HOLDER,
        str(logs),
        json.dumps(settings),
        json.dumps(acks),
        str(count),
    ]
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


def describe(address: str, start: str, lag: str) -> str:
    """Check what Kafka's tool shows of the group's partition, and return its leader epoch."""
    tool = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
    told = console(tool, address, "--describe", "--offsets", "--verbose", "--group", GROUP)
    (row,) = (line.split() for line in told.splitlines() if line.startswith(GROUP))
    topic, partition, epoch, *rest = row[1:]
    assert (topic, partition, *rest) == (TOPIC, "0", start, lag)
    return epoch


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
    taken = work(logs, 8, {0: ACCEPT, 1: RELEASE, 2: REJECT, 4: RELEASE}, kills)
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
    assert work(logs, 0, {}, kills) == {}


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
    taken = work(logs, 8, {0: ACCEPT, 1: RELEASE, 2: REJECT, 4: RELEASE}, True, QUEUE)
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
