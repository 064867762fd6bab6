"""Whether a store has living members: processes that share it, each of which holds a lock on a byte of
`.segstore/members` (rule L2 of docs/shared.md). The file is only read. Threads: any; a function without
state.
"""

from __future__ import annotations

from segstore import names
from segstore.files import Files


def has_living_members(files: Files, root: str) -> bool:
    """Return whether a process shares the store, this one too, or is about to. Whoever takes the store's lock
    and does not share looks here, and gives the lock back if there is one: it may be a guest whose host was
    killed (rule H3 of docs/shared.md). Raises OSError.
    """
    return files.is_locked(names.below(root, f"{names.OURS}/{names.MEMBERS}"))
