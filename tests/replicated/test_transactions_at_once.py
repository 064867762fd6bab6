"""A transaction over several partitions becomes visible in all of them at once, though their high watermarks
pass its markers one by one.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from replicated_stores import Directories, await_in_sync, states
from waiting import until

import segstore

LATE = {"replica_lag_time_max_ms": 60_000, "broker_session_timeout_ms": 60_000}
"""A directory that hangs stays in the ISR."""

pytestmark = [pytest.mark.hangs, pytest.mark.kind("replicated stores")]


class Committing:
    """A transaction with a record in each of two partitions: 0 on directories 0 and 1, and 1, which directory
    2 is to acknowledge too.
    """

    def __init__(self, three: Directories) -> None:
        self.files, self.path = three.files, three.paths[2]
        self.store = three.open(auto_leader_rebalance_enable=False, **LATE)
        self.store.create_topic("t", assignments={0: [0, 1], 1: [1, 2]})
        self.logs = [self.store.partition("t", number) for number in range(2)]
        self.producer = segstore.Producer(self.store, acks="all", transactional_id="x")
        self.producer.init_transactions()
        internal = [key for key in states(self.store) if key[0] == "__transaction_state"]
        self.store.reassign(dict.fromkeys(internal, (0, 1)))
        until(lambda: self.store.reassignments() == {})
        await_in_sync(self.store)
        self.producer.begin_transaction()
        for number in range(2):
            self.producer.send("t", b"x", partition=number)
        self.producer.flush()
        await_in_sync(self.store)
        self._thread: Any = None

    def end(self, commit: bool) -> None:
        """End the transaction in another thread, while directory 2 hangs."""
        self.files.hang(self.path)
        end = self.producer.commit_transaction if commit else self.producer.abort_transaction
        self._thread = threading.Thread(target=end)
        self._thread.start()

    def mend(self) -> None:
        self.files.mend()

    def join(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive()
        self.producer.close()

    def stable(self) -> list[bool]:
        """Whether the end is seen in each of the partitions, of which the first one is looked at first."""
        return [log.last_stable_offset == 2 for log in self.logs]


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_is_seen_when_the_last_partition_has_committed_it(three: Directories, commit: bool) -> None:
    """It was seen in partition 0 while partition 1 still waited for directory 2."""
    one = Committing(three)
    one.end(commit)
    until(lambda: one.logs[0].high_watermark == 2)
    assert one.logs[1].high_watermark == 1
    assert [log.last_stable_offset for log in one.logs] == [0, 0]
    assert len(one.logs[0].read(0, isolation_level="read_committed")) == 0
    assert one.logs[0].append(b"behind it", acks="all") == 2
    assert one.logs[0].high_watermark == 3
    assert [log.last_stable_offset for log in one.logs] == [0, 0]
    one.mend()
    one.join()
    assert [log.last_stable_offset for log in one.logs] == [3, 2]
    for log, more in zip(one.logs, ([b"behind it"], []), strict=True):
        seen = [record.value for record in log.read(0, isolation_level="read_committed")]
        assert seen == ([b"x"] if commit else []) + more


def test_no_reader_sees_it_in_one_partition_and_then_not_in_the_other(three: Directories) -> None:
    one = Committing(three)
    one.end(True)
    until(lambda: one.logs[0].high_watermark == 2)
    one.mend()
    seen = [False, False]
    while not all(seen):
        seen = one.stable()
        assert not (seen[0] and not seen[1])
        one.logs.reverse()
    one.join()


def test_a_partition_that_loses_its_leader_does_not_hold_the_other_up_for_ever(three: Directories) -> None:
    one = Committing(three)
    one.end(True)
    until(lambda: one.logs[0].high_watermark == 2)
    three.files.mend()
    three.files.fail(three.paths[1])  # where partition 1 leads
    until(lambda: one.logs[0].last_stable_offset == 2)
    one._thread.join(120)
    assert not one._thread.is_alive()
