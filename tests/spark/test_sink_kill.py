"""Promise: wherever Spark's processes are killed, in the tasks' write, the driver's commit, its abort, or the
process that adopts, the micro-batch that comes again leaves every row in the log once, and no reader ever
sees a part of it.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", "4.2")

from faults import HookedFiles, KillingFiles
from sinks import batch, sink, task, write
from staging import PARTS, Unsynced, begin, contents, inbox, left_in_inbox, unsynced
from stores import in_child, killed

import segstore
from segstore.errors import SegstoreError
from segstore.files import Files
from segstore.spark.sink import BatchWriter, StagedMessage, StreamWriter

pytestmark = pytest.mark.kind("kills")

TASKS = 2
ROWS = 30


def rows(number: int) -> list[list]:
    """What the tasks of a micro-batch get: ROWS rows for each of PARTS, in batches of 10."""
    made = []
    for part in range(TASKS):
        held = range(part * ROWS // TASKS, (part + 1) * ROWS // TASKS)
        values = [name(number, i) for i in held for _ in PARTS]
        topics, numbers = zip(*(PARTS * len(held)), strict=True)
        whole = batch(value=values, topic=topics, partition=numbers)
        made.append([whole.slice(at, 10) for at in range(0, len(values), 10)])
    return made


def name(number: int, i: int) -> bytes:
    return b"%d-%d" % (number, i)


def expected(*numbers: int) -> list[list[bytes]]:
    return [[name(number, i) for number in numbers for i in range(ROWS)]] * len(PARTS)


def writer(path: Path, files: Files | None = None) -> StreamWriter:
    return StreamWriter(sink(path, None, files or Unsynced()))


def micro_batch(path: Path, number: int) -> None:
    """As Spark does it after a restart: anew from the start."""
    one = writer(path)
    one.commit(write(one, number, rows(number)), number)


def seen(path: Path) -> list[list[bytes | None]]:
    with segstore.open(path, "r") as reader:
        return contents(reader)


def killed_at(
    state: Path, work: Path, least: int, run: Callable[[HookedFiles, Path], object]
) -> Iterator[tuple[int, Path]]:
    """What a SIGKILL before each change that `run` makes leaves; at least so many."""
    nth = 0
    while True:
        nth += 1
        path = killed(state, work / f"killed-{nth}")
        ended, _ = in_child(lambda tell, nth=nth, path=path: run(unsynced(KillingFiles(nth)), path))
        if not ended:
            break
        yield nth, path
        shutil.rmtree(path)
    assert nth > least


def check_restarted(path: Path, where: str) -> None:
    """Micro-batch 1 may be there as a whole or not at all; it comes again, and is there once."""
    assert seen(path) in (expected(0), expected(0, 1)), where
    micro_batch(path, 1)
    assert seen(path) == expected(0, 1), where
    micro_batch(path, 2)
    assert seen(path) == expected(0, 1, 2), where
    assert segstore.check(path) == [], where


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A store with micro-batch 0 in it."""
    path = begin(tmp_path / "state")
    micro_batch(path, 0)
    return path


def test_a_task_is_killed_at_each_call_of_its_write(state: Path, tmp_path: Path) -> None:
    def run(files: HookedFiles, path: Path) -> None:
        write(writer(path, files), 1, rows(1)[:1])

    for nth, path in killed_at(state, tmp_path, 8, run):
        check_restarted(path, f"call {nth}")


def test_a_task_is_killed_and_tried_again(state: Path, tmp_path: Path) -> None:
    """Within the same job: the other tasks' messages stay, the loser's files are left to the sweep."""

    def run(files: HookedFiles, path: Path) -> None:
        write(writer(path, files), 1, rows(1)[:1])

    for nth, path in killed_at(state, tmp_path, 8, run):
        one = writer(path)
        one.commit(write(one, 1, rows(1)), 1)
        assert seen(path) == expected(0, 1), nth


def test_the_driver_is_killed_at_each_call_of_its_commit(state: Path, tmp_path: Path) -> None:
    """Nobody has the store open: the committer adopts, too."""

    def run(files: HookedFiles, path: Path) -> None:
        one = writer(path)
        messages = write(one, 1, rows(1))
        writer(path, files).commit(messages, 1)

    for nth, path in killed_at(state, tmp_path, 30, run):
        check_restarted(path, f"call {nth}")


def test_the_driver_is_killed_at_each_call_of_an_abort(state: Path, tmp_path: Path) -> None:
    def run(files: HookedFiles, path: Path) -> None:
        one = writer(path)
        messages = write(one, 1, rows(1))
        writer(path, files).abort([messages[0], None, messages[1]], 1)

    for nth, path in killed_at(state, tmp_path, 4, run):
        assert seen(path) == expected(0)
        check_restarted(path, f"call {nth}")


