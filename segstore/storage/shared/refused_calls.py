"""The error for calls that a guest of a shared store refuses. Nothing is on disk. Threads: any, because the
function has no state.
"""

from __future__ import annotations

from segstore.errors import IllegalStateError


def refused_in_guest(call: str) -> IllegalStateError:
    """Return the error for a call that only a shared store's host can make, such as "create_topic()"."""
    return IllegalStateError(
        f"{call}: this process is a guest of the store, and that is the host's work: call it in the host"
        " (Store.host_pid), or by a client of Kafka's that is connected to `segstore serve --shared`"
    )
