"""Runs a function in a process of its own, for what only such a process can show: its memory, and a fresh
start.

Threads: one; the child ends with its call, and is killed where the caller is interrupted. Run as `python -m
segstore.bench.studies.child MODULE FUNCTION JSON`: writes what the function returns, as JSON.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib import import_module
from typing import Any

from segstore.cli.signals import ended_later
from segstore.errors import StorageError


def ask(module: str, function: str, **arguments: Any) -> Any:
    """What `function(**arguments)` of a module gives in a new process; JSON values both. Raises
    StorageError.
    """
    command = [sys.executable, "-m", __name__, module, function, json.dumps(arguments)]
    process = None
    try:
        with ended_later():
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        told, error = process.communicate()
    finally:
        if process is not None:
            process.kill()  # nothing where it has ended
            process.communicate()
    if process.returncode:
        why = error.decode(errors="replace").strip().rpartition("\n")[2]
        raise StorageError(f"{module}.{function} failed in its process: {why}")
    return json.loads(told)


def memory() -> dict[str, int]:
    """Bytes of this process that are resident: its own, and shared with files (mapped ones)."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        found = dict(line.split(":", 1) for line in status)
    return {name: int(found[field].split()[0]) * 1024 for name, field in _FIELDS.items()}


_FIELDS = {"own": "RssAnon", "files": "RssFile"}


def main() -> None:
    """The child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the caller's, who kills
    module, function, arguments = sys.argv[1:]
    told = getattr(import_module(module), function)(**json.loads(arguments))
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
