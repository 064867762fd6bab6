"""Counts the system calls of each contender by `CountedFiles`. If strace is installed, transfers by
log.transfer are repeated in a process whose system calls strace counts. On disk: reads a store. Threads: one.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from segstore.bench.zero_copy.counted_files import CountedFiles
from segstore.bench.zero_copy.measure import Contenders, Ready
from segstore.bench.zero_copy.plan import LOG, Contender, ContenderGroup, MeasuredLog, stretch
from segstore.bench.zero_copy.receivers import Receiver, sink
from segstore.cli.signals import ended_later
from segstore.coordinator.open import open as open_store
from segstore.errors import StorageError

TRANSFERS = 8


class SyscallCounts(NamedTuple):
    """Counts of system calls. `calls` is strace's name of a system call -> mean number of calls in one
    transfer. `notices` is the number of notices of MSG_ZEROCOPY and io_uring in all transfers, and `copied`
    is the number of those that report a copy by the kernel.
    """

    calls: Mapping[str, float]
    notices: int
    copied: int

    def per_mb(self, size: int) -> float:
        """Return the number of system calls by which a megabyte (1e6 bytes) is sent in transfers of `size`
        bytes.
        """
        return sum(self.calls.values()) / size * 1e6


def count(files: CountedFiles, sink: Receiver, ready: Ready, stretch: MeasuredLog) -> SyscallCounts:
    """Send at most TRANSFERS transfers, and return the mean number of calls of each system call. A transfer
    before them is not counted, because it sets up state that is kept between transfers.
    """
    transfers = min(TRANSFERS, stretch.transfers - 1)
    sink.expect(stretch.size * (transfers + 1))
    with ready() as send:
        send(0)
        files.clear()
        for i in range(1, transfers + 1):
            send(i)
        sink.wait()
        calls = {name: n / transfers for name, n in sorted(files.calls.items()) if n}
    return SyscallCounts(calls, files.notices, files.copied)


# --- traced ------------------------------------------------------------------------------------

# The code below makes transfers in a process that strace watches, to compare strace's counts with those of
# `CountedFiles`.
#
# `judge` starts the watched process, `python -m segstore.bench.zero_copy.syscalls STORE DIRECTORY SINK CACHE
# SIZE METHOD`. The process reports that it is ready, waits for an answer, makes the transfers, and prints its
# counts. strace is attached while the process waits, so that strace counts only transfers. The process does
# not check whether io_uring works: closing the ring of this check would interrupt a system call of a
# transfer, and strace would list the call twice, because the kernel restarts it.

WARM = 2
WATCHED = frozenset(
    {"sendfile", "splice", "copy_file_range", "pread64", "write", "sendto", "sendmsg", "recvmsg", "mmap"}
    | {"munmap", "pipe2", "poll", "fstat", "io_uring_setup", "io_uring_enter", "io_uring_register"}
)
"""The system calls that a transfer may make. Other calls are not compared, because the interpreter may make
them at any time (such as brk).
"""
# name of a system call -> name under which it is counted
_ALIASES = {"newfstatat": "fstat"}
READY = "ready\n"
_PR_SET_PTRACER = 0x59616D61


class Judged(NamedTuple):
    """The numbers of WATCHED calls in TRANSFERS transfers: `counted` by `CountedFiles`, and `traced` by
    strace.
    """

    counted: dict[str, int]
    traced: dict[str, int]


def why_not() -> str | None:
    """Return the reason why strace can't be used on this machine, None if it can be used."""
    strace = shutil.which("strace")
    if strace is None:
        return "there is no strace here"
    command = [strace, "-c", "-o", os.devnull, "true"]
    # If Ctrl-C killed strace, strace's child would stay stopped for ever.
    with ended_later():
        tried = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True
        )
    return None if tried.returncode == 0 else f"strace can't trace here: {tried.stderr.strip()}"


def judge(root: str, directory: str, group: ContenderGroup, method: str) -> Judged:
    """Start a child process that makes transfers from the store at `root`. Return the numbers of system calls
    in these transfers, counted by `CountedFiles` and by strace. Raises StorageError if strace fails.
    """
    command = [
        sys.executable,
        "-m",
        __name__,
        root,
        directory,
        group.sink,
        group.cache,
        str(group.size),
        method,
    ]
    pipe = subprocess.PIPE
    with tempfile.NamedTemporaryFile("r", dir=directory, prefix="strace-") as report, ExitStack() as ending:
        with ended_later():
            # The child has a session of its own, so that the terminal sends Ctrl-C only to this process,
            # which then stops the child.
            watched = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
            ending.enter_context(watched)
            ending.push(lambda kind, *_: watched.kill() if kind else None)
        counted = _watch(watched, report.name)
        return Judged(_of_transfers(counted), _of_transfers(_listed(report.read())))


def _watch(watched: subprocess.Popen[str], report: str) -> Counter[str]:
    """Attach strace to the process `watched`, tell the process to make its transfers, and return the counts
    of the process's `CountedFiles`. strace writes the system calls to the file `report`.
    """
    assert watched.stdin is not None
    assert watched.stdout is not None
    if watched.stdout.readline() != READY:
        raise StorageError("the process that strace should watch has ended")
    command = ["strace", "-o", report, "-p", str(watched.pid)]
    with ExitStack() as ending:
        with ended_later():
            strace = ending.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
            # The signal makes strace detach and complete its list.
            ending.callback(strace.send_signal, signal.SIGINT)
        assert strace.stderr is not None
        said = strace.stderr.readline()
        if "attached" not in said:
            raise StorageError(f"strace can't watch: {said.strip()}")
        watched.stdin.write("\n")
        watched.stdin.flush()
        return Counter(json.loads(watched.stdout.readline()))


def _of_transfers(calls: Counter[str]) -> dict[str, int]:
    return {name: calls[name] for name in sorted(WATCHED) if calls[name]}


def _listed(text: str) -> Counter[str]:
    """Return name of a system call -> number of calls, from the text that strace has written."""
    calls: Counter[str] = Counter()
    for line in text.splitlines():
        name, bracket, rest = line.partition("(")
        # Anonymous mappings are made by the interpreter or the C library, never by a transfer.
        if name == "mmap" and "MAP_ANONYMOUS" in rest:
            continue
        if bracket and name.isidentifier() and " = ? ERESTART" not in rest:
            calls[_ALIASES.get(name, name)] += 1
    return calls


def main(arguments: Sequence[str]) -> None:
    """Make the transfers. This is the main program of the watched process."""
    root, directory, kind, cache, size, method = arguments
    files, one = CountedFiles(), Contender(LOG, method)
    with ExitStack() as stack:
        store = stack.enter_context(open_store(root, files=files))
        to, log = stack.enter_context(sink(kind, directory)), stretch(root, int(size), cache)
        ready = Contenders(store, files, stack).ready([one], to.fd, log)[one]
        send = stack.enter_context(ready())
        to.expect(log.size * (WARM + TRANSFERS))
        for i in range(WARM):
            send(i)
        _any_may_watch()
        os.writev(1, [READY.encode()])
        os.read(0, 1)
        files.clear()
        for i in range(WARM, WARM + TRANSFERS):
            send(i % log.transfers)
        # The output is written by writev, because writev is not in WATCHED.
        os.writev(1, [json.dumps(files.calls).encode(), b"\n"])
        # This waits until strace has detached, because later calls are not those of transfers.
        os.read(0, 1)
        to.wait()


def _any_may_watch() -> None:
    """Allow any process to trace this process. By default Linux's Yama allows this only to ancestors of the
    process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
