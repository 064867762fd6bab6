"""The studies of segstore.bench: a quick run of each, the findings that they draw from given figures, and
Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import pytest
from cli import ok, run, start_program
from terminal import Terminal
from waiting import PATIENCE, until

from segstore.bench import Figure, Results, write
from segstore.bench.choices import STUDIES
from segstore.bench.plots import save
from segstore.bench.results import text
from segstore.bench.studies import Study, study
from segstore.bench.studies.child import ask
from segstore.bench.studies.words import Contest, answer, headline, leaders
from segstore.errors import InvalidArgumentError, StorageError

pytestmark = pytest.mark.kind("programs")

RUNS = 7


def children() -> list[str]:
    """The processes that this one has started and not waited for."""
    found: list[str] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found += path.read_text().split()
    return found


@pytest.fixture(scope="module")
def quick(disk_dir: Path) -> Callable[[str], Results]:
    """Results of a quick run, made once."""
    made: dict[str, Results] = {}

    def measured(name: str) -> Results:
        if name not in made:
            directory, told = disk_dir / name, []
            directory.mkdir()
            before = children()
            made[name] = study(name).run(directory, True, 1, lambda *now: told.append(now))
            assert list(directory.iterdir()) == []
            assert children() == before
            assert all(done <= total for done, total, _ in told)
            assert told[-1][0] == told[-1][1] == len(made[name].cells)
        return made[name]

    return measured


@pytest.mark.parametrize("name", STUDIES)
def test_a_quick_run(name: str, quick: Callable[[str], Results]) -> None:
    results, one = quick(name), study(name)
    assert (results.name, results.question) == (one.NAME, one.QUESTION) == (name, one.QUESTION)
    assert results.settings["quick"] is True
    figures = [figure for cell in results.cells for figure in cell.figures.values()]
    assert all(len(figure.runs) == 1 and figure.low >= 0 for figure in figures)
    assert {figure for cell in results.cells for figure in cell.figures} >= set(one.SHOWN)
    keys = [tuple(cell.keys.items()) for cell in results.cells]
    assert len(set(keys)) == len(keys) > 2
    assert Results.of(json.loads(text(results))) == results


@pytest.mark.parametrize("name", STUDIES)
def test_findings_are_made_of_the_cells_alone(name: str, quick: Callable[[str], Results]) -> None:
    results = quick(name)
    again = Results.of(json.loads(text(results)))
    assert list(results.findings) == study(name).findings(again)
    assert any(finding.answer.startswith("Too few runs") for finding in results.findings)


@pytest.mark.parametrize("name", STUDIES)
def test_pictures(name: str, quick: Callable[[str], Results], tmp_path: Path) -> None:
    results = quick(name)
    first = save(study(name).plot(results), tmp_path / "first")
    again = save(study(name).plot(results), tmp_path / "again")
    for one, other in zip(first, again, strict=True):
        assert Path(one).read_bytes() == Path(other).read_bytes()
    assert Path(first[0]).read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in Path(first[1]).read_bytes()


# --- what findings say ------------------------------------------------------------------------

Rank = Callable[[Mapping[str, Any]], float]


def at(key: str, *better: str) -> Rank:
    """These are the better ones."""
    return lambda keys: float(keys[key] in better)


def fewer(key: str) -> Rank:
    """The smaller number is the better one."""
    return lambda keys: -math.log10(keys[key] + 1)


def more(key: str) -> Rank:
    """The larger number is the better one."""
    return lambda keys: math.log10(keys[key] + 1)


def larger_batches(keys: Mapping[str, Any]) -> float:
    return ["each record", "batches of 4 KiB", "batches of 64 KiB", "batches of 1 MiB"].index(keys["as one"])


PLACES = ("by offset p50 µs", "by time p50 µs")
# Study, which of its findings, the figures that it is about, who is the better one if the claim is true, and
# whether more is better.
CLAIMS: dict[str, tuple[str, int, tuple[str, ...], Rank, bool]] = {
    "in order": ("sequential-writes", 0, ("MB/s",), at("order", "in order"), True),
    "growing": ("sequential-writes", 1, ("MB/s",), at("order", "in order", "shuffled"), True),
    "a write a batch": ("append-ways", 0, ("records/s",), at("way", "pwrite a batch"), True),
    "pwritev": ("append-ways", 1, ("records/s",), at("way", "pwritev"), True),
    "stores": ("append-ways", 2, ("records/s",), at("way", "mmap"), True),
    "segstore's batch": ("append-ways", 4, ("records/s",), at("way", "log.append_batch"), True),
    "own cache": ("caches", 0, ("2nd reads/s",), at("way", "own cache ¼", "own cache all"), True),
    "cold cache": ("caches", 1, ("1st reads/s",), at("way", "pread"), True),
    "restart": ("caches", 2, ("1st reads/s",), at("restarted", "process"), True),
    "mapping": ("caches", 3, ("2nd reads/s",), at("way", "mmap"), True),
    "batch throughput": ("batching", 0, ("records/s",), more("value"), True),
    "batch latency": ("batching", 1, ("p50 ms",), fewer("value"), False),
    "linger batches": ("batching", 2, ("records a batch",), more("value"), True),
    "linger latency": ("batching", 3, ("p50 ms",), fewer("value"), False),
    "batch ratio": ("compression", 0, ("ratio",), larger_batches, True),
    "batch writing": ("compression", 1, ("write CPU s/GB",), larger_batches, False),
    "batch reading": ("compression", 2, ("read CPU s/GB",), larger_batches, False),
    "large ratio": ("compression", 3, ("ratio",), larger_batches, True),
    "dense index": ("index-interval", 0, PLACES, fewer("interval bytes"), False),
    "every batch": ("index-interval", 1, PLACES, fewer("interval bytes"), False),
    "the default": ("index-interval", 2, PLACES, fewer("interval bytes"), False),
    "partitions' rate": ("partitions", 0, ("records/s",), fewer("partitions"), True),
    "partitions' memory": ("partitions", 1, ("open MiB",), fewer("partitions"), False),
    "partitions' flush": ("partitions", 2, ("flush ms",), fewer("partitions"), False),
    "failover": ("failover", 0, ("all ms",), fewer("partitions"), False),
    "first failover": ("failover", 1, ("first ms",), fewer("partitions"), False),
}
SAID = {1: "Yes.", -1: "No, it is the other way round.", 0: "These runs show no difference."}


def given(results: Results, level: Callable[[Mapping[str, Any], str], float], runs: int = RUNS) -> Results:
    """The same cells with figures near these levels."""
    cells = [
        dataclasses.replace(
            cell,
            figures={
                name: Figure(tuple(level(cell.keys, name) * (1 + i / 100) for i in range(runs)))
                for name in cell.figures
            },
        )
        for cell in results.cells
    ]
    return dataclasses.replace(results, cells=cells, findings=())


@pytest.mark.parametrize("truth", SAID, ids=["true", "opposite", "equal"])
@pytest.mark.parametrize("claim", CLAIMS)
def test_a_finding_says_what_figures_say(claim: str, truth: int, quick: Callable[[str], Results]) -> None:
    name, number, figures, rank, more_is_better = CLAIMS[claim]
    sign = truth if more_is_better else -truth

    def level(keys: Mapping[str, Any], figure: str) -> float:
        return 10.0 ** (sign * rank(keys)) if figure in figures else 1.0

    found = study(name).findings(given(quick(name), level))[number]
    assert found.answer.startswith(SAID[truth]), found.answer
    few = study(name).findings(given(quick(name), level, runs=4))[number]
    assert few.answer.startswith("Too few runs to say: a win needs 5."), few.answer


def test_every_finding_with_a_verdict_is_held_to_one(quick: Callable[[str], Results]) -> None:
    judged = {(name, number) for name, number, *_ in CLAIMS.values()}
    judged.add(("append-ways", 3))  # O_DIRECT, which some file systems refuse
    for name in STUDIES:
        told = enumerate(quick(name).findings)
        assert {(name, n) for n, one in told if one.answer.startswith("Too few")} <= judged


@pytest.mark.parametrize("smallest", ["gzip", "snappy"])
@pytest.mark.parametrize("cheapest", ["gzip", "lz4"])
def test_the_choice_of_a_codec(smallest: str, cheapest: str, quick: Callable[[str], Results]) -> None:
    def level(keys: Mapping[str, Any], figure: str) -> float:
        if figure == "ratio":
            return 4.0 if keys["codec"] == smallest else 2.0
        return 1.0 if keys["codec"] == cheapest else 3.0

    said = study("compression").findings(given(quick("compression"), level))[-1].answer
    assert f"the smallest log is {smallest}'s, the least CPU to write {cheapest}'s" in said
    times = f"{smallest} has 2.00 times the ratio of {cheapest} for 3.00 times the CPU."
    assert said.endswith("CPU to write gzip's." if smallest == cheapest else times)


def test_the_knee_and_the_curve_are_read_off_the_figures(quick: Callable[[str], Results]) -> None:
    def level(keys: Mapping[str, Any], figure: str) -> float:
        return float(min(keys["value"], 4096)) if figure == "records/s" else keys["value"] + 1.0

    throughput, _, _, latency = study("batching").findings(given(quick("batching"), level, runs=1))
    assert "batch_size: nine tenths of the most, 4,096 records/s, from 4 KiB on." in throughput.answer
    assert (
        "append_batch: nine tenths of the most, 1,000 records/s, from 1,000 a call on." in throughput.answer
    )
    assert "p50 ms by linger_ms: 0: 1.00, 1: 2.00, 2: 3.00, 5: 6.00, 10: 11.0" in latency.answer


def test_where_o_direct_is_refused_it_is_told(quick: Callable[[str], Results]) -> None:
    results = quick("append-ways")
    settings = {**results.settings, "O_DIRECT refused": "EINVAL"}
    cells = [cell for cell in results.cells if cell.keys["way"] != "O_DIRECT"]
    found = study("append-ways").findings(dataclasses.replace(results, cells=cells, settings=settings))[3]
    assert found.answer == "Not measured: this file system refuses O_DIRECT (EINVAL)."


def test_where_pages_stay_no_restart_of_the_machine_is_told() -> None:
    """tmpfs is nothing but page cache."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        results = study("caches").run(directory, True, 1, lambda *_: None)
        assert os.listdir(directory) == []
    assert results.values("restarted") == ["process"]
    assert "Not measured: the file system kept 1,024 pages" in results.findings[2].answer
    study("caches").plot(results)


