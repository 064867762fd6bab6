"""`Reading`: what a read of a partition goes by. Nothing is on disk; it never changes, and serves any
thread.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.storage.log.read import MayBeMissing
from segstore.storage.producers.aborted_transactions import AbortedTransactions
from segstore.storage.segment.log_view import LogView


class Reading(NamedTuple):
    """A view, and the offset up to which it may be read: its end, or the last stable offset. `aborted`: the
    transactions whose records are left out; None for a read that leaves out none.
    """

    view: LogView
    limit: int
    gaps: MayBeMissing
    aborted: AbortedTransactions | None
