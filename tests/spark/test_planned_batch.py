"""Micro-batches that come again, without a JVM: of the same plan, whatever their rows, or of another plan, by
an older copy of the query's checkpoint: such rows were dropped without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2")

from sinks import batch, sink, write
from staging import Unsynced, left_in_inbox
from stores import values

import segstore
from segstore.errors import IdempotencyConflictError
from segstore.spark import checkpoints
from segstore.spark.planned_batch import source_offsets
from segstore.spark.sink import BatchWriter, StagedMessage, StreamWriter
from segstore.spark.sink_store import StagingSink

ROWS = 10
QUERY = "q"


class Checkpoint:
    """A query's checkpoint in a local directory, as far as the sink reads it."""

    def __init__(self, path: Path) -> None:
        self.location = str(path)
        (path / "offsets").mkdir(parents=True)
        self._path = path

    def plan(self, number: int, *ends: str) -> None:
        (self._path / "offsets" / str(number)).write_text(planned(*ends))


def planned(*ends: str) -> str:
    settings = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
    return "\n".join(["v1", settings, *ends])


def end(offset: int) -> str:
    return f'{{"in": {{"0": {offset}}}}}'


@dataclass
class World:
    """A store with topic "t", a query that writes to it, and its checkpoint."""

    path: Path
    checkpoint: Checkpoint
    sink: StagingSink

    def run(self, number: int, tags: Sequence[str]) -> None:
        """Run a micro-batch, of one task for each tag."""
        writer = StreamWriter(self.sink)
        writer.commit(write(writer, number, [[batch(value=named(tag))] for tag in tags]), number)

    @property
    def held(self) -> list[bytes | None]:
        with segstore.open(self.path, "r") as reader:
            return values(reader.partition("t", 0))


def named(tag: str, n: int = ROWS) -> list[bytes]:
    return [b"%s-%d" % (tag.encode(), i) for i in range(n)]


@pytest.fixture
def world(store_dir: Path, tmp_path: Path) -> Iterator[World]:
    """Micro-batches 0, 1 and 2 are in the log, up to the offsets 10, 20 and 30 of the source."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    made = World(
        store_dir, checkpoint, replace(sink(store_dir, "t", Unsynced()), checkpoint=checkpoint.location)
    )
    for number in range(3):
        checkpoint.plan(number, end(10 * (number + 1)))
        made.run(number, [str(number)])
    yield made
    assert segstore.check(store_dir) == []


BEFORE = [value for number in range(3) for value in named(str(number))]

# --- the same plan ------------------------------------------------------------------------------

SAME: dict[str, tuple[int, list[str]]] = {
    "the same rows": (2, ["2"]),
    "more rows, in another order, of more tasks": (2, ["1", "2"]),
    "others, of a query that was changed or has random columns": (2, ["new"]),
    "none": (2, []),
    "an older checkpoint that plans by a limit": (1, ["1"]),
}


@pytest.mark.parametrize("open_", [False, True])
@pytest.mark.parametrize("name", SAME)
def test_a_plan_that_runs_again_is_in_the_log_once(name: str, open_: bool, world: World) -> None:
    """Spark was killed between the sink's commit and its own."""
    number, tags = SAME[name]
    store = segstore.open(world.path) if open_ else None
    world.run(number, tags)
    if store is not None:
        store.close()
    assert world.held == BEFORE
    assert left_in_inbox(world.path) == []
    world.checkpoint.plan(3, end(40))
    world.run(3, ["3"])
    assert world.held == BEFORE + named("3")


def test_attempts_that_lose_are_of_the_same_plan(world: World) -> None:
    """A task was tried twice at once, and then the micro-batch again."""
    writer = StreamWriter(world.sink)
    for _ in range(2):
        write(writer, 2, [[batch(value=named("lost"))]])
        world.run(2, ["2", "2"])
    assert world.held == BEFORE


def test_other_numbers_of_rows_of_one_plan_are_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.run(2, ["2", "2"])
    assert f"'spark-stream/{QUERY}/2' is in the log since 20" in caplog.text
    assert 'with 10 records of offsets up to {"in": {"0": 30}}; 20 came again' in caplog.text


# --- another plan -------------------------------------------------------------------------------


def another_end(world: World) -> None:
    world.checkpoint.plan(2, end(50))
    world.run(2, ["new"])


def another_end_of_a_long_plan(world: World) -> None:
    """Too long for the log: a digest of it is kept."""
    for last, tag in ((1, "3"), (2, "new")):
        world.checkpoint.plan(3, *["9" * 100] * 20, str(last))
        world.run(3, [tag])


def another_end_before_the_newest(world: World) -> None:
    world.checkpoint.plan(1, end(30))
    world.run(1, ["1", "2"])


def rows_of_a_batch_that_had_none(world: World) -> None:
    """Its id is not recorded, and rows of it are in the log already, in the next micro-batch."""
    world.checkpoint.plan(3, end(40))
    world.run(3, [])
    world.checkpoint.plan(4, end(50))
    world.run(4, ["4"])
    world.checkpoint.plan(3, end(50))
    world.run(3, ["4"])


def more_rows_without_a_checkpoint(world: World) -> None:
    world.sink = replace(world.sink, checkpoint=None)
    world.run(2, ["2", "new"])


def fewer_rows_of_a_checkpoint_elsewhere(world: World) -> None:
    world.sink = replace(world.sink, checkpoint="s3a://bucket/checkpoint")
    writer = StreamWriter(world.sink)
    writer.commit(write(writer, 2, [[batch(value=named("2", 5))]]), 2)


