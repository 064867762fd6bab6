"""Rules for checkpoint files, and injected faults, with which users can study the recovery of a query.
`FileRole` decides whether a file may be replaced, `Sync` decides whether it is synced, and `OperationFaults`
has the faults.

Threads: any; `OperationFaults` has a lock.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from segstore.errors import InvalidArgumentError


class FileRole(enum.Enum):
    """The role of a file in a checkpoint. Its nearest parent directory with the name state, offsets or
    commits determines the role; a file without such a parent has the role OTHER.

    A batch that runs again writes its state files again. Here the new files replace the old ones; HDFS would
    refuse this, and Spark would silently use the old files. A RENAME without options never replaces a file in
    `offsets` or `commits`. Spark first checks that no such file exists, and then renames a temporary file to
    its name. These two steps are not atomic: if the rename could replace a file, two runs of one query could
    both succeed.
    """

    STATE = "state"
    OFFSETS = "offsets"
    COMMITS = "commits"
    OTHER = ""


_ROLES = {role.value: role for role in FileRole if role.value}


def role_of(path: str) -> FileRole:
    parents = reversed(path.split("/")[:-1])
    return next((_ROLES[part] for part in parents if part in _ROLES), FileRole.OTHER)


class Sync(enum.Enum):
    """The level of syncing: it says which files are synced before Spark gets the response. The fsync for a
    file also syncs all files that were written before it.

    BATCH: a micro-batch's plan (`offsets/N`) is synced, and with it the state and the commit of the batch
    before. A power failure loses at most the running batch, which then runs again with the same plan.
    COMMIT: the file `commits/N` is synced too. FILE: every file is synced when it gets its name. NONE: no
    file is synced, as in an ordinary directory, because Spark itself does not sync files.
    """

    NONE = "none"
    BATCH = "batch"
    COMMIT = "commit"
    FILE = "file"

    def covers(self, path: str) -> bool:
        """Return whether a file is synced when it gets this name. A file with a temporary name, which begins
        with ".", is never synced.
        """
        if path.rpartition("/")[2].startswith("."):
            return False
        roles = {
            Sync.BATCH: {FileRole.OFFSETS},
            Sync.COMMIT: {FileRole.OFFSETS, FileRole.COMMITS},
            Sync.FILE: set(FileRole),
        }
        return role_of(path) in roles.get(self, ())


# --- faults ------------------------------------------------------------------------------------

# A fault delays the n-th operation, makes it fail, or closes its connection without an answer. Threads: any;
# operations are counted under a lock, in the order of their arrival.

OPERATIONS = (
    *("OPEN", "GETFILESTATUS", "GETFILELINKSTATUS", "LISTSTATUS", "LISTSTATUS_BATCH", "GETCONTENTSUMMARY"),
    *("GETFILEBLOCKLOCATIONS", "GETSERVERDEFAULTS", "GETHOMEDIRECTORY", "CHECKACCESS"),
    *("CREATE", "MKDIRS", "RENAME", "DELETE"),
)
# The number of the latest operations that `OperationFaults` keeps.
KEPT = 10_000


class ServedOperation(NamedTuple):
    """An operation that was served. `path` is the operation's path; for a RENAME it is the target. `status`
    is the HTTP status, 0 if no answer was sent.
    """

    name: str
    path: str
    status: int
    seconds: float


@dataclass(eq=False)
class OperationFault:
    """A fault for matching operations. `seen` is the number of matching operations; `hits` is the number of
    those to which the fault was applied.
    """

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


class OperationFaults:
    """The faults that are set, the latest operations, and the counts of all operations by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set: list[OperationFault] = []
        self.operations: deque[ServedOperation] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()

    def add(
        self, kind: str, operation: str | None, path: str, nth: int, times: int, **more: float
    ) -> OperationFault:
        """Add a fault, and return it. Raises InvalidArgumentError for an operation that does not exist."""
        if operation not in (None, *OPERATIONS):
            raise InvalidArgumentError(f"operation={operation!r}: must be one of {', '.join(OPERATIONS)}")
        if nth < 1 or times < 1:
            raise InvalidArgumentError(f"nth={nth!r}, times={times!r}: both must be 1 or more")
        after, seconds = bool(more.get("after")), float(more.get("seconds", 0))
        fault = OperationFault(kind, operation, path, nth, times, after, seconds)
        with self._lock:
            self._set.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._set.clear()

    def meeting(self, operation: str, path: str) -> list[OperationFault]:
        """Return the faults that apply to this operation. Each fault counts the operations that match it."""
        if not self._set:
            return []
        with self._lock:
            return [fault for fault in self._set if fault.meets(operation, path)]

    def note(self, operation: str, path: str, status: int, began: float) -> None:
        with self._lock:
            self.operations.append(ServedOperation(operation, path, status, time.monotonic() - began))
            self.counts[operation] += 1
