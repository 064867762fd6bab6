"""What a terminal is told of a store that another process has open for writing.

Nothing on disk. Threads: one.
"""

from __future__ import annotations

from segstore.errors import StoreLockedError


def end_it(error: StoreLockedError) -> str:
    """Return what a user may do about a store that is locked."""
    if error.shared:
        return "do this there, or stop all processes that share it first, which `segstore members` shows"
    return "do this there, or stop that process first"


def told(error: StoreLockedError, advice: str = "") -> str:
    """Return the error with an advice that a shell can follow: `mode="r"` is for programs."""
    who = f"process {error.pid}" if error.pid else "another process"
    state = "is shared by" if error.shared else "is open for writing in"
    return f"{error.path} {state} {who}: {advice or end_it(error)}"