OTHERS: dict[str, tuple[Callable[[World], None], tuple[str, ...], list[bytes]]] = {
    "as many rows": (
        another_end,
        ("q/2' is in the log", '10 records of offsets up to {"in": {"0": 30}}', '{"in": {"0": 50}} came'),
        [],
    ),
    "a long plan": (another_end_of_a_long_plan, ("offsets with the digest",), named("3")),
    "before the newest": (another_end_before_the_newest, ("q/1' is in the log", "20 records of"), []),
    "of a micro-batch without rows": (
        rows_of_a_batch_that_had_none,
        ("q/4' is in the log", "rows of micro-batch 3 come now"),
        named("4"),
    ),
    "not known, more rows": (more_rows_without_a_checkpoint, ("20 records came",), []),
    "of another file system, fewer rows": (fewer_rows_of_a_checkpoint_elsewhere, ("5 records came",), []),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_plan_is_refused(name: str, world: World) -> None:
    """Its rows were dropped, or were in the log twice."""
    run, said, more = OTHERS[name]
    with pytest.raises(IdempotencyConflictError) as raised:
        run(world)
    message = str(raised.value)
    assert [
        part for part in (*said, "new checkpointLocation", "failOnDataLoss=false") if part not in message
    ] == []
    assert world.held == BEFORE + more


@pytest.mark.parametrize("name", OTHERS)
def test_another_plan_is_dropped_and_told(name: str, world: World, caplog: pytest.LogCaptureFixture) -> None:
    run, said, more = OTHERS[name]
    world.sink = replace(world.sink, fail_on_data_loss=False)
    run(world)
    assert [
        part
        for part in (*said, "failOnDataLoss=false: the rows that came now are dropped")
        if part not in caplog.text
    ] == []
    assert world.held == BEFORE + more
    assert left_in_inbox(world.path) == []


def test_without_a_plan_as_many_rows_are_taken_for_the_same(world: World) -> None:
    """The limit that docs/spark.md tells of."""
    world.sink = replace(world.sink, checkpoint=None)
    world.run(2, ["new"])
    assert world.held == BEFORE


@pytest.mark.parametrize(("n", "conflict"), [(ROWS, False), (ROWS + 1, True)])
def test_a_job_id_stands_for_as_many_rows(n: int, conflict: bool, world: World) -> None:
    """Of a batch in foreachBatch, too: it has no plan of its own."""
    for tag, count, refused in (("a", ROWS, False), ("b", n, conflict)):
        writer = BatchWriter(world.sink, "job")
        messages: list[Any] = [writer.write(iter([batch(value=named(tag, count))]))]
        if refused:
            with pytest.raises(IdempotencyConflictError, match="give these another"):
                writer.commit(messages)
            writer.abort(messages)
        else:
            writer.commit(messages)
    assert world.held == BEFORE + named("a")
    assert left_in_inbox(world.path) == []
    assert isinstance(messages[0], StagedMessage)


# --- plans --------------------------------------------------------------------------------------


def test_plans_of_a_checkpoint_that_is_a_log(store_dir: Path) -> None:
    """By the name that sessions know, and Hadoop's."""
    with segstore.open(store_dir) as store, checkpoints(store) as ck:
        ck.tree.write("/a query/offsets/7", planned(end(5), "-", end(6)).encode())
        for scheme in ("segstore", "webhdfs"):
            at = ck.url("a query", scheme)
            assert source_offsets(at, 7) == f"offsets up to {end(5)}, -, {end(6)}"
            assert source_offsets(at, 8) == ""
        there = ck.url("a query")
        ck.drop("OPEN", times=2)
        assert source_offsets(there, 7) == ""
    assert source_offsets(there, 7) == ""


def linked(parent: Path) -> Path:
    """A link to a directory elsewhere; Hadoop drops `link/..` as text."""
    (parent / "else" / "where").mkdir(parents=True)
    (parent / "link").symlink_to(parent / "else" / "where")
    return parent / "link"


LOCATIONS: dict[str, tuple[Callable[[Path], str | None], bool]] = {
    "a directory": (str, True),
    "file:": (lambda path: f"file:{path}", True),
    "file://": (lambda path: f"file://{path}", True),
    "through no directory and back": (lambda path: f"{path.parent}/none/../{path.name}", True),
    "through a link and back": (lambda path: f"file:{linked(path.parent)}/../{path.name}", True),
    "none": (lambda path: None, False),
    "empty": (lambda path: "", False),
    "another directory": (lambda path: f"{path}-2", False),
    "another file system": (lambda path: f"hdfs://host:1{path}", False),
    "of another host": (lambda path: f"file://host{path}", False),
    "no port": (lambda path: f"segstore://127.0.0.1:x{path}", False),
    "no host": (lambda path: f"segstore:{path}", False),
}


@pytest.mark.parametrize("name", LOCATIONS)
def test_where_a_plan_is_read(name: str, tmp_path: Path) -> None:
    at, there = LOCATIONS[name]
    Checkpoint(tmp_path / "a 100%?#checkpoint").plan(0, end(1))
    assert source_offsets(at(tmp_path / "a 100%?#checkpoint"), 0) == (
        f"offsets up to {end(1)}" if there else ""
    )


def test_settings_and_time_of_a_plan_do_not_count(tmp_path: Path) -> None:
    """A limit lets an older checkpoint plan the same offsets at another time."""
    path = Path(Checkpoint(tmp_path / "c").location) / "offsets" / "0"
    found = []
    for stamp in (1, 2):
        path.write_text(f'v1\n{{"batchTimestampMs":{stamp}}}\n{end(1)}')
        found.append(source_offsets(str(tmp_path / "c"), 0))
    assert found == [f"offsets up to {end(1)}"] * 2