def test_the_page_cache_has_all_or_nothing(quick: Callable[[str], Results]) -> None:
    found = {cell.keys["restarted"]: cell.figures["cached before %"].median for cell in quick("caches").cells}
    assert found["process"] == 100
    assert found.get("machine", 0) == 0


def near(*levels: float, runs: int = 5) -> tuple[Figure, Figure]:
    one, other = (Figure(tuple(level + i / 10 for i in range(runs))) for level in levels)
    return one, other


WORDS = {
    "all won": ([near(2, 1), near(9, 3)], "Yes."),
    "all lost": ([near(1, 2), near(3, 9)], "No, it is the other way round."),
    "one of each": (
        [near(2, 1), near(1, 2)],
        "In part: it holds in 1 of 2 comparisons, the opposite in 1, and in 0 the runs overlap.",
    ),
    "won and open": (
        [near(2, 1), near(1, 1)],
        "In part: it holds in 1 of 2 comparisons, the opposite in 0, and in 1 the runs overlap.",
    ),
    "lost and open": (
        [near(1, 2), near(1, 1)],
        "No: it holds in 0 of 2 comparisons, the opposite in 1, and in 1 the runs overlap.",
    ),
    "all open": ([near(1, 1)], "These runs show no difference."),
    "few runs": ([near(2, 1), near(2, 1, runs=4)], "Too few runs to say: a win needs 5."),
    "nothing": ([], "Not measured here."),
}


