"""Checks that a store's directories are no symbolic links, finds the store's file mode, and removes trees.

The target of a symbolic link may belong to another program. `Files.open` follows no link to a file, and this
module checks the directories in which the files are. The root itself may be a link, because the user has
named the root. If a tree with a symbolic link is removed, the link is removed, and its target stays. Threads:
any, because the functions have no state, but only one thread may remove a tree.
"""

from __future__ import annotations

import errno
import os

from segstore import names
from segstore.errors import StorageError
from segstore.files import FILE_MODE, Files
from segstore.storage.meta.store_format import has_living_members
from segstore.storage.meta.topic_info import CLUSTER_METADATA
from segstore.storage.meta.topics import TopicFiles

MOST_MODE = 0o664
"""The largest mode of a new file: a group may read and write, other users read."""
INBOX = f"{names.OURS}/{names.INBOX}"
SEALED = f"{INBOX}/{names.SEALED}"
PLACES = (
    names.OURS,
    f"{names.OURS}/{names.TOPICS}",
    f"{names.OURS}/{names.QUARANTINE}",
    INBOX,
    SEALED,
)
"""Paths, below the root, of segstore's directories."""
NEITHER = "neither a store nor a broker's log directory: is the path right?"
_OF_A_STORE = frozenset({names.OURS, names.META_PROPERTIES, names.CLEAN_SHUTDOWN, *names.OFFSET_CHECKPOINTS})
"""Names in the root that only a store or a broker's directory has, even if it has no topics."""


def is_store(files: Files, root: str, held: set[str]) -> bool:
    """Return whether the directory `root`, whose entries have the names `held`, is a store or a broker's log
    directory. Raises OSError.
    """
    return bool(held & _OF_A_STORE) or any(
        names.parse_partition_dir(name) is not None and _is_partition(files, names.below(root, name))
        for name in held
    )


def strangers(files: Files, root: str, held: set[str]) -> list[str]:
    """Return the names of the files that are not hidden, sorted, if the directory is no store; an empty list
    if it is a store. `held` are the names of all files in the directory. Raises OSError.
    """
    shown = sorted(name for name in held if not name.startswith(".") and name != "lost+found")
    return [] if not shown or is_store(files, root, held) else shown


def check_holds_store(files: Files, root: str) -> None:
    """Raise StorageError if a directory is no store, and has files that are not hidden. Raises OSError."""
    if strangers(files, root, set(files.listdir(root))):
        raise StorageError(errno.EINVAL, NEITHER, root)


def _is_partition(files: Files, directory: str) -> bool:
    """Return whether a directory has a partition's metadata or log."""
    try:
        if files.is_symlink(directory):
            return False
        held = files.listdir(directory)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    return names.PARTITION_METADATA in held or names.has_log(held)


def check_places(files: Files, root: str) -> set[str]:
    """Return those of PLACES that exist in the store at `root`. Raises OSError (ELOOP) if one of these
    directories is a symbolic link.
    """
    base, there = names.below(root, ""), set[str]()
    for place in PLACES:
        if files.check_directory(base + place):
            there.add(place)
    return there


def kept_mode(files: Files, root: str, otherwise: int = FILE_MODE) -> int:
    """Return the mode of new files in this store: the mode of the directory `.segstore`, without the bits
    that MOST_MODE lacks, but with the bits of FILE_MODE. Return `otherwise` if that directory does not exist.
    """
    try:
        return files.mode(names.below(root, names.OURS)) & MOST_MODE | FILE_MODE
    except FileNotFoundError:
        return otherwise


# --- removing ----------------------------------------------------------------------------------


def remove_tree(files: Files, directory: str) -> None:
    """Remove a directory and its content. If this raises OSError, a part of the content stays."""
    empty_tree(files, directory)
    files.rmdir(directory)


def empty_tree(files: Files, directory: str, but: str = "") -> None:
    """Remove the content of a directory, except the file named `but`. If this raises OSError, a part of the
    content stays.
    """
    folders = set(files.directories(directory))
    for name in sorted(set(files.listdir(directory)) - {but}):
        path = os.path.join(directory, name)
        if name in folders and not files.is_symlink(path):
            remove_tree(files, path)
        else:
            files.unlink(path)


def remove_begun(files: Files, root: str, *, made: bool) -> None:
    """Remove the files that a failed open of a new store has made. Files of other programs stay. The lock
    file, whose lock the caller holds, is removed last, and then the directory, if the open has `made` it. If
    this raises OSError, some of the files stay.
    """
    remove_logs_begun(files, root)
    for name in [*sorted(_OF_A_STORE.intersection(files.listdir(root))), names.LOCK]:
        # The files in `_OF_A_STORE` are removed before the lock file, so that the directory does not count as
        # a store if a later step fails.
        files.unlink(names.below(root, name))
    if made and not files.listdir(root):
        files.rmdir(root)


def remove_logs_begun(files: Files, root: str) -> None:
    """Remove the cluster metadata log and `.segstore`, which a failed open has made. Raises OSError."""
    for name in (names.partition_dir(CLUSTER_METADATA, 0), names.OURS):
        path = names.below(root, name)
        if files.exists(path):
            remove_tree(files, path)


def remove_unused(files: Files, root: str) -> bool:
    """Remove the content of a store without topics, and return True. Return False, and remove nothing, if the
    store has topics. Raises BlockingIOError if the store is open for writing. If this raises another OSError,
    some of the content stays; it is still a store without topics.
    """
    path = os.path.join(root, names.LOCK)
    with files.lock(path):
        if has_living_members(files, root):
            raise BlockingIOError(errno.EAGAIN, "The store is shared", root)
        if TopicFiles(files, root).load()[0]:
            return False
        empty_tree(files, root, but=names.LOCK)
        files.unlink(path)
    return True
