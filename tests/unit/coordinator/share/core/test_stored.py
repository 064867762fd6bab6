"""Durable states as they are loaded; rules by their numbers in docs/queues.md."""

from __future__ import annotations

import pytest
from share_queue import ACCEPT, Queue, log_of, stored

from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.stored import CorruptStateError, cut_above
from segstore.coordinator.share.core.values import Durable, StateBatch

CORRUPT: dict[str, Durable] = {
    "below the start": stored(5, (4, 6, 2, 1)),
    "wholly below the start": stored(5, (1, 3, 2, 1)),
    "overlapping": stored(0, (0, 4, 2, 1), (4, 6, 0, 1)),
    "out of order": stored(0, (5, 6, 2, 1), (0, 1, 0, 1)),
    "last below first": stored(0, (5, 4, 2, 1)),
    "acquired": stored(0, (0, 1, 1, 1)),
    "an unknown state": stored(0, (0, 1, 5, 1)),
    "a negative state": stored(0, (0, 1, -1, 1)),
    "a negative count": stored(0, (0, 1, 0, -1)),
    "batches without a start": stored(-1, (0, 1, 2, 1)),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_q61_a_state_that_contradicts_itself_is_refused(name: str) -> None:
    with pytest.raises(CorruptStateError, match="of a share partition's state"):
        SharePartition.load(CORRUPT[name], 0, 100)


# Durable state, log end, what is left.
CUTS: dict[str, tuple[Durable, int, Durable]] = {
    "nothing above": (stored(0, (0, 9, 2, 1)), 10, stored(0, (0, 9, 2, 1))),
    "a part": (stored(0, (0, 9, 2, 1)), 6, Durable(start=0, complete=6, batches=(StateBatch(0, 5, 2, 1),))),
    "whole batches": (
        stored(2, (2, 3, 0, 1), (5, 6, 4, 1), (8, 9, 2, 1)),
        5,
        Durable(start=2, complete=0, batches=(StateBatch(2, 3, 0, 1),)),
    ),
    "the start": (stored(8, (8, 9, 2, 1)), 5, Durable(start=5, complete=0)),
    "an empty log": (stored(8), 0, Durable(start=0, complete=0)),
    "no start": (Durable(), 0, Durable()),
}


@pytest.mark.parametrize("name", CUTS)
def test_q48_offsets_above_the_log_s_end_are_left_out(name: str) -> None:
    durable, log_end, left = CUTS[name]
    assert cut_above(durable, log_end) == left
    part = SharePartition.load(durable, 0, log_end)
    assert part.cut == (durable != left)
    assert (part.next_new, part.start) == SharePartition.load(left, 0, log_end).frozen()[1::-1]


def test_q48_records_that_are_appended_anew_are_delivered() -> None:
    """S13: the log has lost 6-9, of which all were accepted."""
    queue = Queue(4, 2, durable=stored(0, (0, 9, 2, 1)))
    assert (queue.part.cut, queue.part.start) == (True, 6)
    queue.log = log_of(4, 2, 4)
    assert queue.fetch() == ((6, 9, 1),)
    queue.ack("m", (6, 9, ACCEPT))
    assert queue.part.start == 10
