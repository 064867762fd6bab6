"""Runs a function in a new process, to measure its memory and a fresh start.

Threads: one. The child exits after the call, and is killed if the caller is interrupted. It is run as `python
-m segstore.bench.studies.child MODULE FUNCTION JSON`, and writes the function's result to standard output, as
JSON.
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
    """Call `function(**arguments)` of a module in a new process, and return its result. Arguments and result
    are JSON values. Raises StorageError if the process fails.
    """
    command = [sys.executable, "-m", __name__, module, function, json.dumps(arguments)]
    process = None
    try:
        with ended_later():
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        result, error = process.communicate()
    finally:
        if process is not None:
            process.kill()  # does nothing if the process has ended
            process.communicate()
    if process.returncode:
        why = error.decode(errors="replace").strip().rpartition("\n")[2]
        raise StorageError(f"{module}.{function} failed in its process: {why}")
    return json.loads(result)


def memory() -> dict[str, int]:
    """Return the resident bytes of this process: its own ("own"), and those of mapped files ("files")."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        found = dict(line.split(":", 1) for line in status)
    return {name: int(found[field].split()[0]) * 1024 for name, field in _FIELDS.items()}


_FIELDS = {"own": "RssAnon", "files": "RssFile"}


def main() -> None:
    """Call the function that the arguments name, in the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C, and kills this process
    module, function, arguments = sys.argv[1:]
    result = getattr(import_module(module), function)(**json.loads(arguments))
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
