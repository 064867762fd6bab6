"""Several worker processes and one server, which has the log: tasks in, results out, each exactly once.

    pip install confluent-kafka                   # beside segstore
    python examples/workers.py tasks-log 4        # four workers, until Ctrl-C
    echo "some words to count" | segstore produce tasks --bootstrap 127.0.0.1:9092
    segstore consume results --bootstrap 127.0.0.1:9092 --follow

The parent serves its store by Kafka's protocol. Workers are a consumer group, by confluent-kafka here;
clients of any language can join it. A worker writes the results and the offsets of the tasks in one
transaction.

`kill -9` of a worker: its transaction is aborted, the others get its partitions, and the parent starts
another.
`kill -9` of the parent: workers see that and end; the next start goes on where the last transaction ended.
Ctrl-C or SIGTERM: workers finish the tasks that they hold, then the server answers what has come and the
store is closed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

import segstore

SPAWN = multiprocessing.get_context("spawn")  # a store is not used across a fork
PARTITIONS = 8


def work(task: bytes) -> bytes:
    """Return the result of a task."""
    return b"%d words: %s" % (len(task.split()), task)


def worker(servers: str, number: int) -> None:
    """Handle tasks until the parent ends this process, or is gone, or a transaction fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, frame: stopping.append(signum))
    parent, common = os.getppid(), {"bootstrap.servers": servers}
    group = {"group.id": "workers", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**common, **group, "session.timeout.ms": 6000})
    # A worker that takes the place of a dead one has its id, which ends the dead one's transaction.
    name = {"transactional.id": f"worker-{number}", "transaction.timeout.ms": 10_000}
    producer = Producer({**common, **name})
    try:
        producer.init_transactions()
        consumer.subscribe(["tasks"])
        while not stopping and os.getppid() == parent:
            tasks = [message for message in consumer.consume(100, timeout=0.2) if message.error() is None]
            if tasks:
                handle(tasks, consumer, producer)
    except KafkaException as error:  # such as a rebalance amid a transaction: the parent starts a new worker
        print(f"worker {number} ends: {error}", file=sys.stderr, flush=True)
    finally:
        consumer.close()


def handle(tasks: list[Message], consumer: Consumer, producer: Producer) -> None:
    """Write the results, and where to go on behind the tasks, in one transaction."""
    producer.begin_transaction()
    behind: dict[tuple[str, int], int] = {}
    for task in tasks:
        producer.produce("results", work(task.value()), key=task.key())
        behind[task.topic(), task.partition()] = task.offset() + 1
    offsets = [TopicPartition(*partition, offset) for partition, offset in behind.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
    producer.commit_transaction()


def main(path: str, count: int = 2, port: int = 9092) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    with segstore.open(path) as store, segstore.serve(store, port=port) as server:
        for topic in ("tasks", "results"):
            store.ensure_topic(topic, partitions=PARTITIONS)
        workers: dict[int, multiprocessing.process.BaseProcess] = {}
        try:
            print(server.bootstrap_servers, flush=True)
            while True:
                for number in range(count):
                    if number not in workers or not workers[number].is_alive():
                        workers[number] = SPAWN.Process(
                            target=worker, args=(server.bootstrap_servers, number)
                        )
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
    parser = argparse.ArgumentParser(usage="workers.py STORE [WORKERS [PORT]]")
    parser.add_argument("path")
    parser.add_argument("count", nargs="?", type=int, default=2)
    parser.add_argument("port", nargs="?", type=int, default=9092)
    try:
        main(**vars(parser.parse_args()))
    except segstore.ListenError as error:  # another port is the third argument
        sys.exit(str(error))
