"""WebHDFS' JSON: file statuses, errors under their Java names. Nothing on disk; functions without state.

Hadoop: JsonUtilClient reads what is written here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from segstore.errors import InvalidArgumentError, SegstoreError
from segstore.filetree import Directory, File
from segstore.spark.checkpointing.http_server import Response

BLOCK_BYTES = 128 << 20
OWNER = "segstore"

SERVER_DEFAULTS = {
    "FsServerDefaults": {
        "blockSize": BLOCK_BYTES,
        "bytesPerChecksum": 512,
        "writePacketSize": 65536,
        "replication": 1,
        "fileBufferSize": 65536,
        "encryptDataTransfer": False,
        "trashInterval": 0,
        "checksumType": 2,  # CRC32C
        "keyProviderUri": "",
        "defaultStoragePolicyId": 7,
    }
}

_IO = "java.io.IOException"
_JAVA: list[tuple[type[BaseException], int, str]] = [
    (FileNotFoundError, 404, "java.io.FileNotFoundException"),
    (FileExistsError, 403, "org.apache.hadoop.fs.FileAlreadyExistsException"),
    (NotADirectoryError, 403, "org.apache.hadoop.fs.ParentNotDirectoryException"),
    (IsADirectoryError, 403, "org.apache.hadoop.fs.FileAlreadyExistsException"),
    (NotImplementedError, 400, "java.lang.UnsupportedOperationException"),
    (PermissionError, 403, "org.apache.hadoop.security.AccessControlException"),
    (InvalidArgumentError, 400, "java.lang.IllegalArgumentException"),
    (OSError, 403, _IO),
    (SegstoreError, 403, _IO),
]


def answer(told: Mapping[str, Any], status: int = 200) -> Response:
    data = json.dumps(told, ensure_ascii=False).encode()
    return Response(status, [data], len(data))


def boolean(value: bool) -> Response:
    return answer({"boolean": value})


def failure(error: BaseException) -> Response:
    """The RemoteException that the client throws again."""
    status, java = next((status, java) for kind, status, java in _JAVA if isinstance(error, kind))
    told = {"exception": java.rpartition(".")[2], "javaClassName": java, "message": _text(error)}
    return answer({"RemoteException": told}, status)


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def status_of(node: File | Directory, name: str = "", children: int = 0) -> dict[str, Any]:
    """A FileStatus; `name` is the last part of the path, where it is listed."""
    is_file = isinstance(node, File)
    return {
        "accessTime": 0,
        "blockSize": BLOCK_BYTES if is_file else 0,
        "childrenNum": children,
        "fileId": node.id if isinstance(node, File) else 0,
        "group": OWNER,
        "length": node.size if isinstance(node, File) else 0,
        "modificationTime": node.time,
        "owner": OWNER,
        "pathSuffix": name,
        "permission": "644" if is_file else "755",
        "replication": 1 if is_file else 0,
        "storagePolicy": 0,
        "type": "FILE" if is_file else "DIRECTORY",
    }


def statuses(entries: Iterable[tuple[str, File | Directory]]) -> dict[str, Any]:
    return {"FileStatuses": {"FileStatus": [status_of(node, name) for name, node in entries]}}


def locations(file: File, start: int, length: int, port: int) -> dict[str, Any]:
    """One block for each BLOCK_BYTES of a range, all of them here."""
    first = start - start % BLOCK_BYTES
    blocks = [
        {
            "cachedHosts": [],
            "corrupt": False,
            "hosts": ["localhost"],
            "length": min(BLOCK_BYTES, file.size - at),
            "names": [f"localhost:{port}"],
            "offset": at,
            "storageTypes": ["DISK"],
            "topologyPaths": ["/default-rack/localhost"],
        }
        for at in range(first, min(file.size, start + length), BLOCK_BYTES)
    ]
    return {"BlockLocations": {"BlockLocation": blocks}}


def summary(nodes: Iterable[File | Directory]) -> dict[str, Any]:
    held = list(nodes)
    files = [node for node in held if isinstance(node, File)]
    size = sum(file.size for file in files)
    return {
        "ContentSummary": {
            "directoryCount": len(held) - len(files),
            "fileCount": len(files),
            "length": size,
            "quota": -1,
            "spaceConsumed": size,
            "spaceQuota": -1,
        }
    }
