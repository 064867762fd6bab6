"""`MemberProcess`: a process that is a member of a shared store and runs what a test sends it. The test
stops, kills or interrupts it, or has it halt within a system call. `LogWords`: what the shared file says of a
log.

On disk: what the commands do. Threads: one of the test; the commands run in the main thread of their process.
"""

from __future__ import annotations

import ast
import errno
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from faults import FailingFiles
from waiting import PATIENCE, until

from segstore._native import ffi, lib
from segstore.files import Files
from segstore.storage.shared.shared_file import SharedFile

WRITE, CUT, SYNC, WAKE = range(4)
"""Kinds of calls at which a process halts: `pwrite` and `pwritev`, `ftruncate`, `fdatasync` and `fsync`, a
wake of another process.
"""
BEFORE, BEHIND, HALF = range(3)
"""Where in the call; HALF: half of the bytes are written."""
SMALL = {"shared.stopped.ms": 200, "shared.answer.ms": 60_000}
"""Settings of a host whose stopped members are fenced soon."""


class MemberError(Exception):
    """What a command has raised: `kind` is the name of its class, `text` what it says."""

    def __init__(self, kind: str, text: str, trace: str) -> None:
        super().__init__(f"{kind}: {text}\n{trace}")
        self.kind, self.text = kind, text


