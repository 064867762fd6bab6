"""Commands in unusual environments: closed standard streams, no HOME, a plain locale, a narrow umask,
directories of any name, ignored signals. Each command works, or says in one line why not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli import COMMAND
from waiting import PATIENCE

import segstore

pytestmark = pytest.mark.kind("programs")

COMMANDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "consume": (0, ("consume", "t")),
    "produce": (0, ("produce", "t")),
    "create": (0, ("create", "new")),
    "delete": (0, ("delete", "u", "--yes")),
    "delete, not confirmed": (2, ("delete", "u")),
    "check": (0, ("check",)),
    "no such topic": (1, ("consume", "nope")),
}
CLOSED: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "input": ((0,), ("delete, not confirmed",)),
    "output": ((1,), ("consume",)),
    "errors": ((2,), ("no such topic",)),
    "all": ((0, 1, 2), ("produce", "consume", "create", "check")),
}


@pytest.fixture
def store(store_dir: Path) -> Path:
    make(store_dir)
    return store_dir


def make(path: Path) -> None:
    with segstore.open(path) as store:
        for topic in ("t", "u"):
            store.create_topic(topic)
            store.partition(topic).append_batch([b"one", b"two"])


def run(store: Path | str, name: str, prepare: Callable[[], object], **env: str | None) -> str:
    """Output and errors of a command, in a process of its own that begins with `prepare`."""
    found = {**os.environ, **env, "SEGSTORE_PATH": str(store)}
    expected, arguments = COMMANDS[name]
    done = subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        env={key: value for key, value in found.items() if value is not None},
        preexec_fn=prepare,
        check=False,
    )
    told = (done.stdout + done.stderr).decode()
    assert done.returncode == expected, (name, told)
    assert "Traceback" not in told, (name, told)
    assert "Exception ignored" not in told, (name, told)
    return told


@pytest.mark.parametrize("name", CLOSED)
def test_closed_standard_streams(name: str, store: Path) -> None:
    """They are as /dev/null; no file of the store gets their descriptors."""
    closed, commands = CLOSED[name]
    for command in commands:
        run(store, command, lambda: [os.close(fd) for fd in closed])


def test_no_home_no_language_a_dumb_terminal_and_a_narrow_umask(store: Path) -> None:
    env = {"HOME": None, "LANG": None, "LC_ALL": "C", "TERM": "dumb", "XDG_CACHE_HOME": None, "USER": None}
    for name in ("consume", "create", "delete", "check", "no such topic"):
        assert "\033" not in run(store, name, lambda: os.umask(0o077), **env)


NAMES = [b"with spaces", "\u00fcber \u65e5\u672c".encode(), b"not utf-8 \xff\xfe", b"quote'\"\n;$HOME"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_directories_of_any_name(name: bytes, tmp_path: Path) -> None:
    path = os.path.join(tmp_path, os.fsdecode(name))
    make(Path(path))
    for command in ("consume", "no such topic"):
        run(path, command, lambda: None, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert list(segstore.check(path)) == []


IGNORED = """
import signal, sys
numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE")]
before = [signal.getsignal(number) for number in numbers]
import segstore
from segstore.cli.signals import ended_by_signals
from segstore.cli import main
try:
    main(["topics", "-s", sys.argv[1]])
except SystemExit:
    pass
with segstore.open(sys.argv[1]) as store:
    store.partition("t").append(b"x")
    with ended_by_signals():
        within = [signal.getsignal(number) for number in numbers]
after = [signal.getsignal(number) for number in numbers]
print(before == after == within == [signal.SIG_IGN] * 4)
"""


def test_what_was_found_ignored_stays_ignored(store: Path) -> None:
    """As under nohup, and in a shell's background."""

    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, "-c", IGNORED, str(store)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=ignore,
        restore_signals=False,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr
