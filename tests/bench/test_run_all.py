"""Promise: one command measures everything; a step that fails is reported; the pages agree with the
results.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from glob import glob
from pathlib import Path

import pytest
from places import REPOSITORY
from waiting import PATIENCE, until

pytest.importorskip("matplotlib")
pytest.importorskip("pytest_benchmark")
sys.path.append(str(REPOSITORY))

from rich.console import Console

from benchmarks import result_pages, run_all, steps
from benchmarks.run_all import Step
from segstore.bench import ClaimFinding, Results, load, write

pytestmark = pytest.mark.kind("programs")

QUIET = Console(quiet=True)
STATUSES = {"zero-copy": 0, "studies": 3, "peers": 0}


def fake(status: int) -> Step:
    """Its exit status is partly of the environment."""
    code = f"import os, sys; sys.exit({status - 1} + int(os.environ['MORE']))"
    return Step([sys.executable, "-c", code], {"MORE": "1"})


def test_others_run_where_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_all, "step", lambda name, *_: fake(STATUSES[name]))
    done = list(run_all.run(list(STATUSES), tmp_path / "out", False, QUIET))
    assert {one.name: one.status for one in done} == STATUSES


def test_a_step_that_was_interrupted_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_all, "step", lambda *_: fake(run_all.INTERRUPTED))
    with pytest.raises(KeyboardInterrupt):
        list(run_all.run(list(STATUSES), tmp_path / "out", False, QUIET))


def test_every_step_has_a_command(tmp_path: Path) -> None:
    for name in run_all.STEPS:
        command = run_all.step(name, tmp_path, tmp_path / "report", quick=True).command
        assert command[:2] == [sys.executable, "-m"]
        asked = subprocess.run(
            [*command, "--help"],
            cwd=REPOSITORY,
            env=steps.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert asked.returncode == 0, asked.stderr


@pytest.mark.parametrize("everything", [False, True])
def test_pages_and_notebooks(everything: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks need all results; a run of some steps into another directory leaves them as they are."""
    ran: list[Step] = []
    monkeypatch.setattr(run_all, "finished", lambda one: ran.append(one) or 1)
    monkeypatch.setattr(result_pages, "update", lambda directory: ran.append(Step([str(directory)])))
    assert run_all.shown(tmp_path, everything) == (run_all.FAILED if everything else 0)
    notebooks = Step([sys.executable, "-m", "benchmarks.notebooks"], {"SEGSTORE_RESULTS": str(tmp_path)})
    assert ran == [Step([str(tmp_path)]), *([notebooks] if everything else [])]


@pytest.mark.parametrize("everything", [False, True])
def test_stored_results_go_into_pages_of_the_documentation(
    everything: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step changes stored results, too: notebooks and pages that did not follow told of two machines."""
    ran: list[str] = []
    monkeypatch.setattr(run_all, "finished", lambda one: ran.append(Path(one.command[-1]).name) or 0)
    monkeypatch.setattr(result_pages, "update", lambda directory: None)
    assert run_all.shown(result_pages.RESULTS.resolve(), everything) == 0
    assert ran == ["benchmarks.notebooks", *run_all.PAGES]
    assert [tool for tool in run_all.PAGES if not (REPOSITORY / "tools" / tool).exists()] == []


COMMAND = [sys.executable, "-m", "benchmarks.run_all", "--quick", "--no-pages"]


def test_ratios(tmp_path: Path) -> None:
    """A quick run of the benches leaves its ratios, and compares nothing."""
    command = [*COMMAND, "--only", "ratios", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    (cell,) = load(tmp_path / "out" / "ratios.json").cells
    assert cell.keys["bench"] == "bench_retention.py::test_deleting_a_segment"
    assert "as before" not in done.stdout


def test_interrupt(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group, as on a terminal."""
    command = [*COMMAND, "--only", "peers", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        until(lambda: glob("segstore-peers-*/*/log-*", root_dir=tmp_path) or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        told, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == run_all.INTERRUPTED
    assert "Traceback" not in told + errors
    assert told.splitlines()[-1] == "Interrupted; nothing is left behind."
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_pages_are_what_results_render_to() -> None:
    found = result_pages.results(result_pages.RESULTS)
    assert result_pages.PEERS in found
    for page, part in (
        (result_pages.PEERS_PAGE, result_pages.rendered),
        (result_pages.SERVE_PAGE, result_pages.served),
    ):
        text = page.read_text(encoding="utf-8")
        assert result_pages.placed(text, part(found)) == text
    assert (result_pages.RESULTS / "README.md").read_text() == result_pages.overview(
        found, result_pages.RESULTS
    )


def test_pages_follow_results(tmp_path: Path) -> None:
    pages = page, served = tmp_path / "page.md", tmp_path / "served.md"
    for each in pages:
        each.write_text(f"before\n{result_pages.BEGIN}old\n{result_pages.END}after\n")
    where = {"cpu": "c", "cores": 2, "memory": 1, "kernel": "k", "python": "p", "packages": {}, "load": 0.5}
    where["filesystem"] = {"type": "ext4", "device": "d", "options": ""}
    study = Results("study", "Why?", where, {}, [], [ClaimFinding("All is well", "It\nis.")])
    peers = Results("peers", "Who?", where, {"runs": 5, "peers": {}, "absent": {"X": "no Java"}}, [])
    write(study, tmp_path / "study.json")
    write(peers, tmp_path / "peers.json")
    settings = {"runs": 5, "quick": False, "servers": {}, "clients": {}, "absent": {"X": "no Java"}}
    write(Results("serve", "How?", where, settings, []), tmp_path / "serve.json")
    (tmp_path / "study.png").write_bytes(b"")
    result_pages.update(page, tmp_path, served)
    assert served.read_text().startswith(
        f"before\n{result_pages.BEGIN}Measured by `make bench-serve` on c, 2 cores"
    )
    assert served.read_text().endswith(f"X is absent: no Java.\n{result_pages.END}after\n")
    assert page.read_text().startswith(f"before\n{result_pages.BEGIN}Measured by `make bench` on c, 2 cores")
    assert page.read_text().endswith(f"X is absent: no Java.\n{result_pages.END}after\n")
    lines = (tmp_path / "README.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("#")] == [
        "# Results of `make bench`",
        "## peers",
        "## serve",
        "## study",
    ]
    assert "![study](study.png)" in lines
    assert "- **All is well** It is." in lines


@pytest.mark.parametrize(
    "text",
    [
        "",
        result_pages.BEGIN,
        result_pages.END + result_pages.BEGIN,
        2 * (result_pages.BEGIN + result_pages.END),
    ],
)
def test_a_page_without_a_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        result_pages.placed(text, "")
