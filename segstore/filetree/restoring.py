"""Writes a directory of the tree, as it is or was, as plain files. On disk: files below a target directory
that was empty or not there. Threads: any.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from segstore.files import Files
from segstore.filetree.nodes import Directory, File, clean_path, error
from segstore.filetree.reading import read_file
from segstore.filetree.snapshot import Snapshot
from segstore.storage.store.partition_log import PartitionLog


class Restored(NamedTuple):
    """What was written."""

    files: int
    directories: int
    bytes: int


def restore(log: PartitionLog, held: Snapshot, path: str, target: str | os.PathLike[str]) -> Restored:
    """Write what is at `path` of a snapshot into the directory `target`, synced when it returns.

    FileNotFoundError: nothing is at `path`; FileExistsError: `target` is there and not empty; OSError;
    CorruptRecordError. What was written by then stays.
    """
    path, root, files = clean_path(path), os.path.abspath(os.fspath(target)), log._context.files
    nodes = list(held.nodes.walk(path))
    if not nodes:
        raise error(errno.ENOENT, path)
    if files.exists(root) and files.listdir(root):
        raise error(errno.EEXIST, root, "is not empty")
    files.ensure_directory(root)
    count = size = 0
    for at, node in nodes:
        below = at[len(path) :].strip("/")
        if isinstance(node, File):
            size += _write(files, log, at, node, os.path.join(root, below or at.rpartition("/")[2]))
            count += 1
        elif below:
            files.mkdir(os.path.join(root, below))
    directories = [at[len(path) :].strip("/") for at, node in nodes if isinstance(node, Directory)]
    for below in reversed(directories):
        files.sync_dir(os.path.join(root, below))
    files.sync_dir(os.path.dirname(root))
    return Restored(count, len(directories), size)


def _write(files: Files, log: PartitionLog, path: str, file: File, target: str) -> int:
    with files.open_anew(target) as handle:
        at = 0
        for part in read_file(log, path, file):
            files.pwrite(handle, part, at)
            at += len(part)
        files.sync(handle)
    return at
