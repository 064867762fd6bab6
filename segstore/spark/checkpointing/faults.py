"""Faults for studies of recovery: the n-th operation is delayed, fails, or gets no answer. Nothing on disk.

Threads: any; operations are counted under a lock, in the order in which they came.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from segstore.errors import InvalidArgumentError

OPERATIONS = (
    *("OPEN", "GETFILESTATUS", "GETFILELINKSTATUS", "LISTSTATUS", "LISTSTATUS_BATCH", "GETCONTENTSUMMARY"),
    *("GETFILEBLOCKLOCATIONS", "GETSERVERDEFAULTS", "GETHOMEDIRECTORY", "CHECKACCESS"),
    *("CREATE", "MKDIRS", "RENAME", "DELETE"),
)
KEPT = 10_000  # operations that are remembered


class Operation(NamedTuple):
    """One that was served: `path` is a RENAME's target, `status` HTTP's or 0 for no answer."""

    name: str
    path: str
    status: int
    seconds: float


@dataclass(eq=False)
class Fault:
    """What is to happen to some operations, and how often it has (`hits`)."""

    kind: str
    operation: str | None
    path: str
    nth: int
    times: int
    after: bool
    seconds: float = 0.0
    seen: int = 0
    hits: int = 0

    def meets(self, operation: str, path: str) -> bool:
        if self.operation not in (None, operation) or not fnmatchcase(path, self.path):
            return False
        self.seen += 1
        hit = self.nth <= self.seen < self.nth + self.times
        self.hits += hit
        return hit


class Faults:
    """All that are set, and the operations of late."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set: list[Fault] = []
        self.operations: deque[Operation] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()

    def add(self, kind: str, operation: str | None, path: str, nth: int, times: int, **more: float) -> Fault:
        """InvalidArgumentError for an operation that there is not."""
        if operation not in (None, *OPERATIONS):
            raise InvalidArgumentError(f"operation={operation!r}: must be one of {', '.join(OPERATIONS)}")
        if nth < 1 or times < 1:
            raise InvalidArgumentError(f"nth={nth!r}, times={times!r}: both must be 1 or more")
        after, seconds = bool(more.get("after")), float(more.get("seconds", 0))
        fault = Fault(kind, operation, path, nth, times, after, seconds)
        with self._lock:
            self._set.append(fault)
        return fault

    def clear(self) -> None:
        """No more faults."""
        with self._lock:
            self._set.clear()

    def meeting(self, operation: str, path: str) -> list[Fault]:
        """Those that hit this operation."""
        if not self._set:
            return []
        with self._lock:
            return [fault for fault in self._set if fault.meets(operation, path)]

    def note(self, operation: str, path: str, status: int, began: float) -> None:
        with self._lock:
            self.operations.append(Operation(operation, path, status, time.monotonic() - began))
            self.counts[operation] += 1
