"""What a terminal is told of a store that another process has open for writing.

Nothing on disk. Threads: one.
"""

from __future__ import annotations

from segstore.errors import StoreLockedError

END_IT = "do this there, or stop that process first"


def told(error: StoreLockedError, advice: str = END_IT) -> str:
    """Return the error with an advice that a shell can follow: `mode="r"` is for programs."""
    who = f"process {error.pid}" if error.pid else "another process"
    return f"{error.path} is open for writing in {who}: {advice}"
