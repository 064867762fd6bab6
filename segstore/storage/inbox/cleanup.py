"""Finds and removes what dead processes left in the inbox: staged files that nobody sealed, small files that
nobody fetched; and what was refused long ago.

On disk: removes from `.segstore/inbox/` and `.segstore/quarantine/`.
Threads: the store's writer; `leftovers` any.
"""

from __future__ import annotations

import os
from functools import partial

from segstore import names
from segstore.errors import first_of
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import named
from segstore.storage.inbox.refusals import refused, remove_refused


def leftovers(folder: Folder, now_ms: int, retention_ms: int) -> tuple[list[str], list[str]]:
    """Stagers that no sealed manifest names, whose process is gone, and paths of small files: all that was
    not touched for so long. OSError.
    """

    def is_old(path: str) -> bool:
        return _is_old(folder, path, now_ms, retention_ms)

    small = [path for path in folder.temporaries() if is_old(path)]
    small += [path for path in map(folder.result, folder.of_kind(names.RESULT)) if is_old(path)]
    stagers = [name for name in folder.stagers() if is_old(folder.stager(name))]
    if stagers:
        sealed = {stager for stager, _ in named(folder)}
        stagers = [s for s in stagers if s not in sealed and not folder.lives(s)]
    return stagers, small


def _is_old(folder: Folder, path: str, now_ms: int, retention_ms: int) -> bool:
    changed = folder.files.modified(path)
    return 0 < changed < (now_ms - retention_ms) * 1_000_000


def sweep(folder: Folder, now_ms: int, retention_ms: int) -> None:
    """Remove them, and what was refused so long ago. OSError: what could be removed is."""
    stagers, small = leftovers(folder, now_ms, retention_ms)
    removals = [partial(folder.remove_stager, name) for name in stagers]
    removals += [partial(folder.unlink, path) for path in small]
    removals += [
        partial(remove_refused, folder, stem)
        for stem in refused(folder)
        if _is_old(folder, os.path.join(folder.quarantine, stem), now_ms, retention_ms)
    ]
    errors = []
    for remove in removals:
        try:
            remove()
        except OSError as error:
            errors.append(error)
    if errors:
        raise first_of(errors)
