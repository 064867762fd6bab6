"""Requests with any values, and damaged ones, for the handlers as they are: no handler fails in a way that it
did not expect, and the server goes on.
"""

from __future__ import annotations

import logging
import random
import struct

import pytest
from drawn_messages import drawn
from fuzz.mutate import ANY
from waiting import told
from wire_client import WireClient

import segstore
from segstore.protocol.codec import encode
from segstore.protocol.definitions import message
from segstore.server.apis import Api, served
from segstore.server.handlers import HANDLERS

pytestmark = pytest.mark.kind("fuzz")

REQUESTS = 4
"""Of each version of each API, of which one has its values and the others are damaged."""


def bytes_of(api: Api, version: int, rng: random.Random) -> bytes:
    """Return a request without its size."""
    definition = message(f"{api.message}Request")
    out = bytearray(struct.pack(">hhih", api, version, 1, 4) + b"wild")
    if version in definition.flexible:
        out.append(0)
    encode(drawn(definition.name, version, rng), version, out)
    return bytes(out)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return a request that is changed behind its api and version."""
    return data[:4] + rng.choice(ANY)(rng, data[4:], data[4:])


@pytest.mark.parametrize("api", sorted(HANDLERS), ids=lambda api: api.message)
def test_no_request_fails_a_handler(
    store: segstore.Store, api: Api, rng: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "segstore")
    store.create_topic("topic-0", partitions=2)
    with segstore.serve(store, port=0, group_initial_rebalance_delay_ms=0) as server:
        for version in range(served(api).low, served(api).high + 1):
            for n in range(REQUESTS):
                data = bytes_of(api, version, rng)
                send(server, data if n == 0 else damaged(data, rng))
        with WireClient(server.host, server.port) as wire:
            assert wire.ask("ApiVersions", 0).error_code == 0
    told()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def send(server: segstore.Server, data: bytes) -> None:
    """Send a request in a connection of its own, and wait for its end: the answer or the close. A request
    that waits for others is left.
    """
    with WireClient(server.host, server.port) as wire:
        wire.socket.sendall(struct.pack(">i", len(data)) + data)
        wire.socket.settimeout(0.02)
        try:
            wire.socket.recv(1)
        except (TimeoutError, ConnectionError):
            return
