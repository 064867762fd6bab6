"""Samples of a server's request metrics, and sockets that count the bytes of their clients."""

from __future__ import annotations

from typing import Any

from serving import within
from wire_client import WireClient

import segstore


def read(server: segstore.Server, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric, by their labels, after the turn of the loop that has counted last."""
    found = within(server, server.families)
    (samples,) = [samples for metric, _, samples in found if metric.prometheus == f"segstore_{name}"]
    assert len({(each.labels, each.suffix) for each in samples}) == len(samples)
    return {each.labels: each.value for each in samples if each.suffix in ("", "_count")}


def counted(server: segstore.Server, api: str) -> tuple[float, float, float]:
    """How many requests of an API there were, their bytes, and those of their answers."""
    names = "requests_total", "request_bytes_total", "response_bytes_total"
    requests, received, sent = (read(server, name).get((api,), 0) for name in names)
    assert read(server, "request_duration_seconds").get((api,), 0) == requests
    return requests, received, sent


class Tap:
    """A client's socket, and the bytes that went each way."""

    def __init__(self, sock: Any) -> None:
        self._sock, self.sent, self.received = sock, 0, 0

    def sendall(self, data: Any) -> None:
        self._sock.sendall(data)
        self.sent += len(data)

    def recv_into(self, buffer: Any) -> int:
        count: int = self._sock.recv_into(buffer)
        self.received += count
        return count

    def recv(self, size: int, flags: int = 0) -> bytes:
        data: bytes = self._sock.recv(size, flags)
        self.received += 0 if flags else len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def tapped(wire: WireClient) -> Tap:
    wire.socket = tap = Tap(wire.socket)  # type: ignore[assignment]
    return tap
