"""`segstore bench zero-copy` and `compare`: what they print and write, what they refuse, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from cli import ok, run, start_program
from places import environment
from terminal import CTRL_C, Terminal
from waiting import PATIENCE, until

from segstore.bench.figures import Figure
from segstore.bench.results import Cell, Results, load, write
from segstore.bench.zero_copy.contenders import EXHIBITS, NOT_BUILT
from segstore.bench.zero_copy.measure import CPU, THROUGHPUT
from segstore.bench.zero_copy.plan import LOG

pytestmark = pytest.mark.kind("programs")

ONE = ("--quick", "--runs", "1", "--sinks", "unix", "--sizes", "1 KiB", "--caches", "warm", "--methods")


def zero_copy(*more: object) -> tuple[object, ...]:
    return ("bench", "zero-copy", *ONE, "sendfile,read", *more)


def test_tables_and_findings(tmp_path: Path) -> None:
    shown = ok(*zero_copy("--directory", tmp_path, "--all")).output
    assert "unix, warm: MB/s" in shown
    assert "bare, unix, warm, 1 KiB" in shown
    assert "“mmap is fast for small files, sendfile for large ones”" in shown
    assert os.listdir(tmp_path) == []


INSTALLED = """
import sys
sys.modules["segstore.bench.zero_copy._exhibits"] = None  # as in a wheel
from segstore.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_wheel_measures_without_the_exhibits(tmp_path: Path) -> None:
    options = ("--quick", "--runs", "1", "--sinks", "tcp", "--sizes", "1 KiB", "--caches", "warm", "--json")
    program = [sys.executable, "-c", INSTALLED, "bench", "zero-copy", "--directory", str(tmp_path), *options]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["settings"]["unavailable"] == dict.fromkeys(EXHIBITS, NOT_BUILT)
    assert {cell["keys"]["method"] for cell in shown["cells"]} >= {"sendfile", "read"}
    assert done.stdout.count(f"Not available here: {NOT_BUILT}.") == 1


def test_json_and_nothing_else(tmp_path: Path) -> None:
    result = ok(*zero_copy("--directory", tmp_path, "--json"))
    found = Results.of(json.loads(result.stdout))
    assert found.name == "zero-copy"
    assert {c.keys["method"] for c in found.where(way=LOG)} == {"sendfile", "read"}
    assert result.stderr == ""


def test_files_are_written(tmp_path: Path) -> None:
    ok(*zero_copy("--directory", tmp_path, "--out", tmp_path / "new" / "out"))
    names = {name.rpartition(".")[2] for name in os.listdir(tmp_path / "new" / "out")}
    assert names == {"json", "png", "svg"}
    assert load(tmp_path / "new" / "out" / "zero-copy.json").settings["runs"] == 1


def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment that has segstore alone."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_what_was_measured_is_shown_and_kept_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_matplotlib(monkeypatch)
    result = ok(*zero_copy("--directory", tmp_path, "--out", tmp_path / "out"))
    assert "unix, warm: MB/s" in result.stdout
    assert os.listdir(tmp_path / "out") == ["zero-copy.json"]
    (line,) = result.stderr.splitlines()
    assert line.startswith("no pictures are drawn: ")
    assert line.endswith("needs matplotlib, which is not installed: pip install matplotlib")


