"""Appends of several processes at once to one log, by sharing its store and by other means: a run of a case.

Each process appends for some seconds, all the same ones, and tells how long each of its appends took, and
how much processor time they did. A case has a process that has the store open for the others if its way
needs one (the host of guests, a server); its processor time counts, too. Behind a run all that was
acknowledged must be there.

On disk: a store, or a database, for each run, in a temporary directory. Threads: one in each process, and
those of stores and clients.
"""

from __future__ import annotations

import multiprocessing
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import segstore

TOPIC, VALUE = "events", b"x" * 100
WARM, LEAD, LONGEST = 5, 0.05, 120.0
MAP_BYTES = 8 << 30
NUMBER = struct.Struct(">q")
RATE, CPU, P50, P99, LEAST, PER_SYNC = "appends/s", "cpu us", "p50 us", "p99 us", "least", "a sync"
ALONE, HOST, GUESTS, BOTH, SERVE = "not shared", "host", "guests", "host and guests", "serve"
SQLITE, LMDB = "SQLite, ", "LMDB, "
_processes = multiprocessing.get_context("spawn")


class Case(NamedTuple):
    """How so many processes append, and whether each append waits for a sync."""

    way: str
    processes: int
    durable: bool = False

    @property
    def parts(self) -> list[str]:
        """What each process is; the first one opens before the others."""
        first, others = {
            GUESTS: ("idle host", "guest"),
            BOTH: (HOST, "guest"),
            SERVE: ("server", "client"),
        }.get(self.way, (None, self.way))
        appending = self.processes - (first == HOST)
        return [first, *[others] * appending] if first else [others] * appending


class Opened(NamedTuple):
    """What a process appends by, if it does; what it tells the others; and how many syncs there were."""

    append: Callable[[bytes], object] | None
    told: str
    syncs: Callable[[], int] = lambda: 0


class Took(NamedTuple):
    """The times of a process's appends, its processor time in ns, and how many syncs there were."""

    each: Any
    cpu: int
    syncs: int


# --- what processes open -------------------------------------------------------------------------


@contextmanager
def writer(path: str, durable: bool, shared: bool, appends: bool) -> Iterator[Opened]:
    """The process that has the store, as the host of others if it is shared."""
    with segstore.open(path, shared=shared) as store:
        store.ensure_topic(TOPIC, config={"flush.messages": 1} if durable else {})
        log = store.partition(TOPIC)
        log.append(VALUE)
        yield Opened(log.append if appends else None, path, lambda: syncs_of(store) if shared else 0)


def syncs_of(store: Any) -> int:
    """Return how many syncs the members of a store have made of its log, which is the first one."""
    return int(store.engine.sharing.file.log(0).sync_word)


@contextmanager
def guest(path: str, _durable: bool) -> Iterator[Opened]:
    with segstore.open(path, shared="guest", timeout=LONGEST) as store:
        yield Opened(store.partition(TOPIC).append, path)


@contextmanager
def server(path: str, durable: bool) -> Iterator[Opened]:
    with segstore.open(path) as store:
        store.ensure_topic(TOPIC, config={"flush.messages": 1} if durable else {})
        store.partition(TOPIC).append(VALUE)
        with segstore.serve(store, port=0) as serving:
            yield Opened(None, serving.bootstrap_servers)


@contextmanager
def client(bootstrap_servers: str, _durable: bool) -> Iterator[Opened]:
    from benchmarks.bench_processes import by_server  # which the others need not import

    with by_server(bootstrap_servers) as append:
        yield Opened(lambda value: append([value]), "")


@contextmanager
def sqlite(path: str, synchronous: str) -> Iterator[Opened]:
    """A transaction of one row for each append, with a write-ahead log."""
    with closing(sqlite3.connect(path, timeout=LONGEST, isolation_level=None)) as database:
        database.execute(f"PRAGMA synchronous={synchronous}")
        insert = "INSERT INTO log(value) VALUES (?)"
        yield Opened(lambda value: database.execute(insert, (value,)), path)


@contextmanager
def lmdb(path: str, sync: bool) -> Iterator[Opened]:
    """A transaction of one value for each append, behind the last one."""
    import lmdb as library

    with library.open(path, map_size=MAP_BYTES, subdir=False, sync=sync) as environment:

        def append(value: bytes) -> None:
            with environment.begin(write=True) as transaction:
                cursor = transaction.cursor()
                last = NUMBER.unpack(cursor.key())[0] if cursor.last() else -1
                transaction.put(NUMBER.pack(last + 1), value, append=True)

        yield Opened(append, path)


PARTS: dict[str, Callable[[str, bool], Any]] = {
    ALONE: lambda path, durable: writer(path, durable, shared=False, appends=True),
    HOST: lambda path, durable: writer(path, durable, shared=True, appends=True),
    "idle host": lambda path, durable: writer(path, durable, shared=True, appends=False),
    "guest": guest,
    "server": server,
    "client": client,
    **{
        f"{SQLITE}{level}": lambda path, _, level=level: sqlite(path, level)
        for level in ("OFF", "NORMAL", "FULL")
    },
    f"{LMDB}no sync": lambda path, _: lmdb(path, sync=False),
    f"{LMDB}sync": lambda path, _: lmdb(path, sync=True),
}


