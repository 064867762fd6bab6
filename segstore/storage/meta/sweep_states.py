"""`SweepStates`: the file `.segstore/sweeps.json`, with the result of each partition's last sweep (retention
or compaction).

Other processes (`segstore topics`, `segstore stats`) read the file, only to show its content. The file is
replaced by a rename without a sync, and counts as missing if it is damaged. Threads: any; one lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from segstore import names
from segstore.files import Files
from segstore.integers import INT64_MAX
from segstore.mutex import Mutex
from segstore.storage.meta.checked_file import OLD_OBJECT, CheckedFile
from segstore.storage.meta.root_checkpoints import TopicPartitionKey

NEVER = -1
_LATEST_MS = 253_402_300_799_999  # the largest valid time: the end of the year 9999


class SweepState(NamedTuple):
    """The state of a partition's sweeps. `swept_ms` is the time of the last sweep by the store's clock, -1 if
    there was no sweep. `error` is the error of the last sweep, None if it succeeded. `deleted_bytes` and
    `compacted_bytes` are the bytes that retention and compaction have freed since the partition was made.
    `compacted_bytes` is negative if compaction has made segments larger.
    """

    swept_ms: int = NEVER
    error: str | None = None
    deleted_bytes: int = 0
    compacted_bytes: int = 0


class SweepStates:
    """Keeps the states of all partitions' sweeps in memory, and writes them into the file."""

    def __init__(self, files: Files, root: str) -> None:
        self._files, self._root = files, root
        self._lock = Mutex()
        self._held = read_states(files, root)
        self._changed = False

    def __getitem__(self, key: TopicPartitionKey) -> SweepState:
        return self._held.get(key, SweepState())

    def all(self) -> Mapping[TopicPartitionKey, SweepState]:
        return dict(self._held)

    def note(self, key: TopicPartitionKey, change: Callable[[SweepState], SweepState]) -> None:
        """Replace the state of a partition by `change(state)`."""
        with self._lock:
            self._held[key] = change(self[key])
            self._changed = True

    def keep(self, there: Callable[[TopicPartitionKey], bool]) -> None:
        """Forget the partitions for which `there(partition)` is False."""
        with self._lock:
            held = {key: state for key, state in self._held.items() if there(key)}
            self._changed |= len(held) < len(self._held)
            self._held = held

    def save(self, there: Callable[[TopicPartitionKey], bool]) -> None:
        """Forget the partitions for which `there(partition)` is False, and write the states if `note` or
        `keep` has changed them. Raises OSError.
        """
        with self._lock:
            self._held = {key: state for key, state in self._held.items() if there(key)}
            if self._changed:
                SWEEPS.write(self._files, self._root, self._held, durably=False)
                self._changed = False


def _state(held: Mapping[str, Any]) -> SweepState:
    if not isinstance(held, Mapping):
        raise TypeError("a state is an object")
    error = held.get("error")
    numbers = (held.get("swept_ms", NEVER), held.get("deleted_bytes", 0), held.get("compacted_bytes", 0))
    swept, deleted, compacted = map(int, numbers)
    # `compacted` is negative if compaction has made segments larger.
    if not (NEVER <= swept <= _LATEST_MS and 0 <= deleted <= INT64_MAX and abs(compacted) <= INT64_MAX):
        raise ValueError(f"no such time or size: {swept}, {deleted}, {compacted}")
    # The error's text may have a path that is not valid UTF-8.
    text = None if error is None else str(error).encode("utf-8", "backslashreplace").decode()
    return SweepState(swept, text, deleted, compacted)


def _states(held: Any) -> dict[TopicPartitionKey, SweepState]:
    """Return the states from the file's JSON value: {"sweeps": rows}, or only the rows in a file of an older
    segstore.
    """
    rows = held["sweeps"] if isinstance(held, dict) else held
    return {(str(t), int(p)): _state(state) for t, p, state in rows}


SWEEPS = CheckedFile(
    names.SWEEPS,
    "notes of sweeps",
    _states,
    1 << 26,
    OLD_OBJECT,
    lambda held: {"sweeps": [[*key, state._asdict()] for key, state in sorted(held.items())]},
)


def read_states(files: Files, root: str) -> dict[TopicPartitionKey, SweepState]:
    """Return the states; an empty dict if the file is damaged or missing. Raises a transient OSError (EMFILE,
    EIO).
    """
    return SWEEPS.hint(files, root) or {}
