"""Promise: SIGTERM and SIGHUP end a measurement as Ctrl-C does, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path

import pytest
from cli import start_program
from places import REPOSITORY
from waiting import PATIENCE, until

from segstore.cli.signals import EndedError, ended_by_signals, ended_later, status

pytestmark = pytest.mark.kind("programs")

STATUSES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
OURS = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Whatever started this run, and whatever a test sets."""
    before = {number: signal.getsignal(number) for number in STATUSES}
    for number in OURS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STATUSES)
def test_a_signal_is_raised_and_has_its_status(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt) as raised, ended_by_signals():
        signal.raise_signal(number)
    assert status(raised.value) == STATUSES[number]
    assert [signal.getsignal(one) for one in OURS] == [signal.SIG_DFL] * 2


def test_those_that_follow_do_not_disturb() -> None:
    cleaned = []

    @contextmanager
    def cleaning() -> Iterator[None]:
        try:
            yield
        finally:
            for number in OURS:
                signal.raise_signal(number)
            cleaned.append(True)

    with pytest.raises(EndedError, match="SIGHUP"), ended_by_signals(), cleaning():
        signal.raise_signal(signal.SIGHUP)
    assert cleaned


@pytest.mark.parametrize("number", OURS)
def test_what_is_ignored_or_handled_stays_so(number: signal.Signals) -> None:
    came: list[int] = []
    for handler in (signal.SIG_IGN, lambda one, _: came.append(one)):
        signal.signal(number, handler)
        with ended_by_signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) is handler
    assert came == [number]


@pytest.mark.parametrize("number", STATUSES)
def test_what_may_not_be_interrupted(number: signal.Signals) -> None:
    done = []

    def uninterrupted() -> None:
        with ended_later():
            signal.raise_signal(number)
            done.append(True)

    with pytest.raises(KeyboardInterrupt) as raised, ended_by_signals():
        uninterrupted()
    assert done
    assert status(raised.value) == STATUSES[number]


# --- the commands -----------------------------------------------------------------------------

COMMANDS = {
    "zero-copy": (("zero-copy", "--sinks", "tcp"), "segstore-zero-copy-*/store/*/*.log"),
    "a study": (("study", "sequential-writes"), "segstore-study-*/*"),
    "a study's child": (("study", "caches"), "segstore-study-*/*"),
}


@pytest.mark.parametrize("number", OURS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_leaves_nothing(name: str, number: signal.Signals, tmp_path: Path) -> None:
    arguments, made = COMMANDS[name]
    process = start_program("bench", *arguments, "--directory", tmp_path)
    try:
        until(lambda: glob(made, root_dir=tmp_path))
        if name != "a study":
            until(lambda: children(process.pid))
        below = children(process.pid)
        process.send_signal(number)
        out, told = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (STATUSES[number], b"")
    assert told.startswith(b"segstore: interrupted; no")
    assert told.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert not [pid for pid in below if os.path.exists(f"/proc/{pid}")]


@pytest.mark.parametrize("number", STATUSES)
def test_all_measurements_leave_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Of a signal to the one process alone, as of `kill`; the step that runs gets Ctrl-C from it."""
    command = [sys.executable, "-m", "benchmarks.run_all", "--no-pages", "--only", "studies"]
    out = tmp_path / "out"
    process = subprocess.Popen(
        [*command, "--out", str(out)],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        until(lambda: glob("segstore-study-*/*", root_dir=tmp_path))
        below = children(process.pid)
        process.send_signal(number)
        told, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == STATUSES[number]
    assert told.splitlines()[-1] == b"Interrupted; nothing is left behind."
    assert b"Traceback" not in told
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert below
    assert not [pid for pid in below if os.path.exists(f"/proc/{pid}")]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
