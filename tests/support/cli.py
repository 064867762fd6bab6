"""Runs the `segstore` command for tests: in this process, or in one of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from click.testing import CliRunner, Result

from segstore.cli.app import commands

COMMAND = [sys.executable, "-m", "segstore"]


def run(*arguments: object, stdin: bytes | str | None = None) -> Result:
    """The command in this process; whatever it raises but SystemExit is a failure of the test."""
    result = CliRunner(env={"SEGSTORE_PATH": None}).invoke(commands, [str(a) for a in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ok(*arguments: object, stdin: bytes | str | None = None) -> Result:
    """The command, which must succeed."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result


def json_lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def start_program(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """The command as a process, with pipes."""
    env = {name: value for name, value in os.environ.items() if name != "SEGSTORE_PATH"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A shell gives its background jobs, and so perhaps this run, an ignored SIGINT; a terminal never does.
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return subprocess.Popen([*COMMAND, *map(str, arguments)], env=env, **{**pipes, **heed, **options})
