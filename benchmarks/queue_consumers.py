"""Consumers of one queue that has its jobs already, by a share group and by other means: a run of a case.

Each consumer is a thread that takes jobs and acknowledges them until all are done, and notes how long each
commit took. Jobs are records of 100 bytes, appended in batches of 16 KiB to one partition after all consumers
have joined. Behind a run every job must be acknowledged. The runs of `FIRSTS` measure how long the first poll
of a store's first share group takes to return a job.

On disk: a store, or a database, for each run, in a temporary directory. Threads: one for each consumer, and
those of stores.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import segstore
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition

ROOT = Path(__file__).parents[1]
TOPIC, GROUP, VALUE = "jobs", "workers", b"x" * 100
BATCH_BYTES, LONGEST = 16_384, 120.0
RATE, CPU, P50, P99, LEAST, MS = "jobs/s", "cpu us", "p50 us", "p99 us", "least", "first ms"
SHARE, CONSUMER = "share group", "consumer group"
FIRST, FIRST_OF_ALL = "first job of a new group", "first job of a new group, in a new process"
PERSIST, SQLITE = "persist-queue, SQLiteAckQueue", "SQLite, a table"
AT = TopicPartition(TOPIC, 0)
CLAIM = (
    "UPDATE jobs SET state = 1 WHERE id = (SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT 1)"
    " RETURNING id, value"
)
DONE = "UPDATE jobs SET state = 2 WHERE id = ?"


class Case(NamedTuple):
    """How so many consumers take jobs, how many jobs they acknowledge together, and whether each
    acknowledgement waits for a sync.
    """

    way: str
    consumers: int = 1
    together: int = 1
    durable: bool = False

    @property
    def jobs(self) -> int:
        """How many jobs a second of a run takes: fewer if one of them takes longer."""
        one = 400 if self.durable else 20_000
        return one * (10 if self.together > 1 else 1)


Note = Callable[[int], object]
"""Notes how many ns a commit took."""
Work = Callable[[Note], int]
"""Takes jobs, acknowledges them, and returns how many it has done; 0 if there were none."""


class Queue(NamedTuple):
    """A queue that is open: `join` has a new consumer, `fill` adds jobs, `left` counts those not done."""

    join: Callable[[], AbstractContextManager[Work]]
    fill: Callable[[int], object]
    left: Callable[[], int]


def can_run(case: Case) -> bool:
    """Return whether what the case needs is installed here."""
    return case.way != PERSIST or find_spec("persistqueue") is not None


# --- segstore ------------------------------------------------------------------------------------


@contextmanager
def shared_group(path: str, case: Case) -> Iterator[Queue]:
    with segstore.open(path) as store:
        store.create_topic(TOPIC)
        queue = Queue(
            partial(share_consumer, store, case),
            partial(filled, store, "__share_group_state", case),
            lambda: segstore.AdminClient(store).list_share_group_offsets(GROUP)[AT].lag,
        )
        yield queue


@contextmanager
def share_consumer(store: segstore.Store, case: Case) -> Iterator[Work]:
    settings: dict[str, Any] = {
        "group_id": GROUP,
        "share_acknowledgement_mode": "explicit",
        "max_poll_records": max(case.together, 100),
    }
    with segstore.ShareConsumer(store, TOPIC, **settings) as consumer:
        consumer.poll()
        yield partial(acknowledged, consumer, case.together)


def acknowledged(consumer: segstore.ShareConsumer, together: int, note: Note) -> int:
    records = consumer.poll_flat(timeout_ms=10)
    clock, last = time.perf_counter_ns, time.perf_counter_ns()
    for number, record in enumerate(records, 1):
        consumer.acknowledge(record)
        if number % together == 0 or number == len(records):
            committed(consumer)
            now = clock()
            note(now - last)
            last = now
    return len(records)


def committed(consumer: segstore.ShareConsumer) -> None:
    """Send what was acknowledged. Raises what the commit of a partition has failed with."""
    for error in consumer.commit_sync().values():
        if error is not None:
            raise error


@contextmanager
def consumer_group(path: str, case: Case) -> Iterator[Queue]:
    with segstore.open(path) as store:
        store.create_topic(TOPIC)
        committed = partial(segstore.AdminClient(store).list_consumer_group_offsets, GROUP)
        yield Queue(
            partial(consumer_of_group, store, case),
            partial(filled, store, "__consumer_offsets", case),
            lambda: store.partition(TOPIC).end_offset - committed()[AT].offset,
        )


@contextmanager
def consumer_of_group(store: segstore.Store, case: Case) -> Iterator[Work]:
    settings: dict[str, Any] = {
        "group_id": GROUP,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "max_poll_records": max(case.together, 100),
    }
    with segstore.Consumer(store, TOPIC, **settings) as consumer:
        consumer.poll()
        yield partial(consumed, consumer, case.together)


def consumed(consumer: segstore.Consumer, together: int, note: Note) -> int:
    records = consumer.poll(timeout_ms=10).get(AT, [])
    clock, last = time.perf_counter_ns, time.perf_counter_ns()
    for number, record in enumerate(records, 1):
        if number % together == 0 or number == len(records):
            consumer.commit({AT: OffsetAndMetadata(record.offset + 1, "")})
            now = clock()
            note(now - last)
            last = now
    return len(records)


def filled(store: segstore.Store, internal: str, case: Case, jobs: int) -> None:
    """Append jobs; in a durable case sync each record of the internal topic, which is there by now."""
    if case.durable:
        changes = segstore.ConfigResource("TOPIC", internal, {"flush.messages": "1"})
        segstore.AdminClient(store).alter_configs([changes])
    store.partition(TOPIC).append_batch([VALUE] * jobs, batch_bytes=BATCH_BYTES)


# --- others --------------------------------------------------------------------------------------


@contextmanager
def sqlite(path: str, case: Case) -> Iterator[Queue]:
    """A claim is one statement, and so is an acknowledgement; each is a transaction, with a WAL."""
    with closing(connected(path, case.durable)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE jobs(id INTEGER PRIMARY KEY, state INTEGER, value BLOB)")
        database.execute("CREATE INDEX waiting ON jobs(id) WHERE state = 0")

        def fill(jobs: int) -> None:
            database.execute("BEGIN")
            database.executemany("INSERT INTO jobs(state, value) VALUES (0, ?)", [(VALUE,)] * jobs)
            database.execute("COMMIT")

        def left() -> int:
            return int(database.execute("SELECT count(*) FROM jobs WHERE state != 2").fetchone()[0])

        yield Queue(partial(sqlite_consumer, path, case.durable), fill, left)


def connected(path: str, durable: bool) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=LONGEST, isolation_level=None, check_same_thread=False)
    database.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
    return database


@contextmanager
def sqlite_consumer(path: str, durable: bool) -> Iterator[Work]:
    with closing(connected(path, durable)) as database:

        def work(note: Note) -> int:
            row = database.execute(CLAIM).fetchone()
            if row is None:
                return 0
            began = time.perf_counter_ns()
            database.execute(DONE, (row[0],))
            note(time.perf_counter_ns() - began)
            return 1

        yield work


@contextmanager
def persist_queue(path: str, case: Case) -> Iterator[Queue]:
    """One object for all consumers, as its locks are of threads."""
    import persistqueue

    queue = persistqueue.SQLiteAckQueue(path, multithreading=True)
    connections = (queue._putter, queue._getter)
    for connection in connections:
        connection.execute(f"PRAGMA synchronous={'FULL' if case.durable else 'OFF'}")

    def fill(jobs: int) -> None:
        for _ in range(jobs):
            queue.put(VALUE)

    def work(note: Note) -> int:
        try:
            job = queue.get(block=False, raw=True)
        except persistqueue.Empty:
            return 0
        began = time.perf_counter_ns()
        queue.ack(id=job["pqid"])
        note(time.perf_counter_ns() - began)
        return 1

    @contextmanager
    def join() -> Iterator[Work]:
        yield work

    with closing(queue):
        yield Queue(join, fill, lambda: queue._count() + queue.unack_count())


# --- a run ---------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[str, Case], AbstractContextManager[Queue]]] = {
    SHARE: shared_group,
    CONSUMER: consumer_group,
    PERSIST: persist_queue,
    SQLITE: sqlite,
}


class Took(NamedTuple):
    """When a consumer has begun and done its last job, how many it has done, and the times of its commits."""

    began: float
    ended: float
    done: int
    commits: list[int]


def run(case: Case, seconds: float, directory: str | None = None) -> dict[str, float]:
    """Run a case of about so many seconds, and return its figures. RuntimeError if a job is not done."""
    with tempfile.TemporaryDirectory(prefix="segstore-queue-", dir=directory) as made:
        path = str(Path(made, "queue"))
        if case.way in FIRSTS:
            return {MS: FIRSTS[case.way](path)}
        jobs = max(round(case.jobs * seconds), case.consumers)
        with WAYS[case.way](path, case) as queue:
            took, cpu = consumers(case, queue, jobs)
            left = queue.left()
    if left or sum(each.done for each in took) != jobs:
        raise RuntimeError(f"{case}: {left} of {jobs} jobs are not acknowledged")
    return figures_of(took, jobs, cpu)


def consumers(case: Case, queue: Queue, jobs: int) -> tuple[list[Took], float]:
    """Let consumers do all jobs; return what each took, and the processor time of all in s."""
    ready, go = threading.Barrier(case.consumers + 1, timeout=LONGEST), threading.Event()
    done = Progress(jobs)
    found: list[Took] = []
    failed: list[BaseException] = []

    def consume() -> None:
        try:
            with queue.join() as work:
                ready.wait()
                go.wait(LONGEST)
                found.append(worked(work, done))
        except BaseException as error:
            failed.append(error)
            ready.abort()
            done.abort()

    with ExitStack() as stack:
        for _ in range(case.consumers):
            thread = threading.Thread(target=consume)
            thread.start()
            stack.callback(thread.join)
        stack.callback(go.set)
        with suppress(threading.BrokenBarrierError):  # a consumer has failed
            ready.wait()
            queue.fill(jobs)
        used = time.process_time()
    if failed:
        raise failed[0]
    return found, time.process_time() - used


class Progress:
    """How many jobs are not done yet."""

    def __init__(self, jobs: int) -> None:
        self._lock, self._left = threading.Lock(), jobs

    def note(self, jobs: int) -> None:
        with self._lock:
            self._left -= jobs

    def abort(self) -> None:
        self._left = 0

    @property
    def is_over(self) -> bool:
        return self._left <= 0


def worked(work: Work, progress: Progress) -> Took:
    """Work until all jobs are done, whoever does them."""
    commits: list[int] = []
    done, began = 0, time.monotonic()
    ended, until = began, began + LONGEST
    while not progress.is_over and time.monotonic() < until:
        jobs = work(commits.append)
        if jobs:
            progress.note(jobs)
            done, ended = done + jobs, time.monotonic()
    return Took(began, ended, done, commits)


def figures_of(took: list[Took], jobs: int, cpu: float) -> dict[str, float]:
    """Return rate, processor time of a job, how long a commit took, and how much the slowest one did."""
    elapsed = max(each.ended for each in took) - min(each.began for each in took)
    commits = [ns / 1e3 for each in took for ns in each.commits]
    percentiles = quantiles(commits * 2, n=100)  # of two values at least
    return {
        RATE: jobs / elapsed,
        CPU: cpu / jobs * 1e6,
        P50: percentiles[49],
        P99: percentiles[98],
        LEAST: min(each.done for each in took) * len(took) / jobs,
    }


def first_job(path: str) -> float:
    """Return how many ms the first poll of the first group of a new store takes to return a job."""
    with segstore.open(path) as store:
        store.create_topic(TOPIC)
        earliest = segstore.ConfigResource("GROUP", GROUP, {"share.auto.offset.reset": "earliest"})
        segstore.AdminClient(store).alter_configs([earliest])
        store.partition(TOPIC).append(VALUE)
        with segstore.ShareConsumer(store, TOPIC, group_id=GROUP) as consumer:
            began = time.perf_counter()
            records = consumer.poll_flat(timeout_ms=LONGEST * 1000)
            took = (time.perf_counter() - began) * 1000
    if len(records) != 1:
        raise RuntimeError(f"{len(records)} jobs came, and one is there")
    return took


def first_job_of_process(path: str) -> float:
    """Return what `first_job` returns in a new process, which has read nothing before: its first read imports
    NumPy.
    """
    command = [sys.executable, "-m", "benchmarks.queue_consumers", path]
    told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=LONGEST)
    return float(told.stdout)


FIRSTS: dict[str, Callable[[str], float]] = {FIRST: first_job, FIRST_OF_ALL: first_job_of_process}


if __name__ == "__main__":
    print(first_job(sys.argv[1]))
