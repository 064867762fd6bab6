"""Records one by one. Nothing on disk. Threads: one, the consumer's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from segstore.client.consumer.records import ConsumerRecord
from segstore.client.consumer.subscription import PartitionState


class _Part(NamedTuple):
    state: PartitionState
    records: Iterator[ConsumerRecord]
    at: int


class Iteration:
    """What a poll found for an iterator. A partition's position moves on with each record that is taken, so
    that those which were not are read again: after a seek, a pause, or by the next consumer of a group.
    """

    def __init__(self) -> None:
        self._parts: deque[_Part] = deque()

    def put(self, state: PartitionState, records: Sequence[ConsumerRecord], at: int) -> None:
        """Records of a partition, which goes on at offset `at` behind them."""
        self._parts.append(_Part(state, iter(records), at))

    def clear(self) -> None:
        """Forget what was not taken."""
        self._parts.clear()

    def take(self) -> ConsumerRecord | None:
        """The next record; None where another poll is due."""
        while self._parts:
            state, records, at = self._parts[0]
            if state.fetchable:
                record = next(records, None)
                if record is not None:
                    state.position, state.leader_epoch = record.offset + 1, record.leader_epoch
                    return record
                state.position = at
            self._parts.popleft()
        return None
