"""Prepares the logs that an earlier host left open, so that a new host can open them: log files are cut at
the ends in the shared file.

Bytes after a log's end are cut, and segments after the end are removed. Threads: one, before the partition is
opened. No other process writes to the files, except a guest that was stopped (SIGSTOP) and now continues:
this guest writes after the end of a sealed segment, where bytes are not part of the log.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from segstore import names
from segstore.integers import INT64_MAX
from segstore.storage.context import StoreContext
from segstore.storage.log.guest_partition import cut_sealed
from segstore.storage.log.open import Expected
from segstore.storage.segment.segment_files import scan_directory
from segstore.storage.shared.sharing import AbandonedLog

_FILES = names.LOG, names.INDEX, names.TIME_INDEX, names.TXN_INDEX


def expected_of(left: AbandonedLog, before: Expected) -> Expected:
    """Return the expected state of a log that an earlier host has left open: no recovery is needed unless a
    sync has failed. `before` is the expected state according to the checkpoints and `.segstore/ends`.
    """
    point = min(max(before.recovery_point, left.synced), int(left.end.end.next_offset))
    suspect = before.suspect or bool(left.failed)
    return before._replace(clean=not left.failed, suspect=suspect, recovery_point=point)


def cut_to(context: StoreContext, directory: str, end: Any) -> None:
    """Cut the log in this directory at `end` (`seg_shared_end *`). May be repeated. Raises OSError."""
    files = context.files
    base, position = int(end.end.base_offset), int(end.end.position)
    behind = sorted((each for each in scan_directory(files, directory) if each > base), reverse=True)
    for each in behind:
        for suffix in _FILES:
            with suppress(FileNotFoundError):
                files.unlink(os.path.join(directory, names.segment_file(each, suffix)))
    if behind:
        files.sync_dir(directory)
    path = os.path.join(directory, names.segment_file(base, names.LOG))
    context.pool.forget(path)
    with files.open(path, write=True) as handle:
        if files.size(handle) > position:
            files.truncate(handle, position)


def cut_all_sealed(context: StoreContext, directory: str, log: Any, interval: int) -> None:
    """Cut each sealed segment (a segment that was closed to appends) of this log at the end that was recorded
    when it was sealed, because guests may have written bytes after that end [A5]. Then clear the recorded
    ends. `log` is a `seg_shared_log *`. The caller ensures that no guest appends. Raises OSError.
    """
    for sealed in log.sealed:
        if sealed.owner and sealed.generation != INT64_MAX:
            cut_sealed(context, directory, sealed, interval)
        sealed.owner = 0
