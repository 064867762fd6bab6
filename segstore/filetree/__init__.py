"""Directories and files as records of one compacted topic, which stores Spark's checkpoints.

On disk is the topic, which the engine writes. There are two kinds of record: (file id, chunk number) ->
bytes, and path -> file id, size and time. A rename writes two small records in one batch, whatever the file's
size; a delete writes tombstones; compaction keeps every chunk of a live file. Threads: any.
"""

from segstore.filetree.history import TreeChange, history
from segstore.filetree.nodes import Directory, File, clean_path
from segstore.filetree.snapshot import RestoredTree, TreeSnapshot, floor, read_file, restore, snapshot
from segstore.filetree.topic import CHUNK_BYTES, SETTINGS, files_log
from segstore.filetree.tree import FileTree, Upload, file_tree

__all__ = [
    "CHUNK_BYTES",
    "SETTINGS",
    "Directory",
    "File",
    "FileTree",
    "RestoredTree",
    "TreeChange",
    "TreeSnapshot",
    "Upload",
    "clean_path",
    "file_tree",
    "files_log",
    "floor",
    "history",
    "read_file",
    "restore",
    "snapshot",
]
