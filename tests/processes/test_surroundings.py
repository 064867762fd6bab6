"""Tests run the same however the run was started: under nohup, in the background, with a closed stdin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from places import IMPORTED
from waiting import PATIENCE

pytestmark = pytest.mark.kind("programs")

ASKED = """
import os, signal, subprocess, sys
import pytest

@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "PIPE"])
def test_a_program_is_ended_by_a_signal(name):
    done = subprocess.run(["sh", "-c", f"kill -{name} $$; exit 3"])
    assert done.returncode == -signal.Signals[f"SIG{name}"]

def test_how_a_program_ended_is_known():
    assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3

@pytest.mark.parametrize("name", IGNORED)
def test_the_run_lives_through_what_it_found_ignored(name):
    os.kill(os.getpid(), signal.Signals[name])

def test_ctrl_c_is_felt():
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

def test_stdin(tmp_path):
    assert sys.__stdin__.encoding
    with open(tmp_path / "file", "w") as file:
        assert file.fileno() != 0
"""
STARTED = {
    "as usual": ((), ()),
    "under nohup": (("SIGHUP",), ()),
    "in the background": (("SIGINT", "SIGQUIT"), ()),
    "by one that ignores all": (("SIGHUP", "SIGINT", "SIGTERM", "SIGPIPE", "SIGCHLD"), ()),
    "by one that blocks all": ((), ("SIGHUP", "SIGINT", "SIGTERM", "SIGPIPE", "SIGCHLD", "SIGALRM")),
}
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.parametrize("processes", [[], ["-p", "xdist", "-n1"]], ids=["one process", "a worker"])
@pytest.mark.parametrize("name", STARTED)
def test_a_run_that_is_started(name: str, processes: list[str], tmp_path: Path) -> None:
    ignored, blocked = STARTED[name]
    lived = [one for one in ignored if one in ("SIGHUP", "SIGTERM")]
    (tmp_path / "test_asked.py").write_text(f"IGNORED = {lived}\n{ASKED}")

    def set_them() -> None:
        for one in ignored:
            signal.signal(signal.Signals[one], signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.Signals[one] for one in blocked})
        os.close(0)

    passed = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SEGSTORE_", "COVERAGE_"))}
    done = subprocess.Popen(
        [sys.executable, "-c", PYTEST, "-q", "-p", "surroundings", "-p", "no:cacheprovider", *processes],
        cwd=tmp_path,
        env={**passed, "PYTHONPATH": os.pathsep.join(IMPORTED), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=set_them,
        restore_signals=False,
    )
    told, _ = done.communicate(timeout=PATIENCE)
    assert done.returncode == 0, told