def can_run(case: Case) -> bool:
    """Return whether what the case needs is installed here."""
    needs = {SERVE: "confluent_kafka", f"{LMDB}no sync": "lmdb", f"{LMDB}sync": "lmdb"}.get(case.way)
    return needs is None or find_spec(needs) is not None


# --- processes -----------------------------------------------------------------------------------


def work(part: str, where: str, durable: bool, pipe: Any) -> None:
    """Open as this part, tell that, and append when and for how long the parent says."""
    with PARTS[part](where, durable) as opened:
        for _ in range(WARM if opened.append else 0):
            opened.append(VALUE)
        pipe.send(opened.told)
        if (asked := pipe.recv()) is None:
            return
        begin, end = asked
        time.sleep(max(0.0, begin - time.monotonic()))
        syncs, used = opened.syncs(), time.process_time_ns()
        took = appended(opened.append, end) if opened.append else waited(end)
        pipe.send(Took(np.asarray(took), time.process_time_ns() - used, opened.syncs() - syncs))
        pipe.recv()  # nobody closes before all have ended


def appended(append: Callable[[bytes], object], end: float) -> list[int]:
    """Append until then, and return how long each append took, in ns."""
    value, clock, took, until = VALUE, time.monotonic_ns, [], int(end * 1e9)
    note, last = took.append, clock()
    while last < until:
        append(value)
        now = clock()
        note(now - last)
        last = now
    return took


def waited(end: float) -> list[int]:
    """Wait until then, as who has the store for others."""
    time.sleep(max(0.0, end - time.monotonic()))
    return []


def run(case: Case, seconds: float, directory: str | None = None) -> dict[str, float]:
    """Run a case, and return its figures. RuntimeError if what was acknowledged is not there."""
    with tempfile.TemporaryDirectory(prefix="segstore-shared-", dir=directory) as made:
        path = str(Path(made, "log"))
        prepare(case, path)
        came = _run(case, path, seconds)
        times = [took.each for took in came if len(took.each)]
        expected = sum(map(len, times)) + WARM * case.processes
        there = counted(case, path)
        if there != expected:
            raise RuntimeError(f"{case}: {there} records are there, and {expected} were acknowledged")
    return figures_of(came, times, seconds)


def figures_of(came: Sequence[Took], times: Sequence[Any], seconds: float) -> dict[str, float]:
    """Return rate, processor time of an append, and how long one took."""
    every = np.concatenate(times)
    p50, p99 = np.percentile(every, (50, 99)) / 1e3
    found = {
        RATE: len(every) / seconds,
        CPU: sum(took.cpu for took in came) / len(every) / 1e3,
        P50: float(p50),
        P99: float(p99),
        LEAST: min(map(len, times)) * len(times) / len(every),
    }
    syncs = sum(took.syncs for took in came)
    return {**found, PER_SYNC: len(every) / syncs} if syncs else found


def _run(case: Case, path: str, seconds: float) -> list[Took]:
    with ExitStack() as stack:
        first, *others = case.parts
        pipes = [_started(stack, first, path, case.durable)]
        where = received(case, pipes[0])
        pipes += [_started(stack, part, where, case.durable) for part in others]
        for pipe in pipes[1:]:
            received(case, pipe)
        begin = time.monotonic() + LEAD
        end = begin + seconds
        for pipe in pipes:
            pipe.send((begin, end))
        return [received(case, pipe) for pipe in pipes]


def _started(stack: ExitStack, part: str, where: str, durable: bool) -> Any:
    ours, theirs = _processes.Pipe()
    process = _processes.Process(target=work, args=(part, where, durable, theirs), daemon=True)
    process.start()
    theirs.close()
    stack.callback(_end, process, ours)
    return ours


def _end(process: Any, pipe: Any) -> None:
    with suppress(OSError):  # it has ended
        pipe.send(None)
    process.join(LONGEST)


def received(case: Case, pipe: Any) -> Any:
    """Return what a process says. RuntimeError if it says nothing."""
    try:
        if pipe.poll(LONGEST):
            return pipe.recv()
    except EOFError:
        pass
    raise RuntimeError(f"{case}: a process has ended, or does not answer")


def prepare(case: Case, path: str) -> None:
    """Make the file of a database: SQLite does not wait for others when it turns one into one with a WAL."""
    if case.way.startswith(SQLITE):
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("CREATE TABLE log(id INTEGER PRIMARY KEY, value BLOB)")


def counted(case: Case, path: str) -> int:
    """Return how many of the run's records are there."""
    if case.way.startswith(SQLITE):
        with closing(sqlite3.connect(path)) as database:
            return int(database.execute("SELECT count(*) FROM log").fetchone()[0])
    if case.way.startswith(LMDB):
        import lmdb as library

        with library.open(path, map_size=MAP_BYTES, subdir=False) as environment:
            return int(environment.stat()["entries"])
    with segstore.open(path) as store:
        return store.partition(TOPIC).end_offset - 1  # but for the one that made the log
