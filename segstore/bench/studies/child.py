"""Runs a function in a new process, to measure the memory of the process, and the function's speed at the
start of a process. Threads: one. The child process exits after the call, and is killed if the caller is
interrupted. It runs `python -m segstore.bench.studies.child MODULE FUNCTION JSON`, and writes the function's
result to standard output, as JSON.
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
    """Call `function(**arguments)` of a module in a new process, and return what the function returns. The
    arguments and the result must be JSON values. Raises StorageError if the process fails.
    """
    command = [sys.executable, "-m", __name__, module, function, json.dumps(arguments)]
    process = None
    try:
        with ended_later():
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        result, error = process.communicate()
    finally:
        if process is not None:
            # This has no effect if the process has ended.
            process.kill()
            process.communicate()
    if process.returncode:
        why = error.decode(errors="replace").strip().rpartition("\n")[2]
        raise StorageError(f"{module}.{function} failed in its process: {why}")
    return json.loads(result)


def memory() -> dict[str, int]:
    """Return the size of this process's resident memory in bytes: anonymous memory ("own"), and mapped files
    ("files").
    """
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        found = dict(line.split(":", 1) for line in status)
    return {name: int(found[field].split()[0]) * 1024 for name, field in _FIELDS.items()}


_FIELDS = {"own": "RssAnon", "files": "RssFile"}


def main() -> None:
    """Call the function that the command line names, and print its result. This is the main program of the
    child process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C, and kills this process
    module, function, arguments = sys.argv[1:]
    result = getattr(import_module(module), function)(**json.loads(arguments))
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
