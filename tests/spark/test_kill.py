"""Promise: whichever of Spark's processes is killed, at whatever step, the query that is started again leaves
every row in the log once, and a reader of the log sees a micro-batch completely or not at all.

Every kill is of a running query, or of its driver with the whole JVM; test_sink_kill.py has each call
of each step, without Spark. By default the seed draws some of the kills; with SEGSTORE_FAULTS=all (`make
faults`) they are 50.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from places import IMPORTED

pytest.importorskip("pyspark", "4.2")

import faults
import numpy as np
import sinks
from pyspark import cloudpickle
from spark import told
from staging import unsynced
from stores import values
from waiting import PATIENCE, until

import segstore
from segstore.demo.drivers import session_members
from segstore.errors import StoreLockedError
from segstore.spark.sink import StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark programs")]

OF_SPARK, ADOPTING, OF_DRIVER = 37, 10, 3
"""Rounds: 50 together, if none is left out."""
ALL = "SEGSTORE_FAULTS" in os.environ
ROWS = 30
"""Of each round: they are read, written and seen together."""
PARTITIONS = range(3)


def begin(path: Path, rounds: int) -> None:
    """Topics "from", with the rows of so many rounds, and "to"."""
    with segstore.open(path, files=unsynced(faults.HookedFiles())) as store:
        store.create_topic("from")
        store.create_topic("to", len(PARTITIONS))
        for round_ in range(rounds):
            fill(store, round_)


def fill(store: segstore.Store, round_: int) -> None:
    """The rows of a round, which become visible together, in batches that two tasks can share."""
    rows = [b"%d-%d" % (round_, i) for i in range(ROWS)]
    assert len(store.partition("from").append_batch(rows, keys=rows, batch_bytes=200)) == ROWS


def stream(spark: SparkSession, path: Path, checkpoint: Path, rounds: int = 1, **kill: Any) -> StreamingQuery:
    """From "from" to "to", so many rounds in each micro-batch, in two tasks; `kill`: fields of a Kill."""
    now = kill.pop("available_now", True)
    kind = "segstore_killed" if kill else "segstore"
    limits = {"maxOffsetsPerTrigger": rounds * ROWS, "minPartitions": 2, "startingOffsets": "earliest"}
    frame = spark.readStream.format(kind).options(path=str(path), subscribe="from", **limits, **kill).load()
    sink = frame.select("key", "value").writeStream.format(kind).options(topic="to", **kill)
    sink = sink.option("checkpointLocation", str(checkpoint))
    return sink.trigger(**({"availableNow": True} if now else {"processingTime": "0 seconds"})).start(
        str(path)
    )


# --- what is there --------------------------------------------------------------------------


def check_whole(found: list[bytes | None]) -> dict[int, int]:
    """How many rows there are of each round: all, none of them twice."""
    twice = [value for value, count in Counter(found).items() if count > 1]
    assert not twice, twice
    rounds = Counter(int((value or b"").split(b"-")[0]) for value in found)
    assert set(rounds.values()) <= {ROWS}, rounds
    return rounds


def written(path: Path) -> dict[int, int]:
    with segstore.open(path, "r") as reader:
        return check_whole([value for p in PARTITIONS for value in values(reader.partition("to", p))])


def check_all(path: Path, rounds: int) -> None:
    """Every row once, those of a partition in their order."""
    assert written(path) == dict.fromkeys(range(rounds), ROWS)
    with segstore.open(path, "r") as reader:
        for p in PARTITIONS:
            held = [
                tuple(map(int, (value or b"").split(b"-"))) for value in values(reader.partition("to", p))
            ]
            assert held == sorted(held)


@contextmanager
def followed(path: Path) -> Iterator[None]:
    """Another process follows "to" meanwhile, and looks at each publication whether rounds are whole."""
    (stop, tell_stop), (answer, tell_answer) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.close(tell_stop)
        told_of = "nothing"
        try:
            told_of = follow(path, stop)
        except BaseException as error:
            told_of = repr(error)
        finally:
            os.write(tell_answer, told_of.encode()[:4000])
            os._exit(0)
    os.close(tell_answer)
    try:
        yield
    finally:
        os.close(tell_stop)
        with open(answer) as pipe:
            said = pipe.read()
        os.waitpid(pid, 0)
        os.close(stop)
    looks, rounds = map(int, said.split()) if re.fullmatch(r"\d+ \d+", said) else (0, said)
    assert rounds == len(written(path)), said
    assert looks >= rounds


def follow(path: Path, stop: int) -> str:
    """ "looks rounds", once the other end of the pipe `stop` is closed."""
    os.set_blocking(stop, False)
    found: list[bytes | None] = []
    at, looks, last = [0] * len(PARTITIONS), 0, False
    with segstore.open(path, "r") as reader:
        while True:
            seen = reader.publications
            ends = together(reader)
            for p, end in zip(PARTITIONS, ends, strict=True):
                while at[p] < end:
                    records = reader.partition("to", p).read(at[p])
                    found += [record.value for record in records if record.offset < end]
                    at[p] = min(records.next_offset, end)
            rounds, looks = check_whole(found), looks + 1
            if last:
                return f"{looks} {len(rounds)}"
            with suppress(BlockingIOError):
                last = os.read(stop, 1) == b""
            if not last:
                reader.wait(seen, 20)


def together(reader: segstore.Store) -> list[int]:
    """The partitions' ends at one moment: they only grow, so what was the same twice was so in between."""
    ends: list[int] = []
    while True:
        before, ends = ends, [reader.partition("to", p).end_offset for p in PARTITIONS]
        if before == ends:
            return ends


