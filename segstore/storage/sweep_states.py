"""Owns `.segstore/sweeps.json`: when each partition was swept last, and what went wrong there.

Other processes read it (`segstore topics`, `segstore stats`). It is a note, never evidence: written whole,
not synced, and one that can't be read counts as none.
Threads: any; one lock.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from segstore import names
from segstore.files import Files
from segstore.storage.root_checkpoints import TopicPartitionKey

_MOST = 1 << 26
NEVER = -1
_LATEST_MS = 253_402_300_799_999  # the year 9999


class SweepState(NamedTuple):
    """`swept_ms`: by the store's clock, -1 for never; `error`: why the last sweep failed, None if it did
    not; `deleted_bytes`, `compacted_bytes`: what sweeps have freed since the partition was made.
    """

    swept_ms: int = NEVER
    error: str | None = None
    deleted_bytes: int = 0
    compacted_bytes: int = 0


class SweepStates:
    """What is known of each partition's sweeps."""

    def __init__(self, files: Files, root: str) -> None:
        self._files, self._path = files, os.path.join(root, names.OURS, names.SWEEPS)
        self._lock = threading.Lock()
        self._held = read_states(files, root)
        self._changed = False

    def __getitem__(self, key: TopicPartitionKey) -> SweepState:
        return self._held.get(key, SweepState())

    def all(self) -> Mapping[TopicPartitionKey, SweepState]:
        return dict(self._held)

    def note(self, key: TopicPartitionKey, change: Callable[[SweepState], SweepState]) -> None:
        """Change what is known of a partition."""
        with self._lock:
            self._held[key] = change(self[key])
            self._changed = True

    def keep(self, there: Callable[[TopicPartitionKey], bool]) -> None:
        """Forget those that are not `there`."""
        with self._lock:
            held = {key: state for key, state in self._held.items() if there(key)}
            self._changed |= len(held) < len(self._held)
            self._held = held

    def save(self, there: Callable[[TopicPartitionKey], bool]) -> None:
        """Write what changed, without partitions that are not `there`. OSError."""
        with self._lock:
            self._held = {key: state for key, state in self._held.items() if there(key)}
            if self._changed:
                held = [[*key, state._asdict()] for key, state in sorted(self._held.items())]
                self._files.write_atomic(self._path, json.dumps(held).encode() + b"\n", sync=False)
                self._changed = False


def read_states(files: Files, root: str) -> dict[TopicPartitionKey, SweepState]:
    """What the file says; nothing where it is damaged or not there."""
    path = os.path.join(root, names.OURS, names.SWEEPS)
    try:
        return {(str(t), int(p)): _state(held) for t, p, held in json.loads(files.read_file(path, _MOST))}
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return {}


def _state(held: Mapping[str, Any]) -> SweepState:
    if not isinstance(held, Mapping):
        raise TypeError("a state is an object")
    error = held.get("error")
    numbers = (held.get("swept_ms", NEVER), held.get("deleted_bytes", 0), held.get("compacted_bytes", 0))
    swept, deleted, compacted = map(int, numbers)
    if not (NEVER <= swept <= _LATEST_MS and 0 <= deleted < 1 << 63 and 0 <= compacted < 1 << 63):
        raise ValueError("no such time or size")
    # A path in it may be no text.
    text = None if error is None else str(error).encode("utf-8", "backslashreplace").decode()
    return SweepState(swept, text, deleted, compacted)
