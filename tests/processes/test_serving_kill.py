"""What docs/processes.md says of deaths: clients of a killed server go on with the next one, and a killed
member of a group leaves its partitions to the others.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from cli import start_program
from places import environment
from waiting import PATIENCE, until

import segstore

pytestmark = pytest.mark.kind("kills")


@contextmanager
def serving(store: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server in a process of its own, and its port."""
    with start_program("serve", "-s", store, "--listen", f"127.0.0.1:{port}") as program:
        try:
            assert program.stdout is not None
            yield program, int(program.stdout.readline().rpartition(b":")[2])
        finally:
            program.kill()


def test_a_producer_goes_on_with_the_server_after_one_that_was_killed(store_dir: Path) -> None:
    acknowledged: list[object] = []
    with serving(store_dir) as (server, port):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": f"127.0.0.1:{port}", "enable.idempotence": True, "linger.ms": 0}
        )

        def send(begin: int, end: int) -> None:
            for number in range(begin, end):
                producer.produce("t", b"%d" % number, on_delivery=lambda error, _: acknowledged.append(error))
                producer.poll(0)

        send(0, 500)
        until(lambda: producer.poll(0.01) is not None and acknowledged)
        server.send_signal(signal.SIGKILL)
        server.wait(PATIENCE)
        send(500, 1000)
    with serving(store_dir, port):
        assert producer.flush(PATIENCE) == 0
    assert acknowledged == [None] * 1000
    with segstore.open(store_dir) as store:
        assert [*store.partition("t").read(0, 1 << 24).values] == [b"%d" % number for number in range(1000)]


MEMBER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g", "session.timeout.ms": 6000,
                     "auto.offset.reset": "earliest"})
consumer.subscribe(["t"])
while consumer.poll(0.1) is None:
    pass
print("reads", flush=True)
while True:
    consumer.poll(1)
"""


def test_a_killed_member_of_a_group_leaves_its_partitions_to_others(store: segstore.Store) -> None:
    """It sends no LeaveGroup: the others wait for its session's end."""
    store.create_topic("t", 2)
    for number in range(2):
        store.partition("t", number).append(b"x")
    with segstore.serve(store, port=0, group_initial_rebalance_delay_ms=0) as server:
        where = server.bootstrap_servers
        command = [sys.executable, "-c", MEMBER, where]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as member:
            assert member.stdout is not None
            assert member.stdout.readline() == b"reads\n"
            member.send_signal(signal.SIGKILL)
        consumer = confluent_kafka.Consumer({"bootstrap.servers": where, "group.id": "g"})
        consumer.subscribe(["t"])
        until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
        consumer.close()
