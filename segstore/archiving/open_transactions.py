"""`TransactionsAhead`: finds the batches of a window that belong to aborted transactions, from the markers
that follow the batches.

A reader may begin at any offset, and needs only the log from that offset on. It reads ahead until every
transaction of the batches is completed; mostly one more window is enough. The control batches show which
transactions were aborted, as in a store. Threads: one, that of the reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from segstore.archiving.log_windows import BatchWindow
from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.index.txn_index import AbortedTxn
from segstore.records import CONTROL_FLAG, TRANSACTIONAL_FLAG, decode
from segstore.records.control import parse_control
from segstore.storage.producers.producer_state import ProducerState

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TransactionsAhead:
    """The transactions of consecutive windows; `_last` is the last of these windows. `following` returns the
    window after a given window, or None at the end of the log.
    """

    def __init__(self, following: Callable[[BatchWindow], BatchWindow | None]) -> None:
        self._following = following
        self._state = ProducerState()
        self._aborted: list[AbortedTxn] = []
        self._begin = 0
        self._last: BatchWindow | None = None

    def begun(self, window: BatchWindow) -> ProducerState:
        """Begin anew with a window, and return the producer state, which each `take` updates."""
        self._state, self._aborted = ProducerState(), []
        self._begin = window.ask.begin
        self.take(window)
        return self._state

    def take(self, window: BatchWindow) -> None:
        """Add the batches of the next window. Raises CorruptRecordError for a marker that can't be read."""

        def read_control(slot: int) -> tuple[int, int]:
            one, file = window.batches[slot : slot + 1], window.extent.object
            record = decode(window.data, one, file, window.at)[0]
            position = int(one["position"][0])
            return parse_control(record.key, record.value, file=file, position=position, offset=record.offset)

        self._aborted += self._state.update(window.headers, read_control)
        self._last = window

    def judged(self, window: BatchWindow, first: int, last: int) -> tuple[NDArray[np.bool_], int]:
        """Return (mask, number) for the window's batches from `first` on, below `last`. The mask is True for
        batches of aborted transactions. The number counts the batches before the first batch whose
        transaction has no marker in the log; it counts all batches if each transaction has a marker. Raises
        CorruptRecordError if the first batch's transaction has no marker.
        """
        batches = window.batches[first:last]
        bad = np.zeros(len(batches), bool)
        inside = (batches["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)) == TRANSACTIONAL_FLAG
        if not inside.any():
            return bad, len(batches)
        self._reach(window, int(batches["last_offset"][-1]))
        bases, producers = batches["base_offset"], batches["producer_id"]
        for producer_id, begin, end, _ in self._aborted:
            if begin <= bases[-1] and end >= bases[0]:
                bad |= inside & (producers == producer_id) & (bases >= begin) & (bases <= end)
        open_still = np.zeros(len(batches), bool)
        for producer_id, begin in self._state.ongoing.items():
            open_still |= inside & (producers == producer_id) & (bases >= begin)
        known = int(open_still.argmax()) if open_still.any() else len(batches)
        if not known:
            raise _without_marker(window, batches[0])
        return bad, known

    def _reach(self, window: BatchWindow, offset: int) -> None:
        """Add windows until all transactions that begin at or before an offset are completed, or the log
        ends.
        """
        if self._last is None or not self._begin <= window.ask.begin < self._last.end:
            self.begun(window)
        while self._last is not None and (
            self._last.end <= offset or any(begin <= offset for begin in self._state.ongoing.values())
        ):
            after = self._following(self._last)
            if after is None:
                return
            self.take(after)


def _without_marker(window: BatchWindow, batch: np.void) -> CorruptRecordError:
    return CorruptRecordError(
        window.extent.object,
        int(batch["position"]),
        int(batch["base_offset"]),
        "the end of the batch's transaction is not in the log",
        int(batch["last_offset"]) + 1,
    )