# --- kills of Spark's Python ----------------------------------------------------------------


@pytest.fixture(scope="module")
def killing(spark: SparkSession) -> Iterator[None]:
    """The source and sink that are killed; Spark's workers don't find the tests' modules."""
    for module in (sinks, faults):
        cloudpickle.register_pickle_by_value(module)
    spark.dataSource.register(sinks.KilledOnce)
    yield
    for module in (sinks, faults):
        cloudpickle.unregister_pickle_by_value(module)


NEW = {"latest": 0, "plan": 0, "read": -1, "write": 0, "committed": 1}
"""How many micro-batches are in the log then, beyond those that were planned before. A task's read is killed
as the last one of these is done again.
"""


class Steps(NamedTuple):
    """How many changes on disk it takes a task to stage its rows, a commit to seal them, all of that commit
    where it adopts, and an adoption by another process.
    """

    staged: int
    sealed: int
    committed: int
    adopted: int

    def of_spark(self) -> list[list[tuple[str, int]]]:
        """Steps and numbers of Kills: all of the staging and sealing, and of what comes then every few."""
        around = [("latest", 0), ("plan", 0), ("read", 0), ("committed", 0)]
        staging = [("write", nth) for nth in range(1, self.staged + 1)]
        sealing = [("commit", nth) for nth in range(1, self.sealed + 1)]
        # The last ones are not always the same: there may be fewer indexes to cut.
        rest = OF_SPARK - len(around) - len(staging) - len(sealing)
        later = np.linspace(self.sealed + 1, self.committed - 10, rest)
        return [around, staging, sealing, [("commit", nth) for nth in later.astype(int).tolist()]]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """Counted without Spark, on micro-batches of the same form."""
    path = tmp_path_factory.mktemp("steps") / "store"
    begin(path, 0)
    files = faults.CountingFiles()
    one = StreamWriter(sinks.sink(path, "to", files))
    counts = []
    for number in range(3):
        names = [b"%d-%d" % (number, i) for i in range(ROWS)]
        tasks = [[sinks.batch(key=half, value=half)] for half in (names[: ROWS // 2], names[ROWS // 2 :])]
        messages = sinks.write(one, number, tasks)
        staged = len(changes(files)) // len(tasks)
        with segstore.open(path, files=files) if number == 2 else nullcontext():
            files.clear()
            one.commit(messages, number)
            counts.append(changes(files))
        files.clear()
    # The sealing ends with a sync of the directory.
    sealed = 2 + next(i for i, (name, of) in enumerate(counts[1]) if name == "rename" and ".manifest" in of)
    return Steps(staged, sealed, len(counts[1]), len(counts[2]) - sealed)


SOME = 4, 2, 3, 3
"""How many kills of each kind of `Steps.of_spark` the seed draws."""


def drawn(rng: random.Random, steps: Steps) -> list[tuple[str, int]]:
    """In the order of the steps."""
    found = []
    for kills, some in zip(steps.of_spark(), SOME, strict=True):
        found += kills if ALL else [kills[i] for i in sorted(rng.sample(range(len(kills)), some))]
    return found


def changes(files: faults.CountingFiles) -> list[tuple[str, str]]:
    return [(name, str(args[0])) for name, args in files.calls if name in faults.MUTATING]


def test_a_worker_or_a_part_of_the_driver_is_killed(
    spark: SparkSession,
    killing: None,
    steps: Steps,
    store_dir: Path,
    tmp_path: Path,
    rng: random.Random,
) -> None:
    """The query fails; started again, it does that micro-batch once more, and is killed in the next."""
    checkpoint, flag = tmp_path / "checkpoint", tmp_path / "flag"
    kills = drawn(rng, steps)
    begin(store_dir, len(kills))
    with followed(store_dir):
        for step, nth in kills:
            planned = [int(path.name) for path in checkpoint.glob("offsets/*") if path.name.isdigit()]
            flag.touch()
            kill = sinks.Kill(step, nth, max(planned, default=-1) + 1, str(flag))
            query = stream(spark, store_dir, checkpoint, **kill._asdict())
            said = told(lambda query=query: query.awaitTermination(2 * PATIENCE))
            assert not flag.exists(), f"{kill}: {said}"
            new = len(written(store_dir)) - len(planned)
            assert new in ({NEW[step]} if step in NEW else {0, nth > steps.sealed}), kill
        assert stream(spark, store_dir, checkpoint).awaitTermination(2 * PATIENCE)
    check_all(store_dir, len(kills))


# --- kills of the process that adopts -------------------------------------------------------


def test_the_process_that_adopts_is_killed(
    spark: SparkSession, steps: Steps, store_dir: Path, tmp_path: Path
) -> None:
    """An application opens the store, gives the query a round, and dies as it adopts what came of it: the
    query does that itself, and runs on.
    """
    begin(store_dir, 0)
    query = stream(spark, store_dir, tmp_path / "checkpoint", available_now=False)
    try:
        with followed(store_dir), segstore.open(store_dir, "r") as reader:
            for round_ in range(ADOPTING):
                nth = 1 + (steps.adopted - 3) * round_ // (ADOPTING - 1)
                assert dies_adopting(store_dir, round_, nth) == signal.SIGKILL, nth
                wait_for(reader, lambda round_=round_: sum(together(reader)) == ROWS * (round_ + 1))
    finally:
        query.stop()
    assert query.exception() is None
    check_all(store_dir, ADOPTING)
    # The last one may have died between what readers see and its end; the query was stopped then.
    segstore.open(store_dir).close()


def dies_adopting(path: Path, round_: int, nth: int) -> int:
    """The signal that ended it."""
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            files = unsynced(faults.KillingFiles(0))
            with until(lambda: open_unlocked(path, files)) as store:
                fill(store, round_)
                files.arm(nth)
                signal.alarm(int(PATIENCE))
                signal.pause()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) * -1


def open_unlocked(path: Path, files: segstore.files.Files) -> segstore.Store | None:
    """None while a committer of the query's has it."""
    try:
        return segstore.open(path, files=files)
    except StoreLockedError:
        return None


def wait_for(reader: segstore.Store, look: Callable[[], bool]) -> None:
    def looked() -> bool:
        seen = reader.publications
        found = look()
        if not found:
            reader.wait(seen, 500)
        return found

    until(looked)


# --- kills of the driver --------------------------------------------------------------------

DRIVER = """
import os, sys
from pathlib import Path
path, checkpoint, flag, tests = sys.argv[1:]
sys.path[:0] = tests.split(os.pathsep)
import faults, sinks, test_kill as kills
from pyspark import cloudpickle
from segstore.spark import session

spark = session("local[2,4]", quick=True, spark_sql_shuffle_partitions=2)
for module in (sinks, faults):
    cloudpickle.register_pickle_by_value(module)
spark.dataSource.register(sinks.KilledOnce)
planned = [int(each.name) for each in Path(checkpoint).glob("offsets/*") if each.name.isdigit()]
kill = sinks.Kill("write", 5, max(planned, default=-1) + 2, flag)
kills.stream(spark, Path(path), Path(checkpoint), **kill._asdict()).awaitTermination()
"""
KILLED_AS: dict[str, Callable[[str], bool]] = {
    "tasks stage": lambda name: len(name) == 32,
    "the batch is sealed": lambda name: name.endswith(".manifest"),
    "the batch is adopted": lambda name: name.endswith(".intent"),
}
DRIVER_ROUNDS = 60
assert len(KILLED_AS) == OF_DRIVER


def test_the_driver_is_killed(
    spark: SparkSession, store_dir: Path, tmp_path: Path, rng: random.Random
) -> None:
    """Its JVM and its Python with SIGKILL, amid a micro-batch; another one goes on from the checkpoint.
    Before that one of its tasks is killed, and tried again by Spark.
    """
    kills = KILLED_AS if ALL else {name: KILLED_AS[name] for name in rng.sample(list(KILLED_AS), 1)}
    begin(store_dir, DRIVER_ROUNDS)
    checkpoint, flag = tmp_path / "checkpoint", tmp_path / "flag"
    with followed(store_dir):
        for when, is_there in kills.items():
            before = len(written(store_dir))
            flag.touch()
            with driver(store_dir, checkpoint, flag), segstore.open(store_dir, "r") as reader:
                wait_for(reader, lambda before=before: sum(together(reader)) >= ROWS * (before + 4))
                assert not flag.exists(), when
                until(lambda is_there=is_there: any(map(is_there, in_inbox(store_dir))))
            assert before + 4 <= len(written(store_dir)) < DRIVER_ROUNDS, when
        assert stream(spark, store_dir, checkpoint, rounds=10).awaitTermination(250)
    check_all(store_dir, DRIVER_ROUNDS)


@contextmanager
def driver(store: Path, checkpoint: Path, flag: Path) -> Iterator[None]:
    """A process of its own, killed at the end with all that it has started: PySpark's daemons have process
    groups of their own, and go on with a commit when only the JVM is gone.
    """
    tests = os.pathsep.join([str(Path(__file__).parent), *IMPORTED])
    words = [sys.executable, "-c", DRIVER, *map(str, (store, checkpoint, flag, tests))]
    paths = [str(Path(segstore.__file__).parents[1]), os.environ.get("PYTHONPATH")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    running = subprocess.Popen(words, env=env, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        yield
        assert running.poll() is None
    finally:
        while members := session_members(running.pid):
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        running.wait()


def in_inbox(path: Path) -> list[str]:
    folder = path / ".segstore" / "inbox"
    return [*os.listdir(folder), *os.listdir(folder / "sealed")]
