"""What is in a store before an operation runs on it."""

from __future__ import annotations

from .world import World

SMALL = {"segment_bytes": 1000, "index_interval_bytes": 150}


def two_topics(world: World) -> None:
    """Topic "t" with 12 records over several segments, "other" with 3 in the second of its partitions."""
    world.create("t", **SMALL)
    world.append(n=12, batch_bytes=200)
    world.create("other", 2)
    world.append("other", 3, 1)
    world.flush_all()
