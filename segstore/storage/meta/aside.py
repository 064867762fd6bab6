"""Moves a directory, symbolic link, FIFO, socket or device into `.segstore/quarantine` if it has the name of
one of the store's files in the root or in `.segstore`, before the store is opened for writing.

The object is renamed, not removed, and a link is not followed. Threads: one, with the store's lock held.
"""

from __future__ import annotations

import errno
import os

from segstore import names
from segstore.files import Files
from segstore.storage.meta.small_files import NOT_A_FILE, put_aside

_PLACES = (
    names.CLEAN_SHUTDOWN,
    *names.OFFSET_CHECKPOINTS,
    os.path.join(names.OURS, names.ENDS),
    os.path.join(names.OURS, names.CHECKPOINTS),
)


_ALL = (
    *_PLACES,
    *(os.path.join(names.OURS, n) for n in (names.QUOTAS, names.QUOTAS_COPY, names.SWEEPS)),
    *(os.path.join(names.OURS, n) for n in (names.SCRAM, names.SCRAM_COPY)),
    *(os.path.join(names.OURS, n) for n in (names.GROUPS, names.GROUPS_COPY)),
    *(os.path.join(names.OURS, n) for n in (names.ADOPTED, names.ADOPTED_COPY)),
    *(os.path.join(names.OURS, n) for n in (names.PRODUCER_IDS, names.CLUSTER_ID)),
)
_MOST = 1 << 28
_WATCHED = frozenset(
    place + ending
    for place in (*_PLACES, os.path.join(names.OURS, names.FORMAT))
    for ending in ("", names.TEMPORARY)
)


def check_readable(files: Files, root: str) -> set[str]:
    """Read the store's files that belong to no topic, to find transient errors (EMFILE, EIO, EACCES) before
    anything is changed, because such an error must not count as damage. Return the names in the root and in
    `.segstore`, as paths below the root. Raises OSError.
    """
    there = set(files.listdir(root))
    if names.OURS in there:
        there.update([f"{names.OURS}/{name}" for name in files.listdir(names.below(root, names.OURS))])
    for place in sorted(there.intersection(_ALL)):
        try:
            files.read_file(names.below(root, place), _MOST)
        except OSError as error:
            if error.errno not in NOT_A_FILE | {errno.ENOENT}:
                raise
    return there


def free_lock(files: Files, root: str) -> str:
    """If a directory has the lock file's name, move the directory into `.segstore/quarantine`, and return its
    new path; else return "". A lock file is never moved. Raises OSError.
    """
    path = os.path.join(root, names.LOCK)
    if not files.exists(path) or files.is_symlink(path) or not files.is_directory(path):
        return ""
    try:
        return put_aside(files, root, path, directory_only=True)
    except (FileNotFoundError, NotADirectoryError):
        return ""


def set_aside(files: Files, root: str) -> list[tuple[str, str]]:
    """Move each object that is no regular file, and has the name of one of the store's files or temporary
    files, into `.segstore/quarantine`. Return (old path, new path) of each object. Raises OSError.
    """
    odd = set(files.irregular(root))
    taken = set[str]()
    for place in (names.OURS, f"{names.OURS}/{names.TOPICS}"):
        directory = names.below(root, place)
        if place in odd and not files.is_symlink(directory):
            for name in files.irregular(directory):
                odd.add(f"{place}/{name}")
                if name.endswith(names.TEMPORARY):
                    taken.add(f"{place}/{name}")
    paths = [names.below(root, place) for place in sorted(taken | (odd & _WATCHED))]
    return [(path, put_aside(files, root, path)) for path in paths]
