"""`Promotion`: the file `.segstore/promotion`, a `CheckedFile`, which records the promotion of a standby to
primary.

Threads: any, because a `Promotion` never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from segstore import names
from segstore.storage.meta.checked_file import CheckedFile


@dataclass(frozen=True)
class Promotion:
    """A promotion of the standby with directory id `directory_id`. `leader_epoch` is the first epoch in which
    the standby leads. `source` is the address of the former primary. `told` says whether the former primary
    has acknowledged the promotion. `reason` is a text.
    """

    leader_epoch: int
    source: str
    directory_id: str
    cluster_id: str
    reason: str
    told: bool


PROMOTION = CheckedFile(names.PROMOTION, "promotion", lambda held: Promotion(**held), 1 << 20)
