"""Owns `.segstore/inbox/<stem>.result`: why a sealed manifest was refused, for the sealer that waits.

One framed line: {"error", "arguments"}, by the name of an exception of `segstore.errors`.
Threads and processes: the store's writer writes, the sealer reads and removes.
"""

from __future__ import annotations

import contextlib
from typing import Any

from segstore.errors import (
    InvalidRecordError,
    RecordTooLargeError,
    SegstoreError,
    StagedFilesError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from segstore.storage.inbox.layout import Folder
from segstore.storage.meta.framed import frame, unframe
from segstore.storage.meta.small_files import NOT_A_FILE

_KNOWN = {
    kind.__name__: kind
    for kind in (
        InvalidRecordError,
        RecordTooLargeError,
        SegstoreError,
        StagedFilesError,
        StorageError,
        UnknownTopicOrPartitionError,
    )
}


def write_result(folder: Folder, stem: str, error: Exception) -> None:
    """Tell the sealer. What can't be written is not: it finds out by the manifest's absence, or in time."""
    arguments: list[Any] = [str(error)]
    if isinstance(error, OSError) and error.errno is not None:
        arguments = [error.errno, error.strerror, error.filename]
    kind = "StorageError" if isinstance(error, OSError) else type(error).__name__
    held = {"error": kind if kind in _KNOWN else "SegstoreError", "arguments": arguments}
    with contextlib.suppress(OSError):
        folder.files.write_atomic(folder.result(stem), frame(held), sync=False)


def take_result(folder: Folder, stem: str) -> SegstoreError | None:
    """Why it was refused; None where nothing is said. OSError."""
    try:
        held = unframe(folder.files.read_file(folder.result(stem), 1 << 20))
        error = _KNOWN[held["error"]](*held["arguments"])
    except FileNotFoundError:
        return None
    except OSError as damage:
        if damage.errno not in NOT_A_FILE:
            raise
        error = _unknown(damage)
    except (ValueError, KeyError, TypeError) as damage:
        error = _unknown(damage)
    folder.unlink(folder.result(stem))
    return error


def _unknown(damage: Exception) -> SegstoreError:
    return SegstoreError(f"it was refused, and why can't be read: {damage}")
