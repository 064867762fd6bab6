"""`WireClient`: a client of Kafka's wire protocol that sends what it is told, in any version.

    with WireClient(host, port) as wire:
        body = wire.ask("Metadata", 12, topics=None)

Every wait is bounded by `PATIENCE`. Threads: one at a time.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, NamedTuple

from waiting import PATIENCE

from segstore.protocol.codec import decode, encode, structs
from segstore.protocol.definitions import message
from segstore.protocol.primitives import read_uvarint
from segstore.server.apis import Api

SOFTWARE = {"client_software_name": "tests", "client_software_version": "1"}
"""What ApiVersions must say of a client from version 3 on."""


class Sent(NamedTuple):
    """A request that is under way."""

    name: str
    version: int
    correlation_id: int


class WireClient:
    """One connection. `client_id` is None for null."""

    def __init__(self, host: str, port: int, client_id: str | None = "wire") -> None:
        self.client_id = client_id
        self.socket = socket.create_connection((host, port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next = 0

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def ask(self, api: Api | str, version: int, /, **fields: Any) -> Any:
        """Send a request and return the response's body. Raises ConnectionError where the server closes the
        connection instead.
        """
        return self.receive(self.send(api, version, **fields))

    def send(self, api: Api | str, version: int, /, **fields: Any) -> Sent:
        """Send a request without waiting for its answer."""
        name = named(api)
        self._next += 1
        self.socket.sendall(request(name, version, self._next, self.client_id, **fields))
        return Sent(name, version, self._next)

    def receive(self, sent: Sent) -> Any:
        """Return the body of the next response, which must be the answer to `sent`."""
        data = self.receive_bytes()
        assert struct.unpack_from(">i", data) == (sent.correlation_id,)
        at = 4
        if sent.name != "ApiVersions" and sent.version in message(f"{sent.name}Request").flexible:
            tags, at = read_uvarint(data, at)
            assert tags == 0
        return decode(f"{sent.name}Response", sent.version, data[at:])

    def receive_bytes(self) -> memoryview:
        """Return the next response without its size."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return memoryview(self._exactly(size))

    def is_closed(self) -> bool:
        """Wait for what the server does next: True where it closes the connection, False where it sends."""
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        at = 0
        while at < size:
            got = self.socket.recv_into(memoryview(data)[at:])
            if got == 0:
                raise ConnectionResetError(f"the server closed the connection after {at} of {size} bytes")
            at += got
        return data


def named(api: Api | str) -> str:
    """Return the name of an API's messages; that of "Fetch" is "Fetch"."""
    return api.message if isinstance(api, Api) else api


def request(
    name: str, version: int, correlation_id: int, client_id: str | None = "wire", /, **fields: Any
) -> bytes:
    """Return a request's bytes with its size and header."""
    definition = message(f"{name}Request")
    text = None if client_id is None else client_id.encode()
    out = bytearray(4)
    out += struct.pack(
        ">hhih", definition.api_key, version, correlation_id, -1 if text is None else len(text)
    )
    out += text or b""
    if version in definition.flexible:
        out.append(0)
    encode(structs(f"{name}Request")(**fields), version, out)
    struct.pack_into(">i", out, 0, len(out) - 4)
    return bytes(out)
