"""A server of a store with records of all kinds, for commands that take --bootstrap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import segstore

NOON = 1372680000000  # 2013-07-01T12:00:00Z


@pytest.fixture
def server(store: segstore.Store) -> Iterator[segstore.Server]:
    """A server of a store whose topic "t" has records of all kinds, in two of three partitions."""
    store.create_topic("t", 3, config={"retention.ms": 86_400_000_000})
    store.create_topic("u")
    store.partition("t", 0).append_batch(
        [b"%d" % n for n in range(10)], timestamps=[NOON + n for n in range(10)], compression="zstd"
    )
    store.partition("t", 2).append(b"\xff", key=b"", headers=[("h", b"1"), ("n", None)], timestamp=NOON)
    store.partition("t", 2).append(None, key=b"k", timestamp=NOON + 5)
    with segstore.serve(store, port=0, group_initial_rebalance_delay_ms=0) as server:
        yield server
