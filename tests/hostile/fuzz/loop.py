"""Runs inputs in this process, under limits of memory and time, until one fails. A child of `run`.

On disk: `current`, a mapped file with the input under way, so that the parent has it after a crash.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import resource
import signal
import time
import traceback
from pathlib import Path

from fuzz.mutate import MOST_BYTES
from fuzz.target import Target

MEMORY = 3 << 29
"""Bytes that a process may take beyond what it has when it begins."""
SECONDS = 60.0
"""What one input may take, on a machine that is busy with many others, under the sanitizers."""


class Hang(BaseException):
    """An input took too long."""


def limit_time() -> None:
    """Of each input in this process."""

    def ring(*_: object) -> None:
        raise Hang(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, ring)


def limit_memory() -> None:
    """Of this process. The sanitizer, which maps terabytes, bounds single allocations by its own option."""
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * mmap.PAGESIZE + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


class Current:
    """The input under way, in a file: its length, then its bytes."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(4 + 2 * MOST_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def put(self, data: bytes) -> None:
        self._memory[: 4 + len(data)] = len(data).to_bytes(4, "big") + data

    @staticmethod
    def get(path: Path) -> bytes:
        held = path.read_bytes()
        return held[4 : 4 + int.from_bytes(held[:4], "big")]


def failure(target: Target, data: bytes) -> str | None:
    """What goes wrong: the exception and where it was raised; None where all is well."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        target.outcome(data)
    except (Exception, Hang) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


class Loop:
    """Mutates sound inputs, those of the corpus and those that reached something new."""

    def __init__(self, target: Target, corpus: list[bytes], seed: str, current: Current) -> None:
        self._target, self._current = target, current
        self._rng = random.Random(seed)
        self._inputs = [*target.seeds(), *corpus]
        self.done = 0
        self.outcomes: dict[str, bytes] = {}
        for data in self._inputs:
            self._look_at(data)
        self.new: list[bytes] = []

    def _look_at(self, data: bytes) -> bool:
        """Whether its outcome is new. What is a bug is raised."""
        self._current.put(data)
        self.done += 1
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        outcome = self._target.outcome(data)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return self.outcomes.setdefault(outcome, data) is data

    def run(self, inputs: int, seconds: float) -> None:
        """So many inputs, or for so long."""
        end = time.monotonic() + seconds
        while self.done < inputs and time.monotonic() < end:
            data = self._target.mutated(self._rng, self._inputs)
            if self._look_at(data):
                self._inputs.append(data)
                self.new.append(data)


def digest(data: bytes) -> str:
    """The name of an input's file."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
