"""`meta.properties`: the cluster id of the store that a directory belongs to, and the broker id and directory
id of the directory (Kafka: MetaProperties, version 1).

On disk is one small file in the format of Java properties. This file is written once and never changed.
Threads: any.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files

_LINE = re.compile(r"\s*([A-Za-z.]+)\s*[=:]\s*(.*?)\s*")
_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_NODE = re.compile(r"[0-9]{1,9}")
_LONGEST = 4096  # bytes


class MetaProperties(NamedTuple):
    """The content of `meta.properties`. `cluster_id` and `directory_id` are 22 characters of base64url."""

    cluster_id: str
    node_id: int
    directory_id: str


def write_properties(files: Files, root: str, properties: MetaProperties) -> None:
    """Write `meta.properties`, durably. Raises OSError."""
    lines = [
        "version=1",
        f"cluster.id={properties.cluster_id}",
        f"node.id={properties.node_id}",
        f"directory.id={properties.directory_id}",
    ]
    files.write_atomic(_path(root), "".join(line + "\n" for line in lines).encode())


def read_properties(files: Files, root: str) -> MetaProperties | None:
    """Read `meta.properties`. Return None if the file is missing. Raises CorruptCheckpointError, OSError."""
    path = _path(root)
    try:
        data = files.read_file(path, _LONGEST)
    except FileNotFoundError:
        return None
    try:
        return _parsed(data.decode("ascii"))
    except (ValueError, KeyError) as error:
        raise CorruptCheckpointError(path, 0, f"no meta.properties of version 1: {error}") from error


def _parsed(text: str) -> MetaProperties:
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] not in "#!"]
    matches = [_LINE.fullmatch(line) for line in lines]
    if None in matches:
        raise ValueError(f"line {lines[matches.index(None)]!r}")
    held = {match[1]: match[2] for match in matches if match is not None}
    if held["version"] != "1":
        raise ValueError(f"version {held['version']}")
    for name in ("cluster.id", "directory.id"):
        if not _ID.fullmatch(held[name]):
            raise ValueError(f"{name}={held[name]}")
    if not _NODE.fullmatch(held["node.id"]):
        raise ValueError(f"node.id={held['node.id']}")
    return MetaProperties(held["cluster.id"], int(held["node.id"]), held["directory.id"])


def _path(root: str) -> str:
    return os.path.join(root, names.META_PROPERTIES)
