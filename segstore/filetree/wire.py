"""The bytes of the two kinds of record. Nothing on disk; functions without state.

Key "f" + file id int64 + chunk number int32 (big-endian): a chunk's bytes. Key "p" + path in UTF-8: JSON,
{"id", "size", "chunk", "time"} of a file, {"time"} of a directory. A tombstone of either: it is gone.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from segstore.filetree.nodes import Directory, File, Node
from segstore.storage.meta.small_files import parse_json

_CHUNK = struct.Struct(">cqi")
CHUNK_TAG, PATH_TAG = b"f", b"p"
CHUNK_KEY_BYTES = _CHUNK.size


def chunk_key(file_id: int, number: int) -> bytes:
    return _CHUNK.pack(CHUNK_TAG, file_id, number)


def path_key(path: str) -> bytes:
    return PATH_TAG + path.encode()


def chunk_of(key: bytes) -> tuple[int, int]:
    """File id and chunk number. ValueError for what is no chunk's key."""
    if len(key) != CHUNK_KEY_BYTES or key[:1] != CHUNK_TAG:
        raise ValueError(f"{key!r:.80} is no key of a file tree")
    return _CHUNK.unpack(key)[1:]


def path_value(node: Node) -> bytes:
    told: dict[str, int] = {"time": node.time}
    if isinstance(node, File):
        told = {"id": node.id, "size": node.size, "chunk": node.chunk_bytes, **told}
    return json.dumps(told, separators=(",", ":")).encode()


def parse_path(key: bytes, value: bytes) -> tuple[str, Node]:
    """The path, and what is there: a file's chunks are not known yet (-1). ValueError."""
    try:
        told: Any = parse_json(value)
        path, time = key[1:].decode(), int(told["time"])
        if not path.startswith("/"):
            raise ValueError("no path")
        if "id" not in told:
            return path, Directory(time)
        size, chunk = int(told["size"]), int(told["chunk"])
        if size < 0 or chunk <= 0:
            raise ValueError("impossible size")
        return path, File(int(told["id"]), size, time, chunk, ())
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{key!r:.80} -> {value!r:.80} is no record of a file tree: {error}") from None


def chunk_count(file: File) -> int:
    """How many chunks its size makes."""
    return -(-file.size // file.chunk_bytes)
