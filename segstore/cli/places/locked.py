"""The messages of the command line about a store that another process has open for writing.

Nothing is on disk. Threads: one.
"""

from __future__ import annotations

from segstore.errors import StoreLockedError


def end_it(error: StoreLockedError) -> str:
    """Return advice for a user whose command can't open a locked store."""
    if error.shared:
        return "do this there, or stop all processes that share it first, which `segstore members` shows"
    return "do this there, or stop that process first"


def locked_text(error: StoreLockedError, advice: str = "") -> str:
    """Return a message about a locked store that ends with `advice`, by default the result of `end_it`. The
    advice in the error's own message (`mode="r"`) is for programs, so the result does not have it.
    """
    who = f"process {error.pid}" if error.pid else "another process"
    state = "is shared by" if error.shared else "is open for writing in"
    return f"{error.path} {state} {who}: {advice or end_it(error)}"
