"""Shared by tests of the checkpoint store: a client that sends the requests of Hadoop's, and trees of
paths.
"""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from waiting import PATIENCE

import segstore
from segstore.filetree import File, FileTree, TreeSnapshot, read_file
from segstore.spark import checkpoints
from segstore.spark.checkpointing import Checkpoints

QUIET = {"flush.ms": 2**63 - 1}
"""Settings without background syncs, so that the requested ones can be counted."""
SMALL = {**QUIET, "max.message.bytes": 20_000, "segment.bytes": 40_000, "min.cleanable.dirty.ratio": 0.01}
"""Settings with chunks of CHUNK bytes, and segments of about four chunks."""
CHUNK = 10_000


def random_bytes(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def told(self) -> Any:
        return json.loads(self.body)

    @property
    def java(self) -> str:
        """Return the class of the exception that the Java client throws."""
        return self.told["RemoteException"]["javaClassName"]


class Hadoop:
    """Sends the requests that Java's WebHdfsFileSystem sends: files in two steps, with chunked bodies."""

    def __init__(self, ck: Checkpoints, secret: str | None = None) -> None:
        self.ck = ck
        self.secret = ck.url().rpartition("/")[2] if secret is None else secret
        self.connection = http.client.HTTPConnection("127.0.0.1", ck.port, timeout=PATIENCE)

    def target(self, path: str, op: str, **query: Any) -> str:
        query = {"op": op, "user.name": "spark", **query}
        return "/webhdfs/v1" + quote(f"/{self.secret}{path}") + "?" + urlencode(query)

    def ask(self, method: str, target: str, body: Any = None) -> Answer:
        self.connection.request(
            method, target, body=body, encode_chunked=body is not None, headers=_CHUNKED[body is not None]
        )
        response = self.connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        assert "content-type" not in headers
        return Answer(response.status, response.read(), headers)

    def get(self, path: str, op: str, **query: Any) -> Answer:
        return self.ask("GET", self.target(path, op, **query))

    def create(self, path: str, data: bytes, overwrite: bool = False) -> Answer:
        first = self.ask("PUT", self.target(path, "CREATE", overwrite=str(overwrite).lower()))
        if first.status != 307:
            return first
        there = first.headers["location"].partition(f"127.0.0.1:{self.ck.port}")[2]
        return self.ask("PUT", there, iter([data[:10], data[10:]]) if len(data) > 10 else iter([data]))

    def open(self, path: str, **query: Any) -> Answer:
        return self.get(path, "OPEN", **query)

    def rename(self, path: str, target: str, **query: Any) -> Answer:
        return self.ask("PUT", self.target(path, "RENAME", destination=f"/{self.secret}{target}", **query))

    def mkdirs(self, path: str) -> Answer:
        return self.ask("PUT", self.target(path, "MKDIRS"))

    def delete(self, path: str, recursive: bool = False) -> Answer:
        return self.ask("DELETE", self.target(path, "DELETE", recursive=str(recursive).lower()))

    def names(self, path: str) -> list[str]:
        listed = self.get(path, "LISTSTATUS").told["FileStatuses"]["FileStatus"]
        return [status["pathSuffix"] for status in listed]

    def put(self, path: str, data: bytes, **query: Any) -> Answer:
        """Write a file as Spark does: under a temporary name, which is then renamed."""
        directory, _, name = path.rpartition("/")
        assert self.create(f"{directory}/.{name}.tmp", data).status == 201
        return self.rename(f"{directory}/.{name}.tmp", path, **query)


_CHUNKED = ({}, {"Transfer-Encoding": "chunked"})


@contextmanager
def served(path: Path, sync: str = "none", **options: Any) -> Iterator[Hadoop]:
    """Open a store, serve its checkpoints, and yield a client."""
    with segstore.open(path, **options) as store, checkpoints(store, sync=sync, config=QUIET) as ck:
        hadoop = Hadoop(ck)
        yield hadoop
        hadoop.connection.close()


def held(tree: FileTree) -> dict[str, bytes | None]:
    """Return every file's bytes by path; None for a directory."""
    return {path: b"".join(tree.read(path)) if isinstance(node, File) else None for path, node in tree.walk()}


def held_by(log: segstore.PartitionLog, seen: TreeSnapshot) -> dict[str, bytes | None]:
    """Return what `held` returns, for a snapshot."""
    nodes = list(seen.nodes.walk("/"))
    return {
        path: b"".join(read_file(log, path, node)) if isinstance(node, File) else None for path, node in nodes
    }
