"""`Promotion`: how a directory has come to lead. On disk: `.segstore/promotion`, a `CheckedFile`.
Threads: any; immutable.
"""

from __future__ import annotations

from dataclasses import dataclass

from segstore import names
from segstore.storage.meta.checked_file import CheckedFile


@dataclass(frozen=True)
class Promotion:
    """`leader_epoch` is the first one of the promoted store's own; `source` the address of the primary
    before, and `told` whether that one knows; `directory_id` is that of the standby that was promoted.
    """

    leader_epoch: int
    source: str
    directory_id: str
    cluster_id: str
    reason: str
    told: bool


PROMOTION = CheckedFile(names.PROMOTION, "promotion", lambda held: Promotion(**held), 1 << 20)
