"""Promise: the server's comparison with a broker measures what it says, fails where records are lost, and
tells of each target whether it was reached.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from places import REPOSITORY
from waiting import PATIENCE

pytest.importorskip("confluent_kafka")
sys.path.append(str(REPOSITORY))

import segstore
from benchmarks.serve import java, raw, report, running, terms, works
from benchmarks.serve.bench import QUICK, Bench
from benchmarks.serve.idle import Idle
from benchmarks.serve.server import Server
from benchmarks.serve.terms import KAFKA, OURS, SENDFILE
from segstore.bench import Cell, Figure, Results, load

pytestmark = pytest.mark.kind("measurements")

IN_THIS_PROCESS = [part for part in works.PARTS if part not in works.NEEDS_JAVA]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A server in this process: its CPU is the test's too."""
    with segstore.open(tmp_path / "store") as store, segstore.serve(store, port=0) as server:
        yield Bench(Server(OURS, server.bootstrap_servers, os.getpid(), tmp_path / "store", 0.1), QUICK)


@pytest.mark.parametrize("part", IN_THIS_PROCESS, ids=lambda part: works.PARTS[part][0])
def test_each_part_has_figures(bench: Bench, part: works.Part) -> None:
    """Twice, as rounds do it."""
    for _ in range(2):
        found = dict(part(bench))
        assert tuple(found) == works.PARTS[part]
        assert all(value > 0 for figures in found.values() for value in figures.values())
    if terms.CACHED in found:
        running._bare(bench, bare := running.Found().figures)
        assert {server for _, server in bare} == set(running.BARE)
        assert all(value > 0 for (figures,) in bare.values() for value in figures.values())


def test_what_was_not_acknowledged_is_noticed(bench: Bench) -> None:
    topic, damaged = bench.create(), bytearray(raw.batch(100))
    damaged[-1] ^= 1  # its CRC
    with pytest.raises(AssertionError, match="0 records"):
        bench.fill(topic, bytes(damaged), 10 * len(damaged))


def test_what_does_not_come_out_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = bench.create()
    monkeypatch.setattr(works.librdkafka, "WAIT", 1.0)
    works.librdkafka.produced(bench, topic, 10, 100)
    with pytest.raises(AssertionError, match="10 records"):
        works.librdkafka.consumed(bench, topic, 11, 100)


def test_a_work_that_fails_is_told_and_the_others_go_on(bench: Bench) -> None:
    """The rounds before it count for nothing; those behind it are not tried."""
    tries: list[int] = []

    def part(bench: Bench) -> works.Works:
        tries.append(1)
        yield terms.SMALL_PRODUCE, {terms.REQUESTS: 5.0}
        if len(tries) == 2:
            raise ValueError("lost\nrecords")
        yield terms.SMALL_FETCH, {terms.REQUESTS: 5.0}

    found, of_it = running.Found(), (terms.SMALL_PRODUCE, terms.SMALL_FETCH)
    for _ in range(3):
        running._turn(bench, part, of_it, found.figures, found.failed)
    assert len(tries) == 2
    good, bad = found.cells()
    assert good.figures == {terms.REQUESTS: Figure((5.0, 5.0))}
    assert (bad.figures, bad.notes) == ({}, {"failed": "ValueError: lost"})
    told = report.markdown(Results("serve", "", {}, results().settings, [good, bad]))
    assert f"| {terms.SMALL_FETCH} | – | **failed** | – | – |" in told
    assert f"{terms.SMALL_FETCH}, {OURS}: failed: ValueError: lost." in told


def test_idle_consumers_wait(bench: Bench) -> None:
    """A poll is answered when its time is over, not before: else it would be no long poll."""
    topic = bench.create()
    with ExitStack() as stack:
        consumers = Idle(bench.server.address, 5, stack)
        assert consumers.poll(raw.fetch(topic, 0, raw.BUFFER, 600_000), 0.2) == 0


PROGRAM = """0.0 MB
10 records sent, 5.5 records/sec (0.00 MB/sec), 1.00 ms avg latency
"""
CONSUMER = """start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, \
rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-01-01 00:00:00:000, 2026-01-01 00:00:01:000, 0.9, 0.9, 10, 9.5, 300, 700, 1.3, 14.25
"""


