"""The checks of /healthz and /readyz. They return the reasons why a server is not alive or not ready, each as
one line. No check reads a disk, or waits for a disk. Threads: any.
"""

from __future__ import annotations

from segstore.operating.operated import Operated, Reasons
from segstore.storage.store.store import Store

MOST_SECONDS = 10.0
"""A server is not alive if its event loop has not answered for more than this number of seconds."""


def unhealthy(operated: Operated) -> Reasons:
    """Return the reasons to restart the server. The list is empty if the server is alive."""
    age = max((beat.age for beat in operated.heartbeats), default=0.0)
    late = [f"the server's loop has not turned for {age:.0f} s"] if age > MOST_SECONDS else []
    return [*late, *operated.unhealthy()]


def unready(operated: Operated) -> Reasons:
    """Return the reasons why the server can't serve requests. The list is empty if the server is ready."""
    return [*unhealthy(operated), *operated.unready()]


def store_unready(store: Store) -> Reasons:
    """Return the reasons why a store can't serve requests. The list is empty if the store is ready."""
    context = store.context
    return [f"{context.root} is closed"] if context.closed else store.unready()