REFUSED = {
    "a sink that is none": (("--sinks", "tcp,smoke"), "'smoke' must be of tcp, unix, pipe, file"),
    "a size that is none": (("--sizes", "3 KiB"), "'3 KiB' must be of 100 B"),
    "a cache that is none": (("--caches", "lukewarm"), "'lukewarm' must be of warm, cold"),
    "a method that is none": (("--methods", "pigeon"), "'pigeon' must be of sendfile"),
    "no runs": (("--runs", "0"), "0 is not in the range"),
    "no directory": (("--directory", "/no/such/place"), "does not exist"),
    "nothing to hold it against": (("--against", "/no/such/file"), "does not exist"),
    "an argument": (("tcp",), "unexpected extra argument"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    arguments, said = REFUSED[name]
    result = run("bench", "zero-copy", "--quick", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_methods_that_serve_no_sink_are_refused(tmp_path: Path) -> None:
    arguments = ("--sinks", "tcp", "--methods", "copy_file_range", "--directory", tmp_path)
    result = run("bench", "zero-copy", "--quick", *arguments)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "segstore: none of copy_file_range can send to any of tcp here"
    assert os.listdir(tmp_path) == []


def test_what_is_no_results_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")
    result = run(*zero_copy("--directory", tmp_path, "--against", tmp_path / "r.json"))
    assert result.exit_code == 1
    assert "holds no results of a measurement" in result.output


def some(path: Path, mmap: float, sendfile: float) -> Path:
    keys = {"way": LOG, "size": 1024, "cache": "warm", "sink": "tcp"}
    cells = [
        Cell({**keys, "method": method}, {THROUGHPUT: Figure((fast,) * 5), CPU: Figure((1.0,) * 5)})
        for method, fast in (("mmap", mmap), ("sendfile", sendfile))
    ]
    write(Results("zero-copy", "?", {}, {}, cells), path)
    return path


def test_compare(tmp_path: Path) -> None:
    one, other = some(tmp_path / "1.json", 100, 200), some(tmp_path / "2.json", 200, 100)
    assert "1 of 1 wins in both runs have the same winner" in ok("bench", "compare", one, one).output
    result = run("bench", "compare", one, other)
    assert result.exit_code == 1
    assert f"log, tcp, warm, 1,024 bytes, {THROUGHPUT}: sendfile won, and then mmap" in result.output


def test_no_arguments_is_help() -> None:
    assert "zero-copy" in ok("bench").output


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    arguments = ("bench", "zero-copy", "--sinks", "tcp,pipe", "--directory", tmp_path)
    process = start_program(*arguments)
    until(lambda: len(children(process.pid)) >= 2)
    receivers = children(process.pid)
    out, err = interrupted(process)
    assert (process.returncode, out) == (130, b"")
    assert err.endswith(b"segstore: interrupted; nothing is left behind, and nothing was written\n")
    assert err.count(b"\n") == 1 or err.startswith(b"Exception ignored in")
    assert os.listdir(tmp_path) == []
    assert not any(os.path.exists(f"/proc/{pid}") for pid in receivers)


def interrupted(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Interrupt a process until it ends, and return what it has printed. CPython prints, and forgets, an
    interrupt that comes into the callback of a weak reference.
    """
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=PATIENCE / 3)
    raise AssertionError("three interrupts did not end the process")


def children(parent: int) -> list[int]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            stat = Path("/proc", pid, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            found.append(int(pid))
    return found


def test_progress_on_a_terminal_of_80_columns(tmp_path: Path) -> None:
    with Terminal(*("bench", "zero-copy", "--sinks", "unix", "--directory", tmp_path)) as terminal:
        terminal.read_until(lambda text: "pass 1 of 11" in text)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "interrupted" in terminal.plain()
    assert os.listdir(tmp_path) == []


def test_ctrl_c_while_strace_counts(tmp_path: Path) -> None:
    """It reaches all processes of the terminal."""
    arguments = ("bench", "zero-copy", "--runs", "1", "--sizes", "1 KiB", "--sinks", "tcp,unix")
    with Terminal(*arguments, "--caches", "warm", "--directory", tmp_path) as terminal:
        terminal.read_until(lambda text: "counting again" in text)
        until(lambda: children(terminal.process.pid))  # what strace watches
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.plain()
    assert os.listdir(tmp_path) == []


def test_tables_fit_80_columns_without_colour(tmp_path: Path) -> None:
    arguments = ("bench", "zero-copy", "--quick", "--runs", "1", "--sizes", "1 KiB", "--sinks", "tcp,file")
    with Terminal(*arguments, "--directory", tmp_path, NO_COLOR="1") as terminal:
        assert terminal.end() == 0
        shown, plain = terminal.text(), terminal.plain().splitlines()
    tables = [line for line in plain if line.startswith((" size", " 1 KiB"))]
    assert len(tables) == 16
    assert max(len(line.rstrip()) for line in tables) <= 80
    assert not re.search(r"\x1b\[[0-9;]*[34][0-9]m", shown)