def test_what_java_s_tools_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_run", lambda *arguments: PROGRAM)
    assert java.produced("a:1", "t", 10, 100) == 5.5
    with pytest.raises(AssertionError):
        java.produced("a:1", "t", 11, 100)
    monkeypatch.setattr(java, "_run", lambda *arguments: CONSUMER)
    assert java.consumed("a:1", "t", 10) == 14.25
    with pytest.raises(AssertionError):
        java.consumed("a:1", "t", 11)


def results(*cells: tuple[str, str, str, tuple[float, ...]]) -> Results:
    found = [
        Cell({"work": work, "server": server}, {name: Figure(runs)}) for work, server, name, runs in cells
    ]
    settings = {"runs": 3, "quick": False, "servers": {}, "clients": {"c": "1"}, "absent": {"x": "no Java"}}
    return Results("serve", "", {}, settings, found)


TOLD = {
    "more is better": (terms.SMALL_PRODUCE, terms.REQUESTS, (40, 50, 60), (20, 20, 20), "2.50", True),
    "too few": (terms.SMALL_PRODUCE, terms.REQUESTS, (30, 39, 50), (20, 20, 20), "1.95", False),
    "less is better": (terms.FRESH, terms.RESIDENT, (10, 20, 30), (100, 100, 100), "0.200", True),
    "too much": (terms.FRESH, terms.RESIDENT, (10, 26, 30), (100, 100, 100), "0.260", False),
    "round by round": (terms.SMALL_FETCH, terms.REQUESTS, (10, 100, 30), (5, 20, 100), "2.00", True),
}


@pytest.mark.parametrize("name", TOLD)
def test_targets(name: str) -> None:
    work, figure, ours, theirs, ratio, met = TOLD[name]
    found = results((work, OURS, figure, ours), (work, KAFKA, figure, theirs))
    (row,) = report.rows(found)
    assert (row[0], row[1], row[4]) == (work, figure, ratio)
    assert row[-1] == ("met" if met else "**missed**")
    (finding,) = report.findings(found)
    assert finding.answer == f"{'Yes' if met else 'No'}: {ratio}."
    assert f"| {work} | {figure} |" in report.markdown(found)
    assert "x is absent: no Java." in report.markdown(found)


def test_the_bare_loop_is_what_fetches_are_compared_with() -> None:
    runs = [(OURS, (80.0,)), (KAFKA, (10.0,)), (SENDFILE, (100.0,))]
    cells = [
        Cell(
            {"work": terms.CACHED, "server": server},
            {terms.BYTES: Figure(of_it), terms.CPU_GB: Figure(of_it)},
        )
        for server, of_it in runs
    ]
    found = Results("serve", "", {}, results().settings, cells)
    assert [row[-1] for row in report.bare_rows(found)] == ["–", "8.00", "0.800"]
    (finding,) = report.findings(found)
    assert finding.answer == "Yes: 0.800."


def test_without_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    found = running.run(tmp_path, quick=True, runs=1, works=[terms.STARTED])
    assert found.settings["absent"][KAFKA]
    assert list(found.settings["servers"]) == [OURS]
    assert [cell.keys["work"] for cell in found.cells] == [terms.STARTED, terms.FRESH]
    assert list(tmp_path.iterdir()) == []


COMMAND = [sys.executable, "-m", "benchmarks.serve", "--quick", "--server", OURS, "--json"]


def test_command(tmp_path: Path) -> None:
    (where := tmp_path / "where").mkdir()
    chosen = ["--work", terms.SMALL_PRODUCE, "--work", terms.CACHED]
    told = subprocess.run(
        [*COMMAND, *chosen, "--out", str(tmp_path / "out"), "--directory", str(where)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    found = load(tmp_path / "out" / "serve.json")
    assert json.loads(told.stdout) == found.as_json()
    assert found.values("work") == [terms.SMALL_PRODUCE, terms.SMALL_FETCH, terms.CACHED]
    assert [cell.keys["server"] for cell in found.where(work=terms.CACHED)] == [OURS, *running.BARE]
    assert list(where.iterdir()) == []


@pytest.mark.slow
@pytest.mark.judge("Kafka's broker")
def test_a_broker(tmp_path: Path) -> None:
    """All works of both."""
    found = running.run(tmp_path, quick=True, runs=1)
    if why := found.settings["absent"].get(KAFKA):
        pytest.skip(f"Kafka is absent (java, mvn): {why}")
    assert found.values("work") == list(running.WORKS)
    assert all(found.where(work=work, server=KAFKA) for work in running.WORKS)
    assert len(found.findings) == len(report.TARGETS)
    assert list(tmp_path.iterdir()) == []
