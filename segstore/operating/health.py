"""The checks of /healthz and /readyz: the reasons why a server is not alive or not ready, one line each.

Nothing is on disk, and no check waits for a disk: all state is in memory. Threads: any.
"""

from __future__ import annotations

from segstore.operating.operated import Operated, Reasons
from segstore.storage.store.store import Store

MOST_SECONDS = 10.0
"""The longest age of a live loop's last turn, in seconds."""


def unhealthy(operated: Operated) -> Reasons:
    """Return the reasons to restart the server; the list is empty while the server is alive."""
    age = max((beat.age for beat in operated.heartbeats), default=0.0)
    late = [f"the server's loop has not turned for {age:.0f} s"] if age > MOST_SECONDS else []
    return [*late, *operated.unhealthy()]


def unready(operated: Operated) -> Reasons:
    """Return the reasons why no requests are served; the list is empty while the server is ready."""
    return [*unhealthy(operated), *operated.unready()]


def store_unready(store: Store) -> Reasons:
    """Return the reasons why a store serves no requests; the list is empty while the store is ready."""
    context = store.context
    return [f"{context.root} is closed"] if context.closed else store.unready()
