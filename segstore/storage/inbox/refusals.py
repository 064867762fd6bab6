"""Owns `.segstore/quarantine/<stem>/`: manifests that were refused, with their files.

Kept for as long as left-overs are, and of one id the last alone: a job that is tried again and again with
what can't be adopted does not fill the disk.
Threads: one, the inbox's.
"""

from __future__ import annotations

import os

from segstore import names
from segstore.storage.inbox.layout import Folder


def put_aside(folder: Folder, stem: str, path: str) -> None:
    """Move a file of the inbox, whatever it is, to what was refused of `stem`. OSError."""
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
    """Stems of what was refused. OSError."""
    found = folder.files.listdir(folder.quarantine) if folder.files.exists(folder.quarantine) else []
    return sorted(name for name in found if names.parse_of_manifest(name + names.MANIFEST))


def remove_refused(folder: Folder, stem: str) -> None:
    """OSError."""
    files, directory = folder.files, os.path.join(folder.quarantine, stem)
    if not files.is_symlink(directory):
        for name in files.listdir(directory):
            folder.unlink(os.path.join(directory, name))
        files.rmdir(directory)


def remove_earlier(folder: Folder, stem: str) -> None:
    """What was refused of the same id before. OSError."""
    digest = stem.split("-")[1]
    for other in refused(folder):
        if other != stem and other.split("-")[1] == digest:
            remove_refused(folder, other)
