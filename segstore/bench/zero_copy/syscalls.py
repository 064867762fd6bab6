"""The system calls of each contender, counted by `CountedFiles` in a store that is opened for it alone, and
by strace.

On disk: opens a store to read. Threads: one. Where strace is installed, the same transfers run again in a
process that strace watches.
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
    """Calls of one transfer by strace's names; notices of MSG_ZEROCOPY in all, and how many of them said that
    the kernel has copied after all."""

    calls: Mapping[str, float]
    notices: int
    copied: int

    def per_mb(self, size: int) -> float:
        """Return how many system calls a megabyte (1e6 bytes) takes in transfers of `size` bytes."""
        return sum(self.calls.values()) / size * 1e6


def count(files: CountedFiles, sink: Receiver, ready: Ready, stretch: MeasuredLog) -> SyscallCounts:
    """Return what TRANSFERS transfers call, or those that there are, once one has warmed up what is kept
    between them.
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

# Transfers in a process that strace watches, and whether it and `CountedFiles` agree.
#
# Run by `judge`, and as `python -m segstore.bench.zero_copy.syscalls STORE DIRECTORY SINK CACHE SIZE METHOD`:
# the process says that it is ready, goes on once it is told, and prints what it counted. strace is attached
# meanwhile, so that only transfers are counted. The process probes nothing: closing a ring of io_uring would
# interrupt a waiting transfer, which the kernel then begins again, as another call for strace.

WARM = 2
WATCHED = frozenset(
    {"sendfile", "splice", "copy_file_range", "pread64", "write", "sendto", "sendmsg", "recvmsg", "mmap"}
    | {"munmap", "pipe2", "poll", "fstat", "io_uring_setup", "io_uring_enter", "io_uring_register"}
)
"""Calls that a transfer may make. Of others, as brk, the interpreter makes some now and then."""
_ALIASES = {"newfstatat": "fstat"}  # what the C library makes of it
READY = "ready\n"
_PR_SET_PTRACER = 0x59616D61


class Judged(NamedTuple):
    """The WATCHED calls of as many TRANSFERS, by their own count and by strace's."""

    counted: dict[str, int]
    traced: dict[str, int]


def why_not() -> str | None:
    """Return why strace can't judge here; None where it can."""
    strace = shutil.which("strace")
    if strace is None:
        return "there is no strace here"
    command = [strace, "-c", "-o", os.devnull, "true"]
    with ended_later():  # a strace that Ctrl-C ends may leave what it has begun stopped for ever
        tried = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True
        )
    return None if tried.returncode == 0 else f"strace can't trace here: {tried.stderr.strip()}"


def judge(root: str, directory: str, group: ContenderGroup, method: str) -> Judged:
    """Count the same transfers of a store at `root` both ways. Raises StorageError where strace failed."""
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
            # A session of its own: Ctrl-C is for this one, which then ends it.
            watched = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
            ending.enter_context(watched)
            ending.push(lambda kind, *_: watched.kill() if kind else None)
        counted = _watch(watched, report.name)
        return Judged(_of_transfers(counted), _of_transfers(_listed(report.read())))


def _watch(watched: subprocess.Popen[str], report: str) -> Counter[str]:
    """Let strace list what the process calls next, and give the process's own count of that."""
    assert watched.stdin is not None
    assert watched.stdout is not None
    if watched.stdout.readline() != READY:
        raise StorageError("the process that strace should watch has ended")
    command = ["strace", "-o", report, "-p", str(watched.pid)]
    with ExitStack() as ending:
        with ended_later():
            strace = ending.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
            ending.callback(strace.send_signal, signal.SIGINT)  # it lets go, and ends its list
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
    """Return the calls by name, of what `strace` lists. Memory that the interpreter or the C library asks for
    is none of a transfer's: a mapping of no file. A call that the kernel begins anew is listed twice, and
    counts once.
    """
    calls: Counter[str] = Counter()
    for line in text.splitlines():
        name, bracket, rest = line.partition("(")
        if name == "mmap" and "MAP_ANONYMOUS" in rest:
            continue
        if bracket and name.isidentifier() and " = ? ERESTART" not in rest:
            calls[_ALIASES.get(name, name)] += 1
    return calls


def main(arguments: Sequence[str]) -> None:
    """Run the transfers in the process that is watched."""
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
        os.writev(1, [json.dumps(files.calls).encode(), b"\n"])  # which no transfer calls
        os.read(0, 1)  # until strace has let go: what comes now is of no transfer
        to.wait()


def _any_may_watch() -> None:
    """Let any process watch this one, where Yama lets only its parents do so."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
