"""Promise: the end of a transaction that Ctrl-C has interrupted is seen in all of its partitions, or in none:
by readers of this process and of others, at once and after any later change of one of the partitions.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from producers import send
from struck import struck

import segstore
from segstore.mutex import Mutex
from segstore.storage.log.transaction_markers import end_transaction

# A generator that is dropped is ended where an exception is told and passed over.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.kind("interrupts"),
]


def seen_at_one_moment(logs: list[segstore.PartitionLog], begun: list[int]) -> set[bool]:
    """In which of the partitions the end is seen. A segment that was rolled is flushed in the background, and
    that publishes what an interrupt kept from being published: perhaps between the looks at two partitions.
    """
    before: list[bool] = []
    while True:
        now = [log.last_stable_offset > at for log, at in zip(logs, begun, strict=True)]
        if now == before:
            return set(now)
        before = now


class Ending:
    """A transaction over two partitions, whose end is struck, again and again."""

    def __init__(self, store: segstore.Store, reader: segstore.Store, commit: bool) -> None:
        self.logs = [store.partition("t", n) for n in range(2)]
        self.others = [reader.partition("t", n) for n in range(2)]
        self.commit, self.number = commit, 0
        self.seen = {"here": 0, "elsewhere": 0, "none": 0}

    def strike(self, *places: int) -> int:
        """How many interrupts came."""
        begun = [log.end_offset for log in self.logs]
        for log in self.logs:
            send(log, 1, self.number, 1, txn=True)
        self.number += 1
        end = partial(end_transaction, self.logs, 1, 0, 0, self.commit)
        raised = struck(end, *places)
        self._check(begun, places)
        alone = self.number % 2  # the one to which something else comes
        self.logs[alone].append(b"alone")
        self._check(begun, places)
        self.logs[alone].flush()
        self._check(begun, places)
        end()
        for logs in (self.logs, self.others):
            assert [log.last_stable_offset for log in logs] == [log.end_offset for log in self.logs], places
        return raised

    def _check(self, begun: list[int], places: tuple[int, ...]) -> None:
        here, elsewhere = (seen_at_one_moment(logs, begun) for logs in (self.logs, self.others))
        assert len(here) == len(elsewhere) == 1, (places, here, elsewhere)
        self.seen["elsewhere" if True in elsewhere else "here" if True in here else "none"] += 1


@pytest.mark.parametrize("commit", [True, False])
def test_at_each_place(store_dir: Path, rng: random.Random, commit: bool) -> None:
    """One, and one more while that is dealt with."""
    with segstore.open(store_dir) as store, segstore.open(store_dir, "r") as reader:
        store.create_topic("t", 2, config={"segment.bytes": 5000})
        ending = Ending(store, reader, commit)
        first, raised = 0, 1
        while raised:
            first += rng.randint(1, 9)
            raised = ending.strike(first)
            ending.strike(first, rng.randint(1, 40))
        assert first > 300
        assert all(ending.seen.values()), ending.seen


class Late(Mutex):
    """A lock that is asked for before a transaction's end, struck at `place`, and taken behind it."""

    def __init__(self, ending: Ending) -> None:
        super().__init__()
        self.ending, self.place, self.raised = ending, 0, 0

    def __enter__(self) -> bool:
        place, self.place = self.place, 0
        if place:
            self.raised = struck(partial(end_transaction, self.ending.logs, 1, 0, 0, True), place)
        return super().__enter__()


def test_a_flush_in_another_thread_does_not_tell_of_one_partition_alone(store_dir: Path) -> None:
    """It waits to publish the partition's recovery point while the interrupt comes."""
    with segstore.open(store_dir) as store, segstore.open(store_dir, "r") as reader:
        store.create_topic("t", 2)
        ending = Ending(store, reader, commit=True)
        visible = ending.logs[0].partition_for_write().visible
        late = visible.publishing = Late(ending)
        place = late.raised = 1
        while late.raised:
            begun = [log.end_offset for log in ending.logs]
            for log in ending.logs:
                send(log, 1, place, 1, txn=True)
            late.place = place
            visible.publish()
            ending._check(begun, (place,))
            end_transaction(ending.logs, 1, 0, 0, True)
            place += 1
        assert place > 100
        assert ending.seen["elsewhere"]
        assert ending.seen["none"]


def test_a_delete_that_is_asked_for_again_is_told_to_others(store_dir: Path) -> None:
    """The start that an interrupted one had shown here was published nowhere: behind a kill, the next open
    took the old one, which keeps more records.
    """
    with segstore.open(store_dir) as store, segstore.open(store_dir, "r") as reader:
        store.create_topic("t")
        log, elsewhere = store.partition("t"), reader.partition("t")
        place, raised = 0, 1
        while raised:
            place += 1
            log.append_batch([b"value"] * 2)
            start = log.end_offset - 1
            raised = struck(partial(log.delete_records, start), place)
            log.delete_records(start)
            assert elsewhere.start_offset == start, place
        assert place > 50