class MemberProcess:
    """A process with a store open (`shared`: True, "guest" or False). A command is Python, and the value of
    its last expression comes back. It finds `store`, `side`, `log(n)` of topic "t", `guest(n)` (its
    `GuestPartition`), `lock(n)` and `unlock(n)` (the log's lock), `halt(...)`, and all of `_names`. `preload`
    is `halting.c`, compiled. With `faulty` its store has `files`, `FailingFiles` of syncs: none fails before
    it is told so.
    """

    def __init__(
        self,
        root: Path | str,
        shared: bool | str = "guest",
        config: dict[str, Any] | None = None,
        *,
        preload: Path | None = None,
        before: Sequence[str] = (),
        env: dict[str, str] | None = None,
        timeout: float = 60,
        faulty: bool = False,
    ) -> None:
        told = json.dumps([str(root), shared, config, str(preload or ""), timeout, faulty])
        path = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
        found = {**os.environ, "PYTHONPATH": path, **({"LD_PRELOAD": str(preload)} if preload else {})}
        self._process = subprocess.Popen(
            [*before, sys.executable, "-m", "shared_members", told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**found, **(env or {})},
        )
        self._read = bytearray()
        self.pid, self.slot = self._process.pid, -1

    def opened(self) -> MemberProcess:
        """Wait until it has the store open. Raises MemberError."""
        self.pid, self.slot = self.result()
        return self

    # --- commands -------------------------------------------------------------------------------

    def begin(self, code: str) -> None:
        """Have a command run; `result` gives what comes of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code).encode() + b"\n")
        self._process.stdin.flush()

    def result(self, seconds: float = PATIENCE) -> Any:
        """Return the value of the command that was begun. Raises MemberError."""
        assert self.is_done(seconds), f"{self.pid} has not answered in {seconds} s"
        line, _, self._read = self._read.partition(b"\n")
        told = json.loads(line)
        if "raised" in told:
            raise MemberError(*told["raised"])
        return told["value"]

    def is_done(self, seconds: float = 0.0) -> bool:
        """Return whether the command that was begun has ended."""
        assert self._process.stdout is not None
        while b"\n" not in self._read:
            if not select.select([self._process.stdout], [], [], seconds)[0]:
                return False
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            assert part, f"{self.pid} has ended, with {self._process.wait()}"
            self._read += part
        return True

    def run(self, code: str) -> Any:
        """Return the value of a command. Raises MemberError."""
        self.begin(code)
        return self.result()

    def append(self, value: str, partition: int = 0) -> int:
        """Append a record; return its offset."""
        return int(self.run(f"log({partition}).append({value.encode()!r})"))

    # --- what is done to it -----------------------------------------------------------------------

    def stop(self) -> None:
        """Stop it, and wait until all its threads stand still."""
        os.kill(self.pid, signal.SIGSTOP)
        self.await_stop()

    def await_stop(self) -> None:
        """Wait until it has stopped itself."""
        until(lambda: self.states() == {"T"})

    def go_on(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.await_death()

    def await_death(self) -> int:
        """Wait until it has died; return its code."""
        return self._process.wait(PATIENCE)

    def interrupt(self) -> None:
        """Send SIGINT: Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def sleeps(self) -> bool:
        """Return whether all its threads sleep."""
        return self.states() == {"S"}

    def states(self) -> set[str]:
        """Return the states of its threads: T is stopped, S sleeps, R runs, Z is dead."""
        found = set()
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        return found

    def close(self) -> None:
        """Close its store in an orderly way, and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0, f"{self.pid} has ended with {self._process.returncode}"

    def __enter__(self) -> MemberProcess:
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            if raised[0] is None and self._process.poll() is None:
                self.close()
        if self._process.poll() is None:
            self.kill()
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()


# --- what the shared file says --------------------------------------------------------------------


class LogWords(NamedTuple):
    """Words of a shared log at one look: the slot that owns its lock, or -1, and `who` of that process; the
    record that is its end; the slots that own sealed ends.
    """

    owner: int
    who: int
    is_open: bool
    torn: int
    aways: int
    generation: int
    is_sealed: bool
    base_offset: int
    position: int
    end_offset: int
    sealed: tuple[int, ...]


class SharedWords:
    """Looks into the shared file of a store, as no member."""

    def __init__(self, root: Path | str) -> None:
        found = SharedFile.view(Files(), str(root))
        assert found is not None, f"{root} is not shared"
        self.file = found

    @property
    def header(self) -> Any:
        """Return the header."""
        return self.file.header

    def numbers(self) -> list[int]:
        """Return the numbers of all logs that have an end."""
        count = (self.file.size - lib.SEG_SHARED_LOGS) // lib.SEG_SHARED_LOG
        return [number for number in range(count) if self.file.log(number).current]

    def number(self) -> int:
        """Return the number of the one log that there is."""
        (number,) = self.numbers()
        return number

    def log(self, number: int | None = None) -> LogWords:
        """Return the words of a log; of the only one that there is, without a number."""
        c = self.file.log(self.number() if number is None else number)
        end = ffi.new("seg_shared_end *")
        assert lib.seg_shared_now(c, end)
        low = c.lock & 0x7FFFFFFF
        return LogWords(
            owner=(low - 1) >> 2 if low else -1,
            who=(low - 1) & 3 if low else -1,
            is_open=bool(c.open),
            torn=c.torn & 1,
            aways=c.aways,
            generation=end.generation,
            is_sealed=bool(end.is_sealed),
            base_offset=end.end.base_offset,
            position=end.end.position,
            end_offset=end.end.next_offset,
            sealed=tuple((each.owner - 1 & 0xFFFFFFFF) >> 2 for each in c.sealed if each.owner),
        )


@contextmanager
def members(root: Path | str, *kinds: bool | str, **settings: Any) -> Iterator[list[MemberProcess]]:
    """Run members of these kinds; the first is the host, with the `config` that is given. It makes topic "t"
    of so many `partitions`, with the settings of `topic`. At the end they are closed, the host last.
    """
    config = settings.pop("config", SMALL)
    topic = settings.pop("topic", {})
    partitions = settings.pop("partitions", 1)
    running = [MemberProcess(root, kinds[0], config, **settings)]
    try:
        made = f"'t' in store.topics() or store.create_topic('t', {partitions}, {topic!r}) and 0"
        running[0].opened().run(made)
        running += [MemberProcess(root, kind, config, **settings) for kind in kinds[1:]]
        for each in running[1:]:
            each.opened()
        yield running
    except BaseException:
        for each in running:
            each.__exit__(AssertionError, None, None)
        raise
    for each in reversed(running):
        each.__exit__(None, None, None)


# --- in the member ----------------------------------------------------------------------------------


def _names(store: Any, preload: str) -> dict[str, Any]:
    import ctypes
    import threading
    import time

    import segstore

    side = store.engine

    def guest(partition: int = 0, topic: str = "t") -> Any:
        return side.appender(topic, partition)

    def share(partition: int = 0) -> Any:
        if guest(partition)._share is None:
            guest(partition)._find_log()
        if guest(partition)._share is None:
            guest(partition)._find_log()
        return guest(partition)._share

    def lock(partition: int = 0, patience_ms: int = -1) -> int:
        seen, of = ffi.new("uint64_t *"), share(partition)
        return int(lib.seg_lock_take(of.member, ffi.addressof(of.log, "lock"), of.who, 0, patience_ms, seen))

    def unlock(partition: int = 0) -> int:
        of = share(partition)
        return int(lib.seg_lock_leave(of.member, ffi.addressof(of.log, "lock"), of.who))

    def halt(
        kind: int, at: int = BEFORE, number: int = signal.SIGSTOP, nth: int = 1, path: str = ".log"
    ) -> None:
        ctypes.CDLL(preload).halt_at(kind, nth, at, int(number), path.encode())

    def high_seats(partition: int = 0) -> None:
        """Have guests that come take seats whose records lie in the log's second page."""
        seats = share(partition).log.seats
        for seat in range(lib.SEG_SEATS // 2 + 1):
            seats[seat] = seats[seat] or 1 << 32

    def halt_at_records(number: int = signal.SIGSTOP, partition: int = 0) -> None:
        """Halt before the next look at a record in the log's second page."""
        page = int(ffi.cast("uintptr_t", share(partition).log)) + mmap.PAGESIZE
        ctypes.CDLL(preload).halt_where(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), int(number))

    known = {each.__name__: each for each in (segstore, os, sys, threading, time, signal)}
    known |= {"store": store, "side": side, "ffi": ffi, "lib": lib, "until": until}
    known |= {each.__name__: each for each in (guest, share, lock, unlock, halt, high_seats)}
    known["halt_at_records"] = halt_at_records
    known |= {"log": lambda partition=0: store.partition("t", partition)}
    known |= {"WRITE": WRITE, "CUT": CUT, "SYNC": SYNC, "WAKE": WAKE}
    known |= {"BEFORE": BEFORE, "BEHIND": BEHIND, "HALF": HALF}
    return known


def _value(code: str, known: dict[str, Any]) -> Any:
    """Run a command, and return the value of its last expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<command>", "exec"), known)
    return None if last is None else eval(compile(ast.Expression(last.value), "<command>", "eval"), known)


def _answer(code: str, known: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": _value(code, known)}
    except BaseException as error:
        return {"raised": [type(error).__name__, str(error), traceback.format_exc()]}


def _slot(store: Any) -> int:
    """Return the slot of this process; -1 if it is no member."""
    if store.role not in {"host", "guest"}:
        return -1
    return next(each.slot for each in store.members() if each.pid == os.getpid())


def _main() -> None:
    import segstore

    root, shared, config, preload, timeout, faulty = json.loads(sys.argv[1])
    tell = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    fault = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    files = FailingFiles({"sync"}, fault, nth=0) if faulty else None
    with segstore.open(root, shared=shared, config=config, timeout=timeout, files=files) as store:
        known = _names(store, preload) | {"files": files}
        tell.write(json.dumps({"value": [os.getpid(), _slot(store)]}) + "\n")
        tell.flush()
        for line in sys.stdin:
            tell.write(json.dumps(_answer(json.loads(line), known), default=repr) + "\n")
            tell.flush()


if __name__ == "__main__":
    _main()
