"""Promise: peers do the same work on the same records, equally durable; a peer that can't is reported."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

import kafka_tools
import pytest
from places import REPOSITORY
from waiting import PATIENCE, until

pytest.importorskip("matplotlib")
sys.path.append(str(REPOSITORY))

import segstore
from benchmarks.peers import apart, following, report, running, turn, works
from benchmarks.peers.peer import Log, Peer
from benchmarks.peers.records import Records, Row, checksum
from benchmarks.peers.with_segstore import SegstoreLog
from segstore.bench import Figure, Results, load, write
from segstore.bench.terminal import number_text

pytestmark = pytest.mark.kind("measurements")

BROKER = "Kafka"
INSIDE = [name for name in running.MAKERS if name != BROKER]
RECORDS = Records(1_000, 100)
NOTEBOOK = REPOSITORY / "notebooks" / "peers.ipynb"
NOT_OFFERED = {("persist-queue", turn.READ), ("persist-queue", turn.APART)}
FEWER = {
    report.COLUMNS: (turn.APPEND, turn.SCAN, turn.DURABLE),
    "LMDB, bare cursor": (turn.APPEND, turn.SCAN),
    "bare file": tuple(work for work in turn.WORKS if work not in (turn.TAIL, turn.APART)),
}
LEVELS = {"page cache": False, "synced": True}
STRACE = shutil.which("strace")


@pytest.fixture
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peer]:
    with ExitStack() as session:
        here, absent = running.made([request.param], session, tmp_path)
        if absent:
            pytest.skip(f"{request.param} is absent: {absent[request.param]}")
        yield here[0]


def works_of(name: str) -> tuple[str, ...]:
    return FEWER.get(name, tuple(turn.WORKS))


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """All of one process; what is not installed is absent."""
    return running.run(tmp_path_factory.mktemp("quick"), quick=True, runs=1, peers=INSIDE)


@pytest.mark.parametrize("name", INSIDE)
def test_figures(quick: Results, name: str) -> None:
    """Each work that it does has figures, or the reason why it is not offered."""
    if name in quick.settings["absent"]:
        pytest.skip(f"{name} is absent: {quick.settings['absent'][name]}")
    for work in works_of(name):
        cell = quick.cell(peer=name, work=work)
        if (name, work) in NOT_OFFERED:
            assert "not offered" in cell.notes
        else:
            assert cell.notes == {}
            assert all(figure.low > 0 for figure in cell.figures.values())
    assert {cell.keys["work"] for cell in quick.where(peer=name)} == set(works_of(name))


def test_every_peer_is_there_or_absent(quick: Results) -> None:
    assert {*quick.settings["peers"], *quick.settings["absent"]} == set(INSIDE)
    for of_it in quick.settings["peers"].values():
        assert {"versions", *report.LEVELS} == set(of_it)
        assert all(of_it["versions"].values())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("peer", INSIDE, indirect=True)
def test_the_same_records_come_back(peer: Peer, level: str, tmp_path: Path) -> None:
    (where := tmp_path / "log").mkdir()
    with closing(peer.open(where, LEVELS[level])) as log:
        for batch in RECORDS.batches(100, 300):
            log.append(batch)
        log.acknowledge()
        for _ in range(2):  # reading takes nothing away
            assert checksum(log.rows()) == RECORDS.checksum(300)
        seen = RECORDS.seen(300)
        assert log.scan() == (replace(seen, stamps=None) if peer.name in report.BARE else seen)


SYNCS = """
import sys
sys.path.append({root!r})
from contextlib import ExitStack, closing
from pathlib import Path
from benchmarks.peers import running
from benchmarks.peers.records import Records
with ExitStack() as session:
    here, _ = running.made([{name!r}], session, Path({where!r}))
    with closing(here[0].open(Path({where!r}), {synced})) as log:
        for batch in Records(100, 100).batches(1)[:{appends}]:
            log.append(batch)
            log.acknowledge()
