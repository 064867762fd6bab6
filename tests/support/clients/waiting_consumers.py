"""Consumers that have read all there is, of a writer's store and of a reader's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consumers import earliest, tp

import segstore


@pytest.fixture(params=["rw", "r"])
def sides(request: pytest.FixtureRequest, store_dir: Path) -> Iterator[tuple[segstore.Store, segstore.Store]]:
    """The writer's store with a topic of two partitions, and the store that consumers get."""
    with segstore.open(store_dir) as writer:
        writer.create_topic("t", partitions=2)
        if request.param == "rw":
            yield writer, writer
        else:
            with segstore.open(store_dir, mode="r") as store:
                yield writer, store


def at_the_end(store: segstore.Store, **settings: Any) -> segstore.Consumer:
    """Return a consumer of both partitions that has read all there is."""
    consumer = earliest(store, **settings)
    consumer.assign([tp(0), tp(1)])
    while consumer.poll():
        pass
    return consumer
