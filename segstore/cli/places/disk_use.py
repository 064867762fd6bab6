"""Counts the bytes of a store on disk, by the names and sizes of its files. On disk: the store is only read.
Threads: any.
"""

from __future__ import annotations

import os

from segstore import names
from segstore.files import Files


def partition_bytes(root: str, topic: str, partition: int) -> dict[str, int]:
    """Return the number of bytes in a partition's files, by the suffix of the files (".log", ".index", ...).
    Files that are not segment files count under "".
    """
    files, found = Files(), dict.fromkeys((names.LOG, names.INDEX, names.TIME_INDEX, ""), 0)
    directory = os.path.join(root, names.partition_dir(topic, partition))
    if not files.exists(directory):
        return found
    for name in files.listdir(directory):
        parsed = names.parse_segment_file(name)
        suffix = parsed[1] if parsed else ""
        found[suffix] = found.get(suffix, 0) + _size(files, os.path.join(directory, name))
    return found


def log_bytes(root: str, topic: str, partition: int) -> int:
    """Return the number of bytes in a partition's `.log` files."""
    return partition_bytes(root, topic, partition)[names.LOG]


def _size(files: Files, path: str) -> int:
    try:
        return files.size(path)
    except FileNotFoundError:  # A live writer has removed the file after the directory was listed.
        return 0
