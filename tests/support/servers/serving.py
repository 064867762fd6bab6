"""Servers whose handlers a test writes, and what it sees of them from outside."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from waiting import PATIENCE

import segstore
from segstore.protocol.codec import structs
from segstore.server.apis import Api
from segstore.server.handlers import HANDLERS
from segstore.server.network import server as module
from segstore.server.network.connection import ServerConnection
from segstore.server.request import LATER, Handler, Request
from segstore.server.settings import ServerConfig

HEARTBEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}


@contextmanager
def serving(
    store: segstore.Store, handlers: dict[Api, Handler] | None = None, **settings: Any
) -> Iterator[segstore.Server]:
    """Serve a store on a port of the system's choice, with more handlers than the usual ones."""
    config = ServerConfig.parse(settings)
    with module.start(store, "127.0.0.1", 0, None, config, {**HANDLERS, **(handlers or {})}) as server:
        yield server


class Parked:
    """A handler that keeps requests; `answer` answers the oldest one in the loop's thread."""

    def __init__(self) -> None:
        self.requests: SimpleQueue[Request] = SimpleQueue()

    def __call__(self, node: Any, request: Request) -> Any:
        self.requests.put(request)
        return LATER

    def next(self) -> Request:
        return self.requests.get(timeout=PATIENCE)


def answer(server: segstore.Server, request: Request, body: Any) -> None:
    """Answer a request that a handler has kept."""
    within(server, lambda: request.answer(body))


def heartbeat(**fields: Any) -> Any:
    return structs("HeartbeatResponse")(**fields)


def within(server: segstore.Server, call: Callable[[], Any]) -> Any:
    """Return what `call` returns in the server's thread."""
    told: SimpleQueue[Any] = SimpleQueue()
    server.node.loop.soon(lambda: told.put(call()))
    return told.get(timeout=PATIENCE)


def connections(server: segstore.Server) -> list[ServerConnection]:
    """Return the open connections of a server."""
    found: list[ServerConnection] = within(server, lambda: list(server._service._listener.connections._all))
    return found


class FileSlice:
    """A stretch of a file, as the storage layer gives it."""

    def __init__(self, path: Path, position: int, count: int) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self.position, self._count, self.released = position, count, 0

    def __len__(self) -> int:
        return self._count

    def fileno(self) -> int:
        return self._fd

    def release(self) -> None:
        if not self.released:
            os.close(self._fd)
        self.released += 1


def fetched(*records: Any) -> Any:
    """Return Fetch's response with these records, a partition each."""
    kind = structs("FetchResponse")
    partitions = [
        kind.PartitionData(partition_index=n, records=each, aborted_transactions=None)
        for n, each in enumerate(records)
    ]
    return kind(responses=[kind.FetchableTopicResponse(topic="t", partitions=partitions)])


def _noted_answers(receive: Callable[..., Any], seen: list[bool]) -> Callable[..., Any]:
    """`LearnedRequest.receive`, noting what it answers: what it does not is seen by `__call__` too."""

    def noted(self: Any, sock: int, memory: Any) -> Any:
        found = receive(self, sock, memory)
        if found is not None and found[1] is not None:
            seen.append(True)
        return found

    return noted


def told_by(kind: type, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets, for each request that this kind of `LearnedRequest` sees, whether it answers
    the request.
    """
    seen: list[bool] = []
    call: Any = kind.__call__

    def noted(self: Any, frame: memoryview) -> Any:
        found = call(self, frame)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(kind, "__call__", noted)
    monkeypatch.setattr(kind, "receive", _noted_answers(kind.receive, seen))  # type: ignore[attr-defined]
    return seen
