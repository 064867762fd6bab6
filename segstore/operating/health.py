"""Whether a server is alive, and whether it serves: the reasons why not, each a line.

Nothing is on disk, and nothing is asked of a disk: all is known in memory. Threads: any.
"""

from __future__ import annotations

from segstore.operating.operated import Operated, Reasons
from segstore.storage.store.store import Store

MOST_SECONDS = 10.0
"""Seconds within which a loop that is alive has turned."""


def unhealthy(operated: Operated) -> Reasons:
    """Return why it should be started again; none while it is alive."""
    age = max((beat.age for beat in operated.heartbeats), default=0.0)
    late = [f"the server's loop has not turned for {age:.0f} s"] if age > MOST_SECONDS else []
    return [*late, *operated.unhealthy()]


def unready(operated: Operated) -> Reasons:
    """Return why no requests are served; none while they are."""
    return [*unhealthy(operated), *operated.unready()]


def store_unready(store: Store) -> Reasons:
    """Return why a store does not serve; nothing while it does."""
    context = store.context
    return [f"{context.root} is closed"] if context.closed else store.unready()
