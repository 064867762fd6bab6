"""Several worker processes and one log: tasks in, results out, each exactly once. Two ways:

share: each worker opens the store and appends by itself; nothing is needed beside segstore.

    python examples/workers.py share tasks-log 4          # four workers, until Ctrl-C
    echo "some words to count" | segstore produce tasks --store tasks-log
    segstore consume results --store tasks-log --follow

The parent is the host, and each worker is a guest, which has some of the partitions. A result has the offset
of its task: an append with `expected_offset` is refused if somebody has handled the task already.

serve: the parent serves its store by Kafka's protocol, and each worker is a client, of any language.

    pip install confluent-kafka                           # beside segstore
    python examples/workers.py serve tasks-log 4          # four workers, until Ctrl-C
    echo "some words to count" | segstore produce tasks --bootstrap 127.0.0.1:9092
    segstore consume results --bootstrap 127.0.0.1:9092 --follow

Workers are a consumer group, by confluent-kafka here. A worker writes the results and the offsets of the
tasks in one transaction.

`kill -9` of a worker: the parent starts another one, which goes on with the tasks that have no result. If
the parent serves, the dead one's transaction is aborted, and the others get its partitions meanwhile.
`kill -9` of the parent: workers see that and end; the next start goes on where the last result is.
Ctrl-C or SIGTERM: workers finish the tasks that they hold, then the store is closed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import segstore

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer

SPAWN = multiprocessing.get_context("spawn")  # a store is not used across a fork
PARTITIONS = 8


def work(task: bytes) -> bytes:
    """Return the result of a task."""
    return b"%d words: %s" % (len(task.split()), task)


def until_stopped() -> Callable[[], bool]:
    """Return a function that says whether the parent wants this process to go on, and lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, frame: stopping.append(signum))
    parent = os.getppid()
    return lambda: not stopping and os.getppid() == parent


# --- share ----------------------------------------------------------------------------------------


def guest(path: str, number: int, count: int) -> None:
    """Handle the tasks of some partitions, as one of `count` workers that share the store."""
    go_on = until_stopped()
    with segstore.open(path, shared="guest", timeout=10) as store:
        mine = range(number, PARTITIONS, count)
        logs = [(store.partition("tasks", each), store.partition("results", each)) for each in mine]
        while go_on():
            seen = store.publications
            for tasks, results in logs:
                append_results(tasks, results)
            store.wait(seen, 200)


def append_results(tasks: segstore.PartitionLog, results: segstore.PartitionLog) -> None:
    """Append the result of each task that has none; its offset is the task's."""
    for task in tasks.read(results.end_offset):
        try:
            results.append(work(task.value), key=task.key, expected_offset=task.offset)
        except segstore.OffsetMismatchError:  # one that was stopped, and goes on, or was taken for dead
            return


# --- serve ----------------------------------------------------------------------------------------


def client(servers: str, number: int, _count: int) -> None:
    """Handle tasks as a member of a group, until the parent ends this process, or a transaction fails."""
    from confluent_kafka import Consumer, KafkaException, Producer

    go_on, common = until_stopped(), {"bootstrap.servers": servers}
    group = {"group.id": "workers", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**common, **group, "session.timeout.ms": 6000})
    # A worker that takes the place of a dead one has its id, which ends the dead one's transaction.
    name = {"transactional.id": f"worker-{number}", "transaction.timeout.ms": 10_000}
    producer = Producer({**common, **name})
    try:
        producer.init_transactions()
        consumer.subscribe(["tasks"])
        while go_on():
            tasks = [message for message in consumer.consume(100, timeout=0.2) if message.error() is None]
            if tasks:
                handle(tasks, consumer, producer)
    except KafkaException as error:  # such as a rebalance amid a transaction: the parent starts a new worker
        print(f"worker {number} ends: {error}", file=sys.stderr, flush=True)
    finally:
        consumer.close()


def handle(tasks: list[Message], consumer: Consumer, producer: Producer) -> None:
    """Write the results, and where to go on behind the tasks, in one transaction."""
    from confluent_kafka import TopicPartition

    producer.begin_transaction()
    behind: dict[tuple[str, int], int] = {}
    for task in tasks:
        producer.produce("results", work(task.value()), key=task.key())
        behind[task.topic(), task.partition()] = task.offset() + 1
    offsets = [TopicPartition(*partition, offset) for partition, offset in behind.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
    producer.commit_transaction()


# --- the parent -----------------------------------------------------------------------------------


def main(way: str, path: str, count: int = 2, port: int = 9092) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    with ExitStack() as stack:
        store = stack.enter_context(segstore.open(path, shared=way == "share"))
        target, place = guest, path
        if way == "serve":
            server = stack.enter_context(segstore.serve(store, port=port))
            target, place = client, server.bootstrap_servers
        for topic in ("tasks", "results"):
            store.ensure_topic(topic, partitions=PARTITIONS)
        print(place, flush=True)
        supervise(target, place, count)


def supervise(target: Callable[[str, int, int], None], place: str, count: int) -> None:
    """Keep `count` workers at work until Ctrl-C."""
    workers: dict[int, multiprocessing.process.BaseProcess] = {}
    try:
        while True:
            for number in range(count):
                if number not in workers or not workers[number].is_alive():
                    workers[number] = SPAWN.Process(target=target, args=(place, number, count))
                    workers[number].start()
                    print(f"worker {number} is process {workers[number].pid}", flush=True)
            time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    finally:
        for process in workers.values():
            process.terminate()
        for process in workers.values():
            process.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage="workers.py share|serve STORE [WORKERS [PORT]]")
    parser.add_argument("way", choices=["share", "serve"])
    parser.add_argument("path")
    parser.add_argument("count", nargs="?", type=int, default=2)
    parser.add_argument("port", nargs="?", type=int, default=9092)
    try:
        main(**vars(parser.parse_args()))
    except segstore.ListenError as error:  # another port is the fourth argument
        sys.exit(str(error))
