"""Two clients with a fetch session each, which ask the same: what a connection that knows the requests
answers is, byte for byte, what one that reads each field by field does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from fetch_frames import asked, named
from wire_client import WireClient, request

import segstore
from segstore.protocol.codec import structs

_Request = structs("FetchRequest")
FLEXIBLE_SINCE = 12
Change = Callable[[segstore.Store], object]
Fields = dict[str, Any]
"""Partitions of "t" by number to fetch offset, or to all fields of theirs, in "wanted"; the rest is the
request's.
"""


def partitions(store: segstore.Store, version: int, topic: str, wanted: dict[int, Any]) -> list[Any]:
    """The topics of a request."""
    if not wanted:
        return []
    parts = [
        _Request.FetchPartition(
            **{
                "partition": number,
                "partition_max_bytes": 1 << 20,
                **(asked if isinstance(asked, dict) else {"fetch_offset": asked}),
            }
        )
        for number, asked in wanted.items()
    ]
    return [_Request.FetchTopic(**named(store, topic, version), partitions=parts)]


class Client:
    """A consumer with one session. `is_known`: its requests come by one connection, which may know them."""

    def __init__(self, server: segstore.Server, store: segstore.Store, version: int, is_known: bool) -> None:
        self._server, self._store, self._version = server, store, version
        self._wire = WireClient(server.host, server.port) if is_known else None
        self.session_id, self.epoch = 0, 0
        self._at = 15 if version >= FLEXIBLE_SINCE else 14  # where answers have the session's id

    def frame(self, *, topic: str = "t", wanted: Any = None, forget: Any = (), **fields: Any) -> bytes:
        """The session's next request."""
        forgotten = [_Request.ForgottenTopic(**named(self._store, topic, self._version), partitions=forget)]
        given = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "session_id": self.session_id,
            "session_epoch": self.epoch,
            "topics": partitions(self._store, self._version, topic, wanted or {}),
            "forgotten_topics_data": forgotten if forget else [],
            **fields,
        }
        self.epoch += 1
        return request("Fetch", self._version, given.pop("correlation_id", self.epoch), "wire", **given)

    def ask(self, **fields: Any) -> bytes:
        """Return the answer to the next request, without the session's id."""
        data = self.frame(**fields)
        if self._wire is not None:
            return self.told(asked(self._wire, data))
        with WireClient(self._server.host, self._server.port) as wire:
            return self.told(asked(wire, data))

    def told(self, answer: bytes) -> bytes:
        (session_id,) = struct.unpack_from(">i", answer, self._at)
        if self.epoch == 1:
            self.session_id = session_id
        assert session_id in (0, self.session_id)
        return answer[: self._at] + bytes([session_id > 0]) + answer[self._at + 4 :]

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()


class Twins:
    """Two clients that ask the same: one whose connection may know what comes, and one that always comes
    anew.
    """

    def __init__(self, server: segstore.Server, store: segstore.Store, version: int = 12) -> None:
        self.known, self.anew = (Client(server, store, version, is_known) for is_known in (True, False))

    def ask(self, **fields: Any) -> bytes:
        expected = self.anew.ask(**fields)
        found = self.known.ask(**fields)
        assert found == expected
        return found

    def close(self) -> None:
        self.known.close()
