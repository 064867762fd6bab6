"""`WebHdfs`: serves the operations of WebHDFS from a file tree. On disk: through the tree.

In contrast to HDFS, a RENAME without options overwrites a file of a query's state (see `FileRole`). `Sync`
says which files are durable before the response is sent; the other files are durable within flush.ms.
Threads: any; no thread has a lock while it receives a body.
"""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl, unquote

from segstore.errors import InvalidArgumentError, SegstoreError
from segstore.filetree import Directory, File, FileTree, clean_path
from segstore.spark.checkpointing.http_server import HOST, CheckpointRequest, Response
from segstore.spark.checkpointing.rules import FileRole, OperationFault, OperationFaults, Sync, role_of

# --- answers -----------------------------------------------------------------------------------

# These functions make the JSON of WebHDFS, which Hadoop's JsonUtilClient reads, such as the status of a file.
# Errors have the names of Java's exceptions.

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
        "checksumType": 2,  # This is CRC32C.
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


def answer(content: Mapping[str, Any], status: int = 200) -> Response:
    data = json.dumps(content, ensure_ascii=False).encode()
    return Response(status, [data], len(data))


def boolean(value: bool) -> Response:
    return answer({"boolean": value})


def failure(error: BaseException) -> Response:
    """Return the response for an error: a RemoteException, which makes the client raise a Java exception."""
    status, java = next((status, java) for kind, status, java in _JAVA if isinstance(error, kind))
    exception = {"exception": java.rpartition(".")[2], "javaClassName": java, "message": _text(error)}
    return answer({"RemoteException": exception}, status)


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def status_of(node: File | Directory, name: str = "", children: int = 0) -> dict[str, Any]:
    """Return a FileStatus as JSON. In a listing, `name` is the last part of the entry's path, else ""."""
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
    """Return the blocks of a range of a file: one for each BLOCK_BYTES bytes, all of them on this host."""
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


# --- webhdfs ------------------------------------------------------------

log = logging.getLogger("segstore")

PREFIX = "/webhdfs/v1"
_RENAMES_KEPT = 256
Query = Mapping[str, str]

_OPEN_TO_ALL: Mapping[str, Mapping[str, object]] = {
    "GETSERVERDEFAULTS": SERVER_DEFAULTS,
    "GETHOMEDIRECTORY": {"Path": "/"},
}
"""The answers to requests that the client makes without the secret. They contain no data of the store."""


