"""The code of docs/processes.md works when it is pasted, and its table is that of the results."""

from __future__ import annotations

import configparser
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import command_tree
import pytest
from cli import COMMAND, start_program
from pages import INTERRUPTED
from places import REPOSITORY, environment
from waiting import PATIENCE, until
from web_workers import gunicorn

import segstore
from benchmarks import bench_processes, bench_shared, shared_appends
from benchmarks.successions import MS, succession
from segstore.bench import load

PAGE = (REPOSITORY / "docs" / "processes.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^## (\w+)\n|^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
ADDRESS = "127.0.0.1:9092"


def block(section: str, language: str, number: int = 0) -> str:
    """A code block below a heading."""
    heading, found = "", []
    for title, lang, code in BLOCKS:
        heading = title or heading
        if (heading, lang) == (section, language):
            found.append(code)
    return found[number]


def test_all_blocks_are_run_here() -> None:
    assert [(lang, code) for _, lang, code in BLOCKS if code] == [
        ("python", block("Share", "python")),
        ("python", block("Share", "python", 1)),
        ("bash", block("Serve", "bash")),
        ("python", block("Serve", "python")),
        ("bash", block("Serve", "bash", 1)),
        ("python", block("Embed", "python")),
        ("python", block("Stage", "python")),
        ("ini", block("Supervise", "ini")),
    ]


def test_the_table_is_that_of_the_results() -> None:
    results = load(REPOSITORY / "benchmarks" / "results" / "processes.json")
    assert bench_processes.page(PAGE, results) == PAGE, "run bench_processes.update()"
    with pytest.raises(ValueError, match="the page must have"):
        bench_processes.page(PAGE.replace("<!-- processes -->", ""), results)


def test_the_tables_of_sharing_are_those_of_the_results() -> None:
    assert bench_shared.page(PAGE, bench_shared.stored()) == PAGE, "run bench_shared.update()"
    with pytest.raises(ValueError, match="the page must have"):
        bench_shared.page(PAGE.replace("<!-- shared -->", ""), None)


# --- share --------------------------------------------------------------------------------------


@pytest.mark.kind("programs")
@pytest.mark.parametrize("shared", ['"guest"', "True"])
def test_the_application_of_gunicorn_shares(shared: str, store_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    ready = "\n\ndef post_worker_init(worker):\n    worker.log.info('ready %d', worker.pid)\n"
    app = block("Share", "python", 1).replace('"events", shared="guest"', f'"{store_dir}", shared={shared}')
    (tmp_path / "app.py").write_text(app + ready)
    with segstore.open(store_dir) as store:
        store.ensure_topic("events")
    host = segstore.open(store_dir, shared=True) if shared != "True" else nullcontext()
    with host, gunicorn(tmp_path, "app") as asked:
        assert asked.ask("/page").words == ["0"]
        assert asked.ask("/other").words == ["1"]
    with segstore.open(store_dir, "r") as store:
        assert [record.value for record in store.partition("events").read(0)] == [b"/page", b"/other"]


# --- serve --------------------------------------------------------------------------------------


@pytest.fixture
def address(store_dir: Path) -> Iterator[str]:
    """Where the page's command serves, on a port that is free."""
    command = (
        block("Serve", "bash")
        .replace(ADDRESS, "127.0.0.1:0")
        .replace("--store events", f"--store {store_dir}")
    )
    name, *arguments = shlex.split(command)
    assert name == "segstore"
    with start_program(*arguments) as program:
        try:
            assert program.stdout is not None
            yield program.stdout.readline().split()[-1].decode()
            program.send_signal(signal.SIGINT)
            assert program.wait(PATIENCE) in (0, INTERRUPTED)
        finally:
            program.kill()


WORKERS = """
children = []
while len(children) < 3 and 0 not in children:
    children.append(os.fork())
said = []
body = app({"PATH_INFO": "/of/%d" % os.getpid()}, lambda status, headers: said.append(status))
for child in children if 0 not in children else ():
    os.waitpid(child, 0)
os.write(1, b"%s\\n" % said[0].encode())  # one write: `print` makes two of an unbuffered stdout
os._exit(0)
"""


@pytest.mark.kind("programs")
def test_workers_append_and_the_terminal_looks(address: str, tmp_path: Path) -> None:
    app = block("Serve", "python").replace(ADDRESS, address)
    run = subprocess.run(
        [sys.executable, "-c", app + WORKERS],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
    )
    assert (run.returncode, run.stdout) == (0, "202 Accepted\n" * 4), run.stderr
    script = block("Serve", "bash", 1).replace(ADDRESS, address)
    shell = f'segstore() {{ {shlex.join(COMMAND)} "$@"; }}\nset -e\n{script}'
    looked = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE, env=environment()
    )
    assert looked.returncode == 0, looked.stderr
    assert "events" in looked.stdout
    assert looked.stdout.count('"value": "/of/') == 4
    assert looked.stdout.count('"value": "by hand"') == 1
    assert "no groups" in looked.stderr


# --- embed and stage ----------------------------------------------------------------------------


@pytest.mark.kind("programs")
def test_examples_work_when_pasted_in_one_directory(store_dir: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"  # a file: processes that are spawned import it
    for section, told in {"Share": "host 200", "Embed": "400", "Stage": "0"}.items():
        program.write_text(block(section, "python").replace('open("events"', f"open({str(store_dir)!r}"))
        run = subprocess.run(
            [sys.executable, program], capture_output=True, text=True, timeout=PATIENCE, env=environment()
        )
        assert run.returncode == 0, run.stderr
        assert told in run.stdout
    ends = {("events", 0): 400, ("events-staged", 0): 1000, ("events-staged", 1): 1000}
    with segstore.open(store_dir, "r") as store:
        assert {each: store.partition(*each).end_offset for each in ends} == ends


# --- supervise ----------------------------------------------------------------------------------


def test_the_unit_of_systemd_runs_a_command_that_there_is() -> None:
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # systemd tells A from a
    unit.read_string(block("Supervise", "ini"))
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "segstore"
    assert command_tree.fault(["segstore", *words], whole=True) is None
    assert unit["Service"]["Restart"] == "on-failure"


@pytest.mark.kind("costly unit tests")
def test_one_record_of_each_way_is_measured(tmp_path: Path) -> None:
    """The measurement counts what is in the log: see `measure`."""
    for way in bench_processes.WAYS:
        case = bench_processes.Case(way, durable=way == bench_processes.STAGE, records=2, calls=1)
        found = until(lambda case=case: bench_processes.measure(case, str(tmp_path), workers=1))
        assert found["records/s"] > 0
        assert 0 < found["p50 ms"] <= found["p99 ms"]


SHARED = [
    shared_appends.Case(shared_appends.BOTH, 2),
    shared_appends.Case(shared_appends.GUESTS, 1, True),
    shared_appends.Case(f"{shared_appends.SQLITE}FULL", 2, True),
]


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("case", SHARED, ids=lambda case: f"{case.processes} of {case.way}")
def test_a_case_of_sharing_is_measured(case: shared_appends.Case, tmp_path: Path) -> None:
    """The run counts what is in the log: see `run`."""
    found = shared_appends.run(case, 0.01, str(tmp_path))
    assert found[shared_appends.RATE] > 0
    assert 0 < found[shared_appends.P50] <= found[shared_appends.P99]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.kind("costly unit tests")
def test_a_new_host_is_measured(tmp_path: Path) -> None:
    with succession(str(tmp_path / "store"), 2) as store:
        assert [store.change()[MS] > 0 for _ in range(3)] == [True] * 3