"""


def syncs(name: str, where: Path, synced: bool, appends: int) -> int:
    where.mkdir()
    code = SYNCS.format(root=str(REPOSITORY), name=name, where=str(where), synced=synced, appends=appends)
    command = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,msync", "-o", f"{where}.strace"]
    subprocess.run([*command, sys.executable, "-c", code], check=True, cwd=REPOSITORY, timeout=PATIENCE)
    return len(
        re.findall(r"^\d+ +(?:fsync|fdatasync|msync)\(", Path(f"{where}.strace").read_text(), re.MULTILINE)
    )


@pytest.mark.judge("strace")
@pytest.mark.skipif(STRACE is None, reason="there is no strace")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("peer", INSIDE, indirect=True)
def test_each_level_syncs_as_it_says(peer: Peer, level: str, tmp_path: Path) -> None:
    """Opening and closing may sync; appends do it once each at least, or never."""
    synced, few, many = LEVELS[level], 5, 25
    more = syncs(peer.name, tmp_path / "many", synced, many) - syncs(peer.name, tmp_path / "few", synced, few)
    assert more >= many - few if synced else more == 0


class Faulty(Log):
    """In memory; gives its records through `fault`."""

    def __init__(self, fault: Callable[[list[Row]], list[Row]]) -> None:
        self._rows: list[Row] = []
        self._fault = fault

    def append(self, batch: Any) -> None:
        self._rows += zip(batch.timestamps, batch.values, strict=True)

    def rows(self) -> Iterator[Row]:
        return iter(self._fault(self._rows))

    def read(self, offset: int) -> Row:
        return self._fault(self._rows)[offset]

    def follow(self) -> Iterator[list[Row]]:
        at = 0
        while True:
            rows = self._fault(self._rows)[at:]
            at += len(rows)
            yield rows
            time.sleep(0.001)

    def close(self) -> None:
        pass


def _raise(rows: list[Row]) -> list[Row]:
    raise OSError(5, "the disk is gone")


FAULTS: dict[str, tuple[Callable[[list[Row]], list[Row]], str | None]] = {
    "none": (lambda rows: rows, None),
    "a record lost": (lambda rows: rows[:2] + rows[3:], "wrong"),
    "a record twice": (lambda rows: rows[:1] + rows, "wrong"),
    "two in another order": (lambda rows: rows[1::-1] + rows[2:], "wrong"),
    "another timestamp": (lambda rows: [(stamp + 1, value) for stamp, value in rows], "wrong"),
    "another value": (lambda rows: [(stamp, value[:-1] + b"?") for stamp, value in rows], "wrong"),
    "an error": (_raise, "failed"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_no_figure_of_wrong_records(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, kind = FAULTS[name]
    if name == "a record lost":  # which the follower waits for
        monkeypatch.setattr(following, "PATIENCE", 2.0)
    faulty = Peer("faulty", {}, {}, lambda where, synced: Faulty(fault))
    # As many records as are asked for, however long they take: some faults are of the third.
    effort = replace(running.QUICK, seconds=PATIENCE)
    found, bench = running.Found(), turn.Bench(faulty, RECORDS, effort, tmp_path)
    in_this_process = [part for part in works.PARTS if part is not apart.tail_apart]
    for part in in_this_process:
        running._one(part, bench, found)
    shown = {work for (_, _, work) in found.figures if (100, "faulty", work) not in found.why}
    # What comes back in another order is noticed once there are two.
    every = {work for part in in_this_process for work in works.PARTS[part]}
    assert shown == (every if kind is None else {turn.APPEND} & shown - {turn.APPEND})
    assert {key for of_it in found.why.values() for key in of_it} == ({kind} if kind else set())
    assert list(tmp_path.iterdir()) == []


class Astray(SegstoreLog):
    """A log whose follower in another process follows another one, which has the same records but one."""

    def __init__(self, where: Path, synced: bool) -> None:
        super().__init__(where, synced)
        (where / "other").mkdir()
        self._other = SegstoreLog(where / "other", synced)
        self._count = 0

    def append(self, batch: Any) -> None:
        super().append(batch)
        self._count += 1
        self._other.append(RECORDS.batches(1)[7] if self._count == 5 else batch)

    def apart(self) -> tuple[str, ...]:
        return self._other.apart()

    def close(self) -> None:
        self._other.close()
        super().close()


@pytest.mark.parametrize("log", [SegstoreLog, Astray])
def test_another_process_has_seen_the_same_records(log: type[Log], tmp_path: Path) -> None:
    bench = turn.Bench(Peer("a", {}, {}, log), RECORDS, running.QUICK, tmp_path)
    found = running.Found()
    running._one(apart.tail_apart, bench, found)
    wrong = found.why.get((100, "a", turn.APART), {})
    assert list(wrong) == (["wrong"] if log is Astray else [])
    assert list(tmp_path.iterdir()) == []


ABSENT = {
    "no such package": "with_nothing:peer",
    "a package that is not installed": "with_absent:peer",
    "no Java": "with_kafka:peer",
}


@pytest.mark.parametrize("name", ABSENT)
def test_absent(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers import peer as protocol

    if name == "no Java":
        pytest.importorskip("confluent_kafka")
        monkeypatch.setattr(shutil, "which", lambda tool: None)
    absent = type(sys)("benchmarks.peers.with_absent")
    monkeypatch.setitem(sys.modules, absent.__name__, absent)

    def peer(session: ExitStack, directory: Path) -> Peer:
        raise protocol.AbsentError("its library is not installed")

    absent.peer = peer  # type: ignore[attr-defined]
    monkeypatch.setitem(running.MAKERS, "other", ABSENT[name])
    results = running.run(tmp_path, quick=True, runs=1, peers=["segstore", "other"])
    assert results.values("peer") == ["segstore"]
    assert results.settings["absent"]["other"]
    assert f"other is absent: {results.settings['absent']['other']}." in report.legend(results)


def test_table_and_findings() -> None:
    """Bold where no other's runs overlap; what a peer can't do is said. What is bare stands beside them, and
    wins nothing.
    """
    runs = {"segstore": (10, 11, 12, 13, 14), "LMDB": (5, 6, 7, 8, 9), "SQLite": (5, 6, 7, 8, 9)}
    runs |= {"bare file": (50, 51, 52, 53, 54)}
    found = running.Found()
    for name, rates in runs.items():
        found.figures[(100, name, turn.APPEND)] = [{turn.RATE: float(rate)} for rate in rates]
        found.figures[(100, name, turn.READ)] = [{turn.P50: float(r), turn.P99: 1.0} for r in rates]
    found.why[(100, "persist-queue", turn.READ)] = {"not offered": "a queue"}
    settings = {"runs": 5, "peers": {}, "absent": {}}
    results = Results("peers", "", {}, settings, found.cells())
    rows = {row[0][0]: row for row in report.grid(results, 100)}
    assert rows["segstore"][1] == (report.figure_text(Figure((10, 11, 12, 13, 14))), True)
    assert rows["LMDB"][1][1] is False
    assert rows["bare file"][1] == (report.figure_text(Figure((50, 51, 52, 53, 54))), False)
    assert rows["persist-queue"][1:] == [("–", False), ("not offered", False)]  # no other work was done
    assert not any(won for row in rows.values() for _, won in row[6:7])  # LMDB and SQLite are alike
    answers = {finding.claim: finding.answer for finding in report.findings(results)}
    assert answers[f"segstore is the best: append, {turn.RATE}, values of 100 bytes"].startswith("Yes: ")
    assert all(answer.endswith(f" bare file: {number_text(52.0)}.") for answer in answers.values())
    assert answers[f"segstore is the best: point read, {turn.P50}, values of 100 bytes"].startswith("No: ")


COMMAND = [sys.executable, "-m", "benchmarks.peers", "--peer", "segstore", "--peer", "SQLite"]


def test_command(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (where := tmp_path / "where").mkdir()
    arguments = ["--quick", "--runs", "1", "--out", str(out), "--directory", str(where), "--json"]
    told = subprocess.run(
        [*COMMAND, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    results = load(out / "peers.json")
    assert json.loads(told.stdout) == results.as_json()
    assert (out / "peers.md").read_text().startswith(report.markdown(results))
    assert sorted(path.name for path in out.iterdir()) == ["peers.json", "peers.md", "peers.png", "peers.svg"]
    assert list(where.iterdir()) == []


SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def interruptible() -> None:
    """A shell's background jobs, and so their children, take no notice of Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", SIGNALS)
