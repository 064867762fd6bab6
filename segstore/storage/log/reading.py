"""`Reading`: the view and the limits that a read of a partition uses. Nothing is on disk; a Reading never
changes, and serves any thread.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.storage.log.read import MayBeMissing
from segstore.storage.producers.aborted_transactions import AbortedTransactions
from segstore.storage.segment.log_view import LogView


class Reading(NamedTuple):
    """A view, and `limit`, the offset up to which the view may be read: the view's end, or the last stable
    offset. `gaps` decides whether offsets are missing because of compaction or because of damage. `aborted`:
    the transactions whose records are skipped; None if a read skips none.
    """

    view: LogView
    limit: int
    gaps: MayBeMissing
    aborted: AbortedTransactions | None
