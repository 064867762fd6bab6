"""Which directories of a store must be its own, whose names its files may have, and who may read what
is made in it.

On disk: replaces files that have names elsewhere by copies; else reads only.
What a symbolic link leads to is another's. Files are opened without following one (`Files.open`); here are
the directories on the way to them. The root itself may be a link: its user named it.
Threads: any; functions without state.
"""

from __future__ import annotations

import os

from segstore import names
from segstore.files import FILE_MODE, Files
from segstore.storage.meta.topics import TopicFiles

MOST_MODE = 0o664
"""That a new file can have: a group may read and write, others read."""
_INBOX = (names.OURS, names.INBOX)
PLACES = (
    (names.OURS,),
    (names.OURS, names.TOPICS),
    (names.OURS, names.QUARANTINE),
    _INBOX,
    (*_INBOX, names.SEALED),
)


def check_places(files: Files, root: str) -> None:
    """Directories of ours in the store at `root`. OSError (ELOOP) where one is a symbolic link."""
    for place in PLACES:
        files.check_directory(os.path.join(root, *place))


def kept_mode(files: Files, root: str) -> int:
    """Of files that are made in this store: what was asked for when it was made, as `.segstore` has it."""
    ours = os.path.join(root, names.OURS)
    return files.mode(ours) & MOST_MODE | FILE_MODE if files.exists(ours) else FILE_MODE


# --- removing ----------------------------------------------------------------------------------

# Removes directories of stores: a tree, or a store that was made for nothing.
#
# On disk: unlinks; of a symbolic link the link alone. Threads: one for each tree.


def remove_tree(files: Files, directory: str) -> None:
    """Remove a directory with all that is in it. OSError: a part is left."""
    empty_tree(files, directory)
    files.rmdir(directory)


def empty_tree(files: Files, directory: str, but: str = "") -> None:
    """Remove all that is in a directory, `but` the file of that name. OSError: a part is left."""
    folders = set(files.directories(directory))
    for name in sorted(set(files.listdir(directory)) - {but}):
        path = os.path.join(directory, name)
        if name in folders and not files.is_symlink(path):
            remove_tree(files, path)
        else:
            files.unlink(path)


def remove_unused(files: Files, root: str) -> bool:
    """Remove what is in the directory of a store without topics: False where there are some. BlockingIOError
    where somebody has it open; OSError: a part is left, which is a store without topics too.
    """
    path = os.path.join(root, names.LOCK)
    with files.lock(path):
        if TopicFiles(files, root).load()[0]:
            return False
        empty_tree(files, root, but=names.LOCK)
        files.unlink(path)
    return True