@pytest.mark.parametrize("name", WORDS)
def test_headlines(name: str) -> None:
    figures, said = WORDS[name]
    assert headline([Contest("here", "a", "b", pair, "MB/s", True) for pair in figures]) == said
    turned = [Contest("here", "a", "b", (two, one), "s", False) for two, one in figures]
    opposite = {"Yes.": SAID[-1], SAID[-1]: "Yes."}
    assert name.endswith("open") or name == "one of each" or headline(turned) == opposite.get(said, said)


LEADERS = {
    "one": ({"a": near(9, 1)[0], "b": near(5, 1)[0]}, ["a"], ["b"]),
    "two of three": ({"a": near(5.1, 1)[0], "b": near(5, 1)[0], "c": near(1, 1)[0]}, ["a", "b"], ["c"]),
    "all": ({"a": near(5.1, 1)[0], "b": near(5, 1)[0]}, ["a", "b"], ["b", "a"]),
}


@pytest.mark.parametrize("name", LEADERS)
def test_leaders(name: str) -> None:
    figures, most, least = LEADERS[name]
    assert (leaders(figures, True), leaders(figures, False)) == (most, least)


def test_what_is_said_of_a_contest() -> None:
    won = Contest("here", "a", "b", near(20, 1), "MB/s", True)
    assert answer([won]) == "Yes. here: a 20.2 MB/s, b 1.20 (a factor of 16.8)."
    overlap = (Figure((1.0, 2.0, 3.0, 4.0, 5.0)), Figure((1.5, 1.5, 3.5, 3.5, 4.5)))
    open_ = Contest("here", "a", "b", overlap, "MB/s", True)
    assert "3.00 MB/s, b 3.50 (the runs overlap; a is the better in 3 of 5 turns)" in open_.text()
    assert "a is the better in 2 of 5 turns" in open_._replace(more_is_better=False).text()


# --- Ctrl-C, and processes --------------------------------------------------------------------