def test_ended_by_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """No trace, the status that shells know, nothing left, one line."""
    with subprocess.Popen(
        [*COMMAND, "--directory", str(tmp_path)],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    ) as process:
        until(lambda: glob("*/*/log-*", root_dir=tmp_path) or process.poll() is not None)
        process.send_signal(number)
        out, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == SIGNALS[number]
    assert told.strip() == "Interrupted; nothing is left behind."
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_broker_is_found_without_pytest() -> None:
    """Of `make bench` it was absent: its module needed pytest's path."""
    found = "importlib.import_module('benchmarks.peers.with_kafka').kafka_tools.VERSION"
    code = f"import importlib; print({found})"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout == f"{kafka_tools.VERSION}\n", done.stderr


@pytest.mark.slow
@pytest.mark.judge("Kafka's broker")
def test_a_broker(tmp_path: Path) -> None:
    """All works of a real one, read back; it ends with the run."""
    results = running.run(tmp_path, quick=True, runs=1, peers=["segstore", BROKER])
    if why := results.settings["absent"].get(BROKER):
        pytest.skip(f"Kafka is absent (java, mvn): {why}")
    assert [cell.keys["work"] for cell in results.where(peer=BROKER) if cell.figures] == list(turn.WORKS)
    assert list(tmp_path.iterdir()) == []
    assert segstore.__name__ in results.settings["peers"]


@pytest.mark.slow
def test_the_notebook(quick: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on a small run's results, and shows them."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    write(quick, tmp_path / "peers.json")
    monkeypatch.setenv("SEGSTORE_RESULTS", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, nbformat.NO_CONVERT)
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(notebook, timeout=2 * PATIENCE, resources=resources).execute()
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any(report.markdown(quick) == data.get("text/markdown") for data in shown)
    assert any("image/png" in data for data in shown)


def test_the_notebook_is_committed_with_its_output() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells)
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
