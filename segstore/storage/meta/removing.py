"""Removes directories of stores: a tree, or a store that was made for nothing.

On disk: unlinks; of a symbolic link the link alone. Threads: one for each tree.
"""

from __future__ import annotations

import os

from segstore import names
from segstore.files import Files
from segstore.storage.meta.topics import TopicFiles


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
