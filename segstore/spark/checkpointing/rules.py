"""What a file is to Spark, and what follows: whether it is replaced, whether it is synced. Nothing on disk.

Threads: any; functions without state.
"""

from __future__ import annotations

import enum


class Role(enum.Enum):
    """What a file is to Spark, by the nearest of these names above it.

    A batch that is run again writes its state files again: they are replaced, where HDFS would answer false
    and Spark would keep the old file silently. `offsets` and `commits` are refused: Spark asks whether they
    are there before it renames, which is not atomic, so that of two runs of one query both could win.
    """

    STATE = "state"
    OFFSETS = "offsets"
    COMMITS = "commits"
    OTHER = ""


_ROLES = {role.value: role for role in Role if role.value}


def role_of(path: str) -> Role:
    parents = reversed(path.split("/")[:-1])
    return next((_ROLES[part] for part in parents if part in _ROLES), Role.OTHER)


class Sync(enum.Enum):
    """What is synced before Spark is told that it is done: by one fsync each, of all that came before it.

    BATCH: a micro-batch's plan (`offsets/N`), and with it the batch before, its state and its commit: one
    fsync a batch. A power cut costs at most the batch that ran, and it is run again by the same plan.
    COMMIT: `commits/N` too. FILE: every file that gets its name. NONE: nothing, as in a plain directory, for
    Spark syncs none of its files.
    """

    NONE = "none"
    BATCH = "batch"
    COMMIT = "commit"
    FILE = "file"

    def covers(self, path: str) -> bool:
        """Whether the file that got this name is synced: none whose name is still to change."""
        if path.rpartition("/")[2].startswith("."):
            return False
        roles = {Sync.BATCH: {Role.OFFSETS}, Sync.COMMIT: {Role.OFFSETS, Role.COMMITS}, Sync.FILE: set(Role)}
        return role_of(path) in roles.get(self, ())
