"""A server over a store, and raw clients of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from wire_client import WireClient

import segstore


@pytest.fixture
def server(store: segstore.Store) -> Iterator[segstore.Server]:
    """A server on a port of its own; groups rebalance at once."""
    with segstore.serve(store, port=0, group_initial_rebalance_delay_ms=0) as server:
        yield server


@pytest.fixture
def wire(server: segstore.Server) -> Iterator[WireClient]:
    """A client that is connected to `server`."""
    with WireClient(server.host, server.port) as wire:
        yield wire
