"""Directories and files kept as records of one compacted topic: what Spark's checkpoints are served from.

On disk: the topic, through the engine. Two kinds of record: (file id, chunk number) -> bytes, and path ->
file id, size and time. A rename is two small records in one batch, whatever the file's size; a delete is
tombstones; compaction keeps every chunk of what is live. Threads: any.
"""

from segstore.client.filetree.history import Change, history
from segstore.client.filetree.loading import Snapshot, floor, snapshot
from segstore.client.filetree.nodes import Directory, File, clean_path
from segstore.client.filetree.reading import read_file
from segstore.client.filetree.restoring import Restored, restore
from segstore.client.filetree.topic import CHUNK_BYTES, SETTINGS, files_log
from segstore.client.filetree.tree import FileTree
from segstore.client.filetree.trees import file_tree
from segstore.client.filetree.upload import Upload

__all__ = [
    "CHUNK_BYTES",
    "SETTINGS",
    "Change",
    "Directory",
    "File",
    "FileTree",
    "Restored",
    "Snapshot",
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
