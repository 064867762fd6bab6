"""A work queue: jobs are put in, workers share them, failed ones come again, hopeless ones are set aside.

    python examples/jobs.py jobs-log              # three workers and jobs without end, until Ctrl-C
    python examples/jobs.py jobs-log 40           # puts 40 jobs in; ends when all are done, or set aside
    python examples/jobs.py jobs-log --again      # shows the jobs that were set aside, and puts them in again
    segstore groups describe workers --store jobs-log

Workers are share consumers of one group. A job is delivered to one of them at a time, which accepts it
(done), releases it (again, for anybody), rejects it (never again), or renews it (not done yet). Jobs that
were rejected, or delivered three times in vain, are copied to the topic `dlq.jobs` with headers that say why.

Here workers are threads, since a share group belongs to the process that writes the store; `segstore serve`
has share groups for clients in other processes, of any language.

A worker that ends by an error gives its job back, and another one is started in its place. `kill -9` or a
power cut: the next start delivers all jobs again that were not accepted, so a job may be done twice, and none
is lost. Ctrl-C or SIGTERM: each worker ends the job that it has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import threading
import time

import segstore
from segstore import AcknowledgeType

WORKERS, PARTITIONS = 3, 2
LOCK_MS = 1000
GROUP = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": 3,
    "share.record.lock.duration.ms": LOCK_MS,
    "errors.deadletterqueue.topic.name": "dlq.jobs",
    "errors.deadletterqueue.copy.record.enable": True,
}
KINDS = ("slow", "mail", "flaky", "mail", "broken", "mail", "stubborn", "mail", "deadly", *["mail"] * 3)


class Busy(Exception):
    """A job can't be done now."""


class Broken(Exception):
    """A job can't ever be done."""


def open_store(path: str) -> segstore.Store:
    """Open the store, with its topics and the settings of the group."""
    store = segstore.open(path, config={"group.share.min.record.lock.duration.ms": LOCK_MS})
    store.ensure_topic("jobs", partitions=PARTITIONS)
    store.ensure_topic("done")
    store.ensure_topic("dlq.jobs", config={"errors.deadletterqueue.group.enable": True})
    segstore.AdminClient(store).alter_configs([segstore.ConfigResource("GROUP", "workers", GROUP)])
    return store


def put(producer: segstore.Producer, number: int, kind: str, *, is_fixed: bool = False) -> None:
    """Put a job in."""
    job = {"number": number, "kind": kind, "is_fixed": is_fixed}
    producer.send("jobs", json.dumps(job).encode(), key=b"%d" % number)


# --- workers --------------------------------------------------------------------------------------


def work(job: dict, tries: int) -> None:
    """Do a job. Raises Busy, Broken, and, as an error in a program would, ZeroDivisionError."""
    if job["is_fixed"]:
        return
    if job["kind"] == "stubborn" or (job["kind"] == "flaky" and tries == 1):
        raise Busy
    if job["kind"] == "broken":
        raise Broken
    if job["kind"] == "deadly" and tries == 1:
        raise ZeroDivisionError


class Worker(threading.Thread):
    """Handles jobs until `stop`."""

    def __init__(self, store: segstore.Store, stop: threading.Event) -> None:
        super().__init__()
        self.store, self.stop = store, stop

    def run(self) -> None:
        try:
            self.take_jobs()
        except Exception as error:  # the consumer is closed by then, and has given back its job
            print(f"a worker has ended: {error!r}", flush=True)

    def take_jobs(self) -> None:
        with segstore.ShareConsumer(
            self.store,
            "jobs",
            group_id="workers",
            share_acknowledgement_mode="explicit",
            # One job at a time: the others are free for other workers.
            share_acquire_mode="record_limit",
            max_poll_records=1,
        ) as queue:
            done = self.store.partition("done")
            while not self.stop.is_set():
                for record in queue.poll_flat(timeout_ms=100):
                    answer = self.handle(queue, record)
                    if answer == AcknowledgeType.ACCEPT:  # first the result: a crash in between repeats it
                        done.append(b"%d-%d" % (record.partition, record.offset), key=record.key)
                    queue.acknowledge(record, answer)
                    queue.commit_sync()

    def handle(self, queue: segstore.ShareConsumer, record: segstore.ConsumerRecord) -> AcknowledgeType:
        """Do a job, and return what is to become of it."""
        job = json.loads(record.value)
        try:
            work(job, record.delivery_count)
            if job["kind"] == "slow":
                take_long(queue, record)
        except Busy:
            return AcknowledgeType.RELEASE
        except Broken:
            return AcknowledgeType.REJECT
        return AcknowledgeType.ACCEPT


