"""Removes old files that nobody needs any more from `.segstore/inbox/` and `.segstore/quarantine/`.

These are the unsealed staged files of dead processes, temporary files, results that no sealer has read, and
refused manifests. Threads: the inbox's thread; any thread may call `leftovers`.
"""

from __future__ import annotations

import os
from functools import partial

from segstore import names
from segstore.errors import first_of
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import named

# --- refusals ----------------------------------------------------------------------------------

# A refused manifest is kept in `.segstore/quarantine/<stem>/`, with its staged files, for
# `inbox.leftovers.retention.ms`. If the same id is refused again, only the last manifest is kept, so that a
# job that seals bad records again and again does not fill the disk.


def put_aside(folder: Folder, stem: str, path: str) -> None:
    """Move a file of the inbox to the quarantine directory of `stem`. Raises OSError."""
    files, directory = folder.files, os.path.join(folder.quarantine, stem)
    if not files.exists(path):
        return
    for made in (folder.quarantine, directory):
        files.check_directory(made)
        files.ensure_directory(made)
    name = os.path.relpath(path, folder.path).replace(os.sep, "-")
    files.rename(path, os.path.join(directory, name))
    files.sync_dir(directory)


def refused(folder: Folder) -> list[str]:
    """Return the stems of the refused manifests in the quarantine. Raises OSError."""
    listed = folder.files.listdir(folder.quarantine) if folder.files.exists(folder.quarantine) else []
    return sorted(name for name in listed if names.parse_of_manifest(name + names.MANIFEST))


def remove_refused(folder: Folder, stem: str) -> None:
    """Remove the directory of a refused manifest. Raises OSError."""
    files, directory = folder.files, os.path.join(folder.quarantine, stem)
    if not files.is_symlink(directory):
        for name in files.listdir(directory):
            folder.unlink(os.path.join(directory, name))
        files.rmdir(directory)


def remove_earlier(folder: Folder, stem: str) -> None:
    """Remove all other refused manifests with the id of the manifest `stem`. Raises OSError."""
    digest = stem.split("-")[1]
    for other in refused(folder):
        if other != stem and other.split("-")[1] == digest:
            remove_refused(folder, other)


# --- cleanup ------------------------------------------------------------


def leftovers(folder: Folder, now_ms: int, retention_ms: int) -> tuple[list[str], list[str]]:
    """Return (names of stagers, paths of temporary files and of results): those that were not changed in the
    `retention_ms` before `now_ms`. A stager is left out if it `lives`, or if one of its files is still needed
    (`manifest.named`). Raises OSError.
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
    """Remove the `leftovers`, and refused manifests older than `retention_ms`. All removals are tried, and
    then the first OSError is raised.
    """
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
