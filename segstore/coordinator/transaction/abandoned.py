"""Ends what nobody else will: transactions whose producer is gone, is too slow, or can't go on.

Nothing on disk of its own: `transitions` and `lost` write the ends. Threads: any; takes one entry's lock at a
time.
"""

from __future__ import annotations

from segstore.coordinator.transaction.entries import Entries
from segstore.coordinator.transaction.lost import Lost
from segstore.coordinator.transaction.metadata import State
from segstore.coordinator.transaction.transitions import Transitions
from segstore.coordinator.transaction.upkeep import Upkeep


class Abandoned:
    """What can't be ended now is left to `upkeep`, which asks for `settle` again."""

    def __init__(self, entries: Entries, transitions: Transitions, lost: Lost, upkeep: Upkeep) -> None:
        self._entries, self._transitions, self._lost, self._upkeep = entries, transitions, lost, upkeep

    def settle(self) -> None:
        """End what a process that is gone left open, and what could not be ended yet."""
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                try:
                    if known is not None and known.state is State.ONGOING and entry.orphan:
                        self._transitions.decide(entry, self._lost.was_committed(known))
                except Exception as error:
                    self._upkeep.failed(f"{entry.transactional_id!r} can't be ended", error)
                    continue
                if self._transitions.try_complete(entry):
                    self._transitions.raise_epoch(entry)
        for producer_id in self._lost.producers:
            try:
                self._lost.end(producer_id)
            except Exception as error:
                self._upkeep.failed(f"transactions of producer {producer_id} can't be ended", error)

    def abort_timed_out(self, now: int) -> None:
        """Abort transactions that are open for longer than their producer's `transaction_timeout_ms`."""
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                if known is None or known.state is not State.ONGOING:
                    continue
                # As if its producer were gone; unless that ends it first, after all.
                entry.orphan = known.started_ms + known.timeout_ms < now
        self.settle()

    def abort_open(self) -> None:
        """Abort all that is open: its producers can't go on."""
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                if known is not None and known.state is State.ONGOING:
                    entry.orphan = True
        self.settle()