def take_long(queue: segstore.ShareConsumer, record: segstore.ConsumerRecord) -> None:
    """Work longer than a job stays with a worker: each renewal begins that time anew."""
    for _ in range(4):
        time.sleep(LOCK_MS / 1000 / 3)
        queue.acknowledge(record, AcknowledgeType.RENEW)
        queue.commit_sync()
        if not queue.poll_flat():  # which gives it again
            raise Busy  # it was late, and is another one's


def supervise(store: segstore.Store, stop: threading.Event, are_all_in: threading.Event) -> None:
    """Keep workers at work, until `stop`, or `are_all_in` and all jobs are done or set aside."""
    workers: list[Worker] = []
    while not stop.is_set() and not (are_all_in.is_set() and len(finished(store)) == count_jobs(store)):
        workers = [each for each in workers if each.is_alive()]
        while len(workers) < WORKERS:
            workers.append(Worker(store, stop))
            workers[-1].start()
        stop.wait(0.05)
    stop.set()
    for each in workers:
        each.join()


def finished(store: segstore.Store) -> set[bytes]:
    """Return the places of jobs, "PARTITION-OFFSET", that are done or set aside."""
    found = {record.value for record in store.partition("done")}
    for record in store.partition("dlq.jobs"):
        why = dict(record.headers)
        found.add(why["__dlq.errors.partition"] + b"-" + why["__dlq.errors.offset"])
    return found


def count_jobs(store: segstore.Store) -> int:
    """Return how many jobs were put in."""
    return sum(store.partition("jobs", number).end_offset for number in range(PARTITIONS))


# --- dead letters ---------------------------------------------------------------------------------


def put_again(store: segstore.Store) -> None:
    """Show the jobs that were set aside, and put them in again, as if they were mended."""
    segstore.AdminClient(store).alter_configs(
        [segstore.ConfigResource("GROUP", "menders", {"share.auto.offset.reset": "earliest"})]
    )
    with (
        segstore.Producer(store) as producer,
        segstore.ShareConsumer(
            store, "dlq.jobs", group_id="menders", share_acknowledgement_mode="explicit"
        ) as queue,
    ):
        while records := queue.poll_flat(timeout_ms=1000):
            for record in records:
                why = dict(record.headers)
                job = json.loads(record.value)
                print(
                    f"job {job['number']} ({job['kind']}) from offset {why['__dlq.errors.offset'].decode()}, "
                    f"delivered {why['__dlq.errors.delivery.count'].decode()} times: "
                    f"{why['__dlq.errors.message'].decode()}",
                    flush=True,
                )
                put(producer, job["number"], job["kind"], is_fixed=True)
                queue.acknowledge(record)
            producer.flush()  # first the job, then the letter: a crash in between puts a job in twice
            queue.commit_sync()


def main(path: str, count: int | None = None, *, again: bool = False) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    stop, are_all_in = threading.Event(), threading.Event()
    with open_store(path) as store:
        if again:
            put_again(store)
            return
        supervisor = threading.Thread(target=supervise, args=(store, stop, are_all_in))
        supervisor.start()
        try:
            put_all(store, count)
            are_all_in.set()
            supervisor.join()
        except KeyboardInterrupt:
            pass
        finally:
            stop.set()
            supervisor.join()
        print(f"{len(finished(store))} of {count_jobs(store)} jobs are done or set aside", flush=True)


def put_all(store: segstore.Store, count: int | None) -> None:
    """Put jobs in, so many or without end."""
    first = count_jobs(store)
    with segstore.Producer(store) as producer:
        for number in itertools.count(first) if count is None else range(first, first + count):
            put(producer, number, KINDS[number % len(KINDS)])
            if count is None:
                time.sleep(0.05)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage="jobs.py STORE [COUNT | --again]")
    parser.add_argument("path")
    parser.add_argument("count", nargs="?", type=int)
    parser.add_argument("--again", action="store_true")
    main(**vars(parser.parse_args()))
