"""Moves objects that are no regular files out of the places of a store's small files, before the store is
opened for writing.

A directory, symbolic link, FIFO or the like is renamed into the quarantine, never followed or removed.
Threads: one, with the store's lock held.
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
    """Read every small file that belongs to no topic. A transient error (EMFILE, EIO, EACCES) is raised
    before anything is changed, so that no file counts as damaged because of such an error. Returns the names
    in the root and in `.segstore`, as paths below the root. While the lock is held, no other process makes a
    small file, so the names stay right. Raises OSError.
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
    """Move a directory that has the lock file's name into the quarantine, for a repair; return its path
    there, "" if there is none. A lock file that another process makes there in between stays. Raises OSError.
    """
    path = os.path.join(root, names.LOCK)
    if not files.exists(path) or files.is_symlink(path) or not files.is_directory(path):
        return ""
    try:
        return put_aside(files, root, path, directory_only=True)
    except (FileNotFoundError, NotADirectoryError):
        return ""


def set_aside(files: Files, root: str) -> list[tuple[str, str]]:
    """Move each object that is no regular file, but has the name of a small file or of its temporary file, to
    the quarantine; return pairs of old path and new path. Raises OSError.
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