@pytest.mark.parametrize("one", map(study, STUDIES), ids=lambda one: one.NAME)
def test_an_interrupt_at_any_time_leaves_nothing(one: Study, tmp_path: Path) -> None:
    before, calls = children(), 0

    def interrupted(done: int, total: int, what: str) -> None:
        nonlocal calls
        calls += 1
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one.run(tmp_path, True, 1, interrupted)
    assert calls > 2
    assert list(tmp_path.iterdir()) == []
    assert children() == before


@pytest.mark.parametrize("name", ["caches", "append-ways", "partitions"])
def test_ctrl_c_is_one_line(name: str, tmp_path: Path) -> None:
    process = start_program("bench", "study", name, "--directory", tmp_path, "--out", tmp_path / "out")
    try:
        until(lambda: glob("segstore-study-*/*", root_dir=tmp_path))
        own = f"/proc/{process.pid}/task/{process.pid}/children"
        if name == "caches":
            until(lambda: Path(own).read_text().split())
        descendants = Path(own).read_text().split()
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    said = b"segstore: interrupted; no files of the measurement are left behind\n"
    assert (process.returncode, output, error) == (130, b"", said)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert list((tmp_path / "out").iterdir()) == []
    assert not [pid for pid in descendants if os.path.exists(f"/proc/{pid}")]


def test_a_child_that_fails_is_told() -> None:
    with pytest.raises(StorageError, match=r"passes failed in its process: FileNotFoundError.*no-such"):
        ask("segstore.bench.studies.caches", "passes", path="/no-such", way="pread", reads=1)


# --- the command ------------------------------------------------------------------------------


def test_the_command_lists_studies() -> None:
    shown = ok("bench", "study").stdout
    assert all(name in shown for name in STUDIES)
    assert all(one.QUESTION.endswith("?") and one.QUESTION in shown for one in map(study, STUDIES))


def test_an_unknown_study(tmp_path: Path) -> None:
    result = run("bench", "study", "no-such", "--directory", tmp_path)
    assert result.exit_code == 2
    assert all(name in result.stderr for name in ("no-such", "batching"))
    with pytest.raises(
        InvalidArgumentError, match="no study is named 'no-such'; there are sequential-writes"
    ):
        study("no-such")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_results(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--directory", tmp_path, "--out", out, "--quick", "--runs", 1)
    result = ok("bench", "study", "append-ways", "--json", *arguments)
    assert json.loads(result.stdout) == json.loads((out / "append-ways.json").read_text())
    assert sorted(path.name for path in out.iterdir()) == [
        f"append-ways.{kind}" for kind in ("json", "png", "svg")
    ]


RUNS_CHOSEN = {
    "by itself": ((), 7),
    "quick": (("--quick",), 1),
    "quick, but so many": (("--runs", 3, "--quick"), 3),
    "so many": (("--runs", 4), 4),
}


@pytest.mark.parametrize("name", RUNS_CHOSEN)
def test_how_often_it_is_measured(
    name: str, quick: Callable[[str], Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, wanted = RUNS_CHOSEN[name]
    results, asked = quick("partitions"), []

    def run(_directory: str, _quick: bool, runs: int, _progress: object) -> Results:
        asked.append(runs)
        return results

    monkeypatch.setattr(study("partitions"), "run", run)
    ok("bench", "study", "partitions", *arguments)
    assert asked == [wanted]


def test_results_are_shown_again(tmp_path: Path, quick: Callable[[str], Results]) -> None:
    for name in ("partitions", "caches"):
        write(quick(name), tmp_path / f"{name}.json")
    shown = ok("bench", "report", tmp_path).stdout
    assert shown.index("caches: What does") < shown.index("partitions: What do")
    assert all(finding.answer in shown for finding in quick("caches").findings)
    for name, content, said in ((".", None, "has no results"), ("bad", "{}", "holds no results")):
        directory = tmp_path / "other" / name
        directory.mkdir(parents=True)
        if content is not None:
            (directory / "bad.json").write_text(content)
        result = run("bench", "report", directory)
        assert (result.exit_code, said in result.stderr) == (1, True)


def test_the_command_on_a_terminal_of_80_columns(tmp_path: Path) -> None:
    arguments = ("bench", "study", "sequential-writes", "--directory", tmp_path, "--quick", "--runs", 1)
    with Terminal(*arguments, columns=80) as terminal:
        assert terminal.end() == 0
        shown = terminal.plain().replace("\r", "\n").splitlines()
    assert max(map(len, shown)) <= 80
    assert any("fdatasync at end" in line for line in shown)
    assert any(line.startswith("“Writing in order is much faster") for line in shown)
