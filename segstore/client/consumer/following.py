"""`Following`: how a consumer that has read all there is waits for more, and gets a record that comes then.

A wait is one call of C, which ends when the end of one of the consumer's partitions has moved. If that is by
one record, it is read by the short way (`storage/log/log_end.py`); whatever else it is, the consumer looks at
all its partitions, as before the wait.

On disk: nothing of its own. Threads: one, the consumer's. After an interrupt anywhere in a wait the record
counts as not read, since no position has moved.
"""

from __future__ import annotations

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.fetcher import Fetcher, Given
from segstore.client.consumer.records import last_record_of
from segstore.client.consumer.subscription import PartitionState, Subscription
from segstore.coordinator.structs import TopicPartition
from segstore.mutex import calls_out
from segstore.storage.log.log_end import LastRecords
from segstore.storage.store.store import Store


class Following:
    """`turns` of the subscription are the partitions whose ends are followed, with the same numbers."""

    def __init__(
        self, store: Store, subscription: Subscription, fetcher: Fetcher, config: ConsumerConfig
    ) -> None:
        self._store, self._subscription, self._fetcher = store, subscription, fetcher
        self._how = config.isolation_level == "read_committed", config.check_crcs
        self._last: LastRecords | None = None
        self._turns: list[tuple[TopicPartition, PartitionState]] | None = None
        self._nudges = self._publications = 0

    def begin(self) -> None:
        """Be called before each look for records: what is published from here on ends the next wait. Raises
        StoreClosedError, ForkedError.
        """
        self._publications = self._store.publications
        last, turns = self._last, self._subscription.turns
        if last is not None and self._turns is turns and last.followed.nudges() == self._nudges:
            return
        self._turns = self._last = None
        followed = self._store._follow([tp for tp, _ in turns]) if turns else None
        if followed is not None:
            self._last = LastRecords(followed, *self._how)
            self._nudges = followed.nudges()
            self._turns = turns

    @calls_out  # a signal's handler that comes here finds all at rest, and may close the consumer
    def wait(self, wait_ms: float) -> list[Given]:
        """Return the record that came, or nothing where the consumer must look at all partitions."""
        last = self._last
        if last is None or self._turns is not self._subscription.turns or self._subscription.unresolved:
            self._store.wait(self._publications, wait_ms)
            return []
        for each, (_, state) in enumerate(self._turns):
            last.expect(each, state.end)
        number = self._store._wait_for(last.followed, self._nudges, wait_ms / 1000)
        return self._came(last, number) if number >= 0 else []

    def _came(self, last: LastRecords, number: int) -> list[Given]:
        """Return the record that came at the end of a partition, if it was read, and the partition is still
        to be read there: a signal's handler may have changed that.
        """
        turns = self._subscription.turns
        if self._turns is not turns or self._store._context.closed:
            return []
        tp, state = turns[number]
        end = state.end
        if end is None or end.offset != state.position or not self._fetcher.takes_single(state):
            return []
        found = last.take(number, end)
        if found is None:
            return []
        record = last_record_of(tp, end.offset, found)
        state.end = found.end
        self._subscription.cursor = (number + 1) % len(turns)
        return [self._fetcher.took_single(tp, state, record, found)]
