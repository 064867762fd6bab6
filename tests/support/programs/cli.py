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

VARIABLES = ("SEGSTORE_PATH", "SEGSTORE_BOOTSTRAP")
COMMAND = [sys.executable, "-m", "segstore"]


def run(
    *arguments: object, stdin: bytes | str | None = None, variables: dict[str, str] | None = None
) -> Result:
    """Run the command in this process and return its result; any exception but SystemExit fails the test. Of
    the variables that name a store it has those that are given.
    """
    env = {**dict.fromkeys(VARIABLES), **(variables or {})}
    result = CliRunner(env=env).invoke(
        commands, [str(a) for a in arguments], input=stdin, prog_name="segstore"
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ok(*arguments: object, stdin: bytes | str | None = None) -> Result:
    """Run the command, which must succeed, and return its result."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result


def json_lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def start_program(
    *arguments: object, variables: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start the command as a process, with pipes. Of VARIABLES it has those that are given."""
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES} | (variables or {})
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # In the background jobs of a shell, perhaps also in this run, SIGINT is ignored; in a terminal it never
    # is.
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return subprocess.Popen([*COMMAND, *map(str, arguments)], env=env, **{**pipes, **heed, **options})
