"""Makes the stores on which operations are run."""

from __future__ import annotations

from .world import World

SMALL = {"segment_bytes": 1000, "index_interval_bytes": 150}


def two_topics(world: World) -> None:
    """Make topic "t" with 12 records in several segments, and "other" with 3 in its second partition."""
    world.create("t", **SMALL)
    world.append(n=12, batch_bytes=200)
    world.create("other", 2)
    world.append("other", 3, 1)
    world.flush_all()
