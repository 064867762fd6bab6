"""Promise: ratios are compared with a stored baseline; a worse one is reported and fails the run, noise does
not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from places import REPOSITORY
from waiting import PATIENCE

sys.path.append(str(REPOSITORY))

from benchmarks import baseline
from benchmarks.baseline import TOLERANCE, Compared
from segstore.bench import Cell, Figure, Results, load, write

pytestmark = pytest.mark.kind("programs")

STEADY = (3.0, 3.1, 2.9, 3.05, 2.95, 3.0, 3.02, 2.98, 3.1)
WILD = (1.5, 4.0, 2.0, 5.0, 3.0, 2.5, 3.5, 1.8, 4.5)


def times(factor: float, runs: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(factor * run for run in runs)


CASES: dict[str, tuple[tuple[float, ...], tuple[float, ...], bool]] = {
    "the same": (STEADY, STEADY, False),
    "better": (STEADY, times(2, STEADY), False),
    "half": (STEADY, times(0.5, STEADY), True),
    "a little more than what is borne": (STEADY, times(0.93 * (1 - TOLERANCE), STEADY), True),
    "less than what is borne": (STEADY, times(0.98, STEADY), False),
    "two slow rounds": (STEADY, (*STEADY[:-2], 0.3, 0.2), False),
    "two quick rounds hide nothing": (STEADY, (*times(0.5, STEADY[:-2]), 9.0, 9.0), True),
    "a wide spread": (WILD, times(0.7, WILD), False),
    "a wide spread, and a tenth": (WILD, times(0.1, WILD), True),
    "one round each, the half": ((3.0,), (1.5,), True),
    "one round each, alike": ((3.0,), (2.9,), False),
}


@pytest.mark.parametrize("name", CASES)
def test_worse(name: str) -> None:
    before, now, worse = CASES[name]
    assert Compared("b", Figure(before), Figure(now)).worse is worse


def test_noise_is_not_worse(rng: Random) -> None:
    """Of a thousand runs whose rounds are drawn alike (a tenth of spread) none is worse."""
    drawn = [Figure(tuple(rng.gauss(3, 0.3) for _ in range(9))) for _ in range(2_000)]
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    assert not any(Compared("b", before, now).worse for before, now in pairs)


def made(path: Path, **ratios: tuple[float, ...]) -> Path:
    cells = [Cell({"bench": name}, {baseline.RATIO: Figure(runs)}) for name, runs in ratios.items()]
    write(Results("ratios", "", {}, {}, cells), path)
    return path


COMMANDS = {
    "as before": ({"a": STEADY, "b": WILD}, {"a": STEADY, "b": WILD}, 0, "as before"),
    "one is worse": ({"a": STEADY, "b": WILD}, {"a": times(0.5, STEADY), "b": WILD}, 1, "Worse by more than"),
    "new": ({"a": STEADY}, {"a": STEADY, "b": WILD}, 0, "new"),
    "not run": ({"a": STEADY, "b": WILD}, {"a": STEADY}, 0, "not run"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command(name: str, tmp_path: Path) -> None:
    before, now, status, said = COMMANDS[name]
    paths = made(tmp_path / "run.json", **now), made(tmp_path / "baseline.json", **before)
    done = compare(*paths)
    assert (done.returncode, said in done.stdout) == (status, True), done.stdout + done.stderr
    assert compare(*paths, "--write").returncode == 0
    assert paths[1].read_bytes() == paths[0].read_bytes()
    assert compare(*paths).returncode == 0


def compare(run: Path, before: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.baseline", str(run), "--baseline", str(before), *more]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE)


def test_from_a_report(tmp_path: Path) -> None:
    """What has no ratios is left out; names are those of files and tests, wherever pytest was started."""
    benches = [
        {"fullname": "benchmarks/bench_a.py::test_b[c]", "extra_info": {"ratios": [1.0, 2.0]}},
        {"fullname": "benchmarks/bench_a.py::test_c", "extra_info": {}},
    ]
    (report := tmp_path / "report.json").write_text(json.dumps({"benchmarks": benches}))
    found = baseline.ratios(report, tmp_path)
    assert [cell.keys["bench"] for cell in found.cells] == ["bench_a.py::test_b[c]"]
    assert found.cells[0].figures[baseline.RATIO].runs == (1.0, 2.0)
    assert found.machine["kernel"]


def test_the_stored_one_has_benches_that_are_there() -> None:
    stored = load(baseline.BASELINE)
    assert len(stored.cells) >= 20
    for cell in stored.cells:
        file, _, test = cell.keys["bench"].partition("::")
        text = (REPOSITORY / "benchmarks" / file).read_text()
        assert f"def {test.partition('[')[0]}(" in text
        assert "keep_ratios" in text or "by_turns" in text
