"""Transfers in a process that strace watches, and what it and `CountedFiles` say of them.

On disk: reads a store, with mode "r". Threads: one. Run by `judge`, and as `python -m
segstore.bench.zero_copy.traced STORE DIRECTORY SINK CACHE SIZE METHOD TRANSFERS`, which prints its own
count. strace counts all that the process does, its start included: so it runs twice, and what the second
run, with more transfers, has more of is what these took. It probes nothing: a ring of io_uring that was
closed would interrupt a transfer that waits, which the kernel then begins again, as another call for
strace.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from segstore.bench.zero_copy.cells import LOG, Contender, Group
from segstore.bench.zero_copy.contenders import Contenders
from segstore.bench.zero_copy.layout import stretch
from segstore.bench.zero_copy.receivers import sink
from segstore.client import opening
from segstore.errors import StorageError
from segstore.storage.transfer.counting import CountedFiles

WARM, MORE = 2, 8  # transfers of the first run, and how many more the second has
WATCHED = frozenset(
    {"sendfile", "splice", "copy_file_range", "pread64", "write", "writev", "sendto", "sendmsg", "recvmsg"}
    | {"io_uring_setup", "io_uring_enter", "io_uring_register", "mmap", "munmap", "pipe2", "poll", "fstat"}
)
"""Calls that may not go uncounted. Of others, as brk, transfers make none but by the way."""
_ALIASES = {"newfstatat": "fstat"}  # what the C library makes of it
_PATIENCE = 60.0  # seconds


class Judged(NamedTuple):
    """The WATCHED calls of MORE transfers, by their own count and by strace's."""

    counted: dict[str, int]
    traced: dict[str, int]


def why_not() -> str | None:
    """Why strace can't judge here; None where it can."""
    strace = shutil.which("strace")
    if strace is None:
        return "there is no strace here"
    tried = subprocess.run([strace, "-c", "-o", os.devnull, "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"strace can't trace here: {tried.stderr.strip()}"


def judge(root: str, directory: str, group: Group, method: str) -> Judged:
    """Count the same transfers of a store at `root` both ways. StorageError where strace failed."""
    few, many = (_run(root, directory, group, method, n) for n in (WARM, WARM + MORE))
    return Judged(_more(few[0], many[0]), _more(few[1], many[1]))


def _more(few: Counter[str], many: Counter[str]) -> dict[str, int]:
    return {name: n for name in sorted(WATCHED) if (n := many[name] - few[name])}


def _run(
    root: str, directory: str, group: Group, method: str, transfers: int
) -> tuple[Counter[str], Counter[str]]:
    arguments = [root, directory, group.sink, group.cache, str(group.size), method, str(transfers)]
    with tempfile.NamedTemporaryFile("r", dir=directory, prefix="strace-") as report:
        command = ["strace", "-c", "-o", report.name, sys.executable, "-m", __name__, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
        if ran.returncode:
            raise StorageError(f"transfers under strace failed: {ran.stderr.strip()[-500:]}")
        return Counter(json.loads(ran.stdout)), _table(report.read())


def _table(text: str) -> Counter[str]:
    """Calls by name, of what `strace -c` writes: % time, seconds, usecs/call, calls, errors or none, name."""
    calls: Counter[str] = Counter()
    for row in map(str.split, text.splitlines()):
        if len(row) in (5, 6) and row[3].isdecimal():
            calls[_ALIASES.get(row[-1], row[-1])] += int(row[3])
    return calls


def main(arguments: Sequence[str]) -> None:
    """The process that is watched."""
    root, directory, kind, cache, size, method, transfers = arguments
    files = CountedFiles()
    with ExitStack() as stack:
        store = stack.enter_context(opening.open(root, "r", files=files))
        to = stack.enter_context(sink(kind, directory))
        log = stretch(root, int(size), cache)
        one = Contender(LOG, method)
        ready = Contenders(store, files, stack).ready([one], to.fd, log)[one]
        send = stack.enter_context(ready())
        to.expect(log.size * int(transfers))
        files.clear()
        for i in range(int(transfers)):
            send(i % log.transfers)
        to.wait()
        sys.stdout.write(json.dumps(files.calls))


if __name__ == "__main__":
    main(sys.argv[1:])
