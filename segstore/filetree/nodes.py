"""`Nodes`: the files and directories of a tree, in memory, and the wire format of their records.

Threads: a `Nodes` belongs to one thread at a time; the nodes in it never change.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from segstore.errors import InvalidArgumentError
from segstore.storage.meta.framed import parse_json

ROOT = "/"


class File(NamedTuple):
    """A file. `chunks` are the offsets of its chunks' records, in order; the offset is -1 if the log lacks
    the chunk. Each chunk has `chunk_bytes` bytes, the last chunk perhaps fewer. `time` is ms since the epoch.
    """

    id: int
    size: int
    time: int
    chunk_bytes: int
    chunks: tuple[int, ...]


class Directory(NamedTuple):
    """A directory; `time` is its creation time, in ms since the epoch."""

    time: int


Node = File | Directory


def clean_path(path: str) -> str:
    """Return "/a/b" for "a/b/" or "//a/b". Raises InvalidArgumentError for a path that can't name a file."""
    parts = [part for part in path.split("/") if part]
    bad = next((part for part in parts if part in (".", "..") or "\0" in part), None)
    try:
        path.encode()
    except UnicodeEncodeError:
        bad = path
    if bad is not None:
        raise InvalidArgumentError(f"path {path!r:.200}: {bad!r:.80} can't be in it")
    return ROOT + "/".join(parts)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def joined(path: str, name: str) -> str:
    return path.rstrip("/") + ROOT + name


def lies_below(path: str, directory: str) -> bool:
    """Return whether the path is in the directory, at any depth."""
    return path.startswith(directory if directory == ROOT else directory + "/") and path != directory


def error(number: int, path: str, text: str = "") -> OSError:
    """Return the OSError that a file system call would raise for this errno."""
    return OSError(number, text or os.strerror(number), path)


class Nodes:
    """The nodes of a tree by their paths. The root always exists."""

    def __init__(self) -> None:
        self._at: dict[str, Node] = {ROOT: Directory(0)}
        self._names: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._at)

    def get(self, path: str) -> Node | None:
        return self._at.get(path)

    def put(self, path: str, node: Node) -> None:
        self._at[path] = node
        if path != ROOT:
            self._names.setdefault(parent_of(path), set()).add(name_of(path))

    def remove(self, path: str) -> Node | None:
        """Remove the node at the path and return it; None if there is no node, or the path is the root."""
        node = None if path == ROOT else self._at.pop(path, None)
        if node is not None:
            self._names[parent_of(path)].discard(name_of(path))
        return node

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in the order of their bytes, like HDFS."""
        return sorted(self._names.get(path, ()), key=str.encode)

    def walk(self, path: str) -> Iterator[tuple[str, Node]]:
        """Yield (path, node) of the node at `path` and all nodes below it, a directory before its contents,
        and the contents in the order of `names`.
        """
        node = self._at.get(path)
        if node is not None:
            yield path, node
            if isinstance(node, Directory):
                for name in self.names(path):
                    yield from self.walk(joined(path, name))

    def files(self) -> Iterator[File]:
        return (node for node in self._at.values() if isinstance(node, File))


# --- wire --------------------------------------------------------------------------------------

# The bytes of the two kinds of record.
#
# A record with key "f" + file id int64 + chunk number int32 (big-endian) has the chunk's bytes. A record with
# key "p" + path in UTF-8 has JSON: {"id", "size", "chunk", "time"} for a file, {"time"} for a directory. A
# tombstone deletes a chunk or a path.

_CHUNK = struct.Struct(">cqi")
CHUNK_TAG, PATH_TAG = b"f", b"p"
CHUNK_KEY_BYTES = _CHUNK.size


def chunk_key(file_id: int, number: int) -> bytes:
    return _CHUNK.pack(CHUNK_TAG, file_id, number)


def path_key(path: str) -> bytes:
    return PATH_TAG + path.encode()


def chunk_of(key: bytes) -> tuple[int, int]:
    """Return (file id, chunk number) of a chunk's key. Raises ValueError if the key is not a chunk's."""
    if len(key) != CHUNK_KEY_BYTES or key[:1] != CHUNK_TAG:
        raise ValueError(f"{key!r:.80} is no key of a file tree")
    return _CHUNK.unpack(key)[1:]


def path_value(node: Node) -> bytes:
    fields: dict[str, int] = {"time": node.time}
    if isinstance(node, File):
        fields = {"id": node.id, "size": node.size, "chunk": node.chunk_bytes, **fields}
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_path(key: bytes, value: bytes) -> tuple[str, Node]:
    """Return (path, node) of a path's record; the `chunks` of a file are empty. Raises ValueError if the
    record is not a path's.
    """
    try:
        fields: Any = parse_json(value)
        path, time = key[1:].decode(), int(fields["time"])
        if not path.startswith("/"):
            raise ValueError("no path")
        if "id" not in fields:
            return path, Directory(time)
        size, chunk = int(fields["size"]), int(fields["chunk"])
        if size < 0 or chunk <= 0:
            raise ValueError("impossible size")
        return path, File(int(fields["id"]), size, time, chunk, ())
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{key!r:.80} -> {value!r:.80} is no record of a file tree: {error}") from None


def chunk_count(file: File) -> int:
    """Return the number of chunks that a file of this size has."""
    return -(-file.size // file.chunk_bytes)
