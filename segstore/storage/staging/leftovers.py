"""Finds and removes what dead processes left in the inbox: staged files that nobody sealed, small files that
nobody fetched.

On disk: removes from `.segstore/inbox/`. Threads: the store's writer; `leftovers` any.
"""

from __future__ import annotations

from segstore import names
from segstore.storage.staging.folder import Folder
from segstore.storage.staging.manifest import named


def leftovers(folder: Folder, now_ms: int, retention_ms: int) -> tuple[list[str], list[str]]:
    """Stagers that no sealed manifest names, whose process is gone, and paths of small files: all that was
    not touched for so long. OSError.
    """

    def is_old(path: str) -> bool:
        changed = folder.files.modified(path)
        return 0 < changed < (now_ms - retention_ms) * 1_000_000

    small = [path for path in folder.temporaries() if is_old(path)]
    small += [path for path in map(folder.result, folder.of_kind(names.RESULT)) if is_old(path)]
    stagers = [name for name in folder.stagers() if is_old(folder.stager(name))]
    if stagers:
        sealed = {stager for stager, _ in named(folder)}
        stagers = [s for s in stagers if s not in sealed and not folder.files.is_locked(folder.owner(s))]
    return stagers, small


def sweep(folder: Folder, now_ms: int, retention_ms: int) -> None:
    """Remove them. OSError."""
    stagers, small = leftovers(folder, now_ms, retention_ms)
    for name in stagers:
        folder.remove_stager(name)
    for path in small:
        folder.unlink(path)