@pytest.mark.parametrize("victim", ["adopting", "committing"])
def test_the_one_that_adopts_is_another_process(state: Path, tmp_path: Path, victim: str) -> None:
    """An application has the store open; it, or the driver, is killed at every third change of a round."""
    for round_ in range(8):
        nth = 2 + 3 * round_

        def run(tell: Callable[[str], None], nth: int = nth, number: int = round_ + 1) -> None:
            of_adopter = unsynced(KillingFiles(nth if victim == "adopting" else 0))
            of_driver = unsynced(KillingFiles(nth if victim == "committing" else 0))
            with segstore.open(state, files=of_adopter):
                one = writer(state, of_driver)
                one.commit(write(one, number, rows(number)), number)

        in_child(run)
        micro_batch(state, round_ + 1)
        assert seen(state) == expected(*range(round_ + 2)), round_
    assert segstore.check(state) == []


# --- what Spark does without a kill ---------------------------------------------------------


def test_commit_again_with_the_same_messages_and_with_new_ones(state: Path) -> None:
    one = writer(state)
    messages = write(one, 1, rows(1))
    for _ in range(3):
        one.commit(messages, 1)
    one.commit(write(one, 1, rows(1)), 1)
    assert seen(state) == expected(0, 1)
    assert left_in_inbox(state) == []


def test_abort_after_a_commit_undoes_nothing(state: Path) -> None:
    """Spark aborts with the same messages when commit has raised, whatever it had done by then."""
    one = writer(state)
    messages = write(one, 1, rows(1))
    one.commit(messages, 1)
    one.abort(messages, 1)
    assert seen(state) == expected(0, 1)
    with segstore.open(state) as store:
        store.create_topic("gone")
        sealed = write(one, 2, rows(2))
        waiting = StreamWriter(sink(state, None, None, timeout_ms=0))
        store.engine.inbox.close()  # an application that hangs
        with pytest.raises(TimeoutError, match=r"option sealTimeout=0ms"):
            waiting.commit(sealed, 2)
        waiting.abort(sealed, 2)
    with segstore.open(state):
        assert seen(state) == expected(0, 1, 2)
    one.commit(write(one, 2, rows(2)), 2)
    assert seen(state) == expected(0, 1, 2)
    assert left_in_inbox(state) == []


def test_abort_leaves_nothing(state: Path) -> None:
    one = writer(state)
    messages = write(one, 1, rows(1))
    assert inbox(state)
    one.abort([messages[0], None, messages[1]], 1)
    assert left_in_inbox(state) == []
    with pytest.raises(SegstoreError, match="staged files are missing"):
        one.commit(messages, 1)
    assert seen(state) == expected(0)


def test_a_task_that_fails_leaves_nothing(state: Path) -> None:
    def broken() -> Iterator:
        yield from rows(1)[0]
        raise RuntimeError("the worker's socket")

    with task(number=1), pytest.raises(RuntimeError, match="socket"):
        writer(state).write(broken())
    assert left_in_inbox(state) == []


def test_attempts_that_lose_are_not_in_the_log(state: Path) -> None:
    one = writer(state)
    write(one, 1, rows(1))
    one.commit(write(one, 1, rows(1)), 1)
    assert seen(state) == expected(0, 1)


@pytest.mark.parametrize("tasks", [[], [[]], [[], []]], ids=["no partitions", "an empty one", "two"])
def test_without_rows_there_is_nothing(state: Path, tasks: list) -> None:
    one = writer(state)
    messages = write(one, 1, tasks)
    one.commit(messages, 1)
    job = BatchWriter(one.sink, "job")
    job.commit([job.write(iter(each)) for each in tasks])
    job.abort([])
    assert seen(state) == expected(0)
    assert left_in_inbox(state) == []
    one.commit(write(one, 1, rows(1)), 1)
    assert seen(state) == expected(0, 1)


def test_order_is_that_of_the_tasks(state: Path) -> None:
    one = BatchWriter(sink(state, "t"), "job")
    tasks = [[batch(value=[b"%d" % task], partition=[0])] for task in range(20)]
    messages = [one.write(iter(each)) for each in reversed(tasks)]
    one.commit(messages[::-1])
    with segstore.open(state, "r") as reader:
        assert [r.value for r in reader.partition("t", 0).read(0)] == [b"%d" % task for task in range(20)]


def test_queries_and_jobs_have_ids_of_their_own(state: Path) -> None:
    one = writer(state)
    for query in ("q1", "q2"):
        with task(query, 0):
            one.commit([one.write(iter([batch(value=[query.encode()], topic=["u"])]))], 0)
    for job in ("a", "a", "b"):
        by = BatchWriter(sink(state, "u"), job)
        by.commit([by.write(iter([batch(value=[b"job " + job.encode()])]))])
    found = seen(state)[PARTS.index(("u", 0))][ROWS:]
    assert found == [b"q1", b"q2", b"job a", b"job b"]


def test_writers_and_messages_are_light(state: Path) -> None:
    one = writer(state)
    assert len(pickle.dumps(one)) < 1000
    message, other = write(one, 1, rows(1))
    assert len(pickle.dumps(message)) < 2000
    one.abort([pickle.loads(pickle.dumps(message))], 1)
    assert {each.split("/")[0] for each in inbox(state)} == {other.staged.stager}


def test_a_task_must_say_what_it_is_of(state: Path) -> None:
    one = writer(state)
    with task(number=None), pytest.raises(SegstoreError, match="which query and micro-batch"):
        one.write(iter([]))
    with pytest.raises(SegstoreError, match="micro-batch 7 was given"):
        one.commit([StagedMessage(None, "q", 6)], 7)