class WebHdfs:
    """Serves requests. Their paths must begin with the secret, unless the operation is in _OPEN_TO_ALL."""

    def __init__(self, tree: FileTree, secret: str, sync: Sync, faults: OperationFaults) -> None:
        self._tree, self._secret, self._sync, self._faults = tree, secret, sync, faults
        self.port = 0
        self._renamed: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._operations: dict[tuple[str, str], Callable[[str, Query], Response]] = {
            ("GET", "OPEN"): self._open,
            ("GET", "GETFILESTATUS"): self._status,
            ("GET", "GETFILELINKSTATUS"): self._status,
            ("GET", "LISTSTATUS"): self._list,
            ("GET", "LISTSTATUS_BATCH"): self._list_batch,
            ("GET", "GETCONTENTSUMMARY"): self._summary,
            ("GET", "GETFILEBLOCKLOCATIONS"): self._locations,
            ("GET", "CHECKACCESS"): self._access,
            ("PUT", "MKDIRS"): self._mkdirs,
            ("PUT", "RENAME"): self._rename,
            ("DELETE", "DELETE"): self._delete,
        }

    def serve(self, request: CheckpointRequest) -> Response | None:
        """Return the response to a request; None if the connection must be closed without a response."""
        target, _, text = request.target.partition("?")
        query = {name.lower(): value for name, value in parse_qsl(text, keep_blank_values=True)}
        name = query.get("op", "").upper()
        try:
            if request.method == "GET" and name in _OPEN_TO_ALL:
                return self._served(name, "/", partial(answer, _OPEN_TO_ALL[name]))
            path = self._path(unquote(target, errors="strict"))
            run = self._found(request, name, query)
            if run is None:
                return self._to_second_step(request)
            subject = self._below(query.get("destination", "")) if name == "RENAME" else path
        except (OSError, SegstoreError, NotImplementedError, UnicodeDecodeError) as error:
            return failure(_known(error))
        return self._served(name, subject, partial(run, path, query))

    def _path(self, target: str) -> str:
        if not target.startswith(PREFIX + "/"):
            raise InvalidArgumentError(f"{target!r:.80} does not begin with {PREFIX}/")
        return self._below(target[len(PREFIX) :])

    def _below(self, path: str) -> str:
        """Remove the secret from the beginning of a path, and return the path in the tree. Raises
        PermissionError, whose message does not contain the secret.
        """
        path = clean_path(path)
        secret, _, rest = path[1:].partition("/")
        if not hmac.compare_digest(secret.encode(), self._secret.encode()):
            raise PermissionError("the path does not begin with this server's secret")
        return "/" + rest

    def _found(
        self, request: CheckpointRequest, name: str, query: Query
    ) -> Callable[[str, Query], Response] | None:
        """Return the function that serves an operation; None for the first step of CREATE."""
        if (request.method, name) == ("PUT", "CREATE"):
            # CREATE has two steps: the response to the first one redirects the client to the second one.
            return partial(self._create, request) if query.get("data") == "true" else None
        run = self._operations.get((request.method, name))
        if run is None:
            raise NotImplementedError(f"{request.method} {name or 'without op'} is not served here")
        return run

    def _to_second_step(self, request: CheckpointRequest) -> Response:
        there = f"http://{HOST}:{self.port}{request.target}&data=true"
        return Response(307, headers={"Location": there})

    # --- faults ---------------------------------------------------------------------------

    def _served(self, name: str, path: str, run: Callable[[], Response]) -> Response | None:
        began = time.monotonic()
        faults = self._faults.meeting(name, path)
        outcome = _faulted(faults, name, path, after=False)
        if outcome is None:
            outcome = _guarded(run)
            outcome = _faulted(faults, name, path, after=True) or outcome
        self._faults.note(name, path, 0 if isinstance(outcome, OperationFault) else outcome.status, began)
        return None if isinstance(outcome, OperationFault) else outcome

    # --- looking --------------------------------------------------------------------------

    def _open(self, path: str, query: Query) -> Response:
        file = self._file(path)
        start = _number(query, "offset", 0)
        if start > file.size:
            raise OSError(f"offset={start} is behind the end of {path}, of {file.size} bytes")
        length = min(_number(query, "length", file.size), file.size - start)
        parts = self._tree.read(path, start, length)
        # The first part is read before the head is sent, so that a failed read gets an error response.
        first = next(parts, b"")
        return Response(200, chain([first], parts), length)

    def _file(self, path: str) -> File:
        node = self._tree.stat(path)
        if isinstance(node, Directory):
            raise FileNotFoundError(f"{path} is a directory")
        return node

    def _status(self, path: str, query: Query) -> Response:
        node = self._tree.stat(path)
        children = len(self._tree.listing(path)) if isinstance(node, Directory) else 0
        return answer({"FileStatus": status_of(node, children=children)})

    def _list(self, path: str, query: Query) -> Response:
        return answer(statuses(self._tree.listing(path)))

    def _list_batch(self, path: str, query: Query) -> Response:
        """Return all remaining entries of a listing, so that the client needs no other request."""
        after = query.get("startafter", "")
        entries = [entry for entry in self._tree.listing(path) if not after or entry[0] > after]
        listing = {"partialListing": statuses(entries), "remainingEntries": 0}
        return answer({"DirectoryListing": listing})

    def _summary(self, path: str, query: Query) -> Response:
        return answer(summary(node for _, node in self._tree.walk(path)))

    def _locations(self, path: str, query: Query) -> Response:
        file = self._file(path)
        start = _number(query, "offset", 0)
        return answer(locations(file, start, _number(query, "length", file.size), self.port))

    def _access(self, path: str, query: Query) -> Response:
        self._tree.stat(path)
        return Response(200)

    # --- changing -------------------------------------------------------------------------

    def _create(self, request: CheckpointRequest, path: str, query: Query) -> Response:
        with self._tree.create(path, query.get("overwrite", "false") == "true") as upload:
            for part in request.body:
                upload.write(part)
            upload.commit()
        self._made(path)
        return Response(201)

    def _made(self, path: str) -> None:
        if self._sync.covers(path):
            self._tree.flush()

    def _mkdirs(self, path: str, query: Query) -> Response:
        self._tree.mkdirs(path)
        return boolean(True)

    def _rename(self, path: str, query: Query) -> Response:
        target = self._below(query.get("destination", ""))
        options = query.get("renameoptions")
        if options is not None:
            chosen = {option.strip().upper() for option in options.split(",")}
            self._tree.rename(path, target, "OVERWRITE" in chosen)
            self._made(target)
            return Response(200)
        done = self._plain_rename(path, target)
        if done:
            self._made(target)
        return boolean(done)

    def _plain_rename(self, path: str, target: str) -> bool:
        """Rename a file or directory. Return whether this has succeeded, as HDFS does. In contrast to HDFS, a
        state file (`FileRole.STATE`) at the target is replaced.
        """
        there = self._tree.get(target)
        if isinstance(there, Directory) and path != target:
            target = target.rstrip("/") + "/" + path.rpartition("/")[2]
        node = self._tree.get(path)
        if node is None:
            return self._renamed_before(path, target)
        replace = role_of(target) is FileRole.STATE and isinstance(node, File)
        try:
            self._tree.rename(path, target, replace)
        except OSError as error:
            if isinstance(error, SegstoreError):
                raise
            return False
        self._remember(path, target, node)
        return True

    def _remember(self, path: str, target: str, node: File | Directory) -> None:
        if isinstance(node, File):
            self._renamed[path, target] = node.id
            while len(self._renamed) > _RENAMES_KEPT:
                self._renamed.popitem(last=False)

    def _renamed_before(self, path: str, target: str) -> bool:
        """Return whether an earlier request has made this rename, and the file is still at the target."""
        # If a connection ends without an answer, Java's client repeats the request. The first request may
        # have renamed the file, so the second one must succeed too.
        node = self._tree.get(target)
        return isinstance(node, File) and self._renamed.get((path, target)) == node.id

    def _delete(self, path: str, query: Query) -> Response:
        return boolean(self._tree.delete(path, query.get("recursive", "false") == "true"))


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name, "")
    if text in ("", "null"):
        return default
    if not text.isdecimal() or len(text) > 19:
        raise InvalidArgumentError(f"{name}={text!r:.40} must be a whole number")
    return int(text)


def _known(error: BaseException) -> BaseException:
    return InvalidArgumentError(str(error)) if isinstance(error, UnicodeDecodeError) else error


def _guarded(run: Callable[[], Response]) -> Response:
    try:
        return run()
    except ConnectionError:
        raise  # The client has disconnected, so there is no response to send.
    except (OSError, SegstoreError) as error:
        if not isinstance(error, (FileNotFoundError, FileExistsError)):
            log.warning("checkpoints: %s", error)
        return failure(error)


def _faulted(
    faults: list[OperationFault], name: str, path: str, *, after: bool
) -> Response | OperationFault | None:
    """Apply the faults that come before the operation; if `after`, those that come after it. Return an error
    response if the operation must fail; the fault if the connection must be closed; else None.
    """
    for fault in (fault for fault in faults if fault.after is after):
        if fault.kind == "delay":
            time.sleep(fault.seconds)
        elif fault.kind == "drop":
            return fault
        else:
            when = "was done, but is said to have failed" if after else "was not done"
            return failure(OSError(f"injected: {name} {path} {when}"))
    return None
