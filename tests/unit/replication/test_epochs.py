"""R3, R4: the leader epochs of a log. unit/storage/test_offset_checkpoints.py has the file."""

from __future__ import annotations

import random

import pytest
from replication import NOW, brokers, log, state

from segstore.files import Files
from segstore.leader_epochs import UNDEFINED, EpochEnd, LeaderEpochCache
from segstore.replication.core.config import ReplicaConfig
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.partition import PartitionReplica
from segstore.storage.meta.offset_checkpoints import LeaderEpochs

KNOWN = ((2, 10), (4, 20), (7, 35))

ENDS = {
    "the latest ends with the log": (7, EpochEnd(7, 50)),
    "one that is known": (4, EpochEnd(4, 35)),
    "one between: the largest below": (5, EpochEnd(4, 35)),
    "one above all": (8, UNDEFINED),
    "one below all: itself, to the first start": (1, EpochEnd(1, 10)),
    "none": (-1, UNDEFINED),
}


@pytest.mark.parametrize("name", ENDS)
def test_r4_where_an_epoch_ends(name: str) -> None:
    epoch, end = ENDS[name]
    assert LeaderEpochCache(KNOWN).end_offset_for(epoch, 50) == end


def test_r4_of_no_epochs_nothing_is_known() -> None:
    assert LeaderEpochCache().end_offset_for(0, 50) == UNDEFINED


def test_r4_against_the_epochs_of_each_record(rng: random.Random) -> None:
    """The end of an epoch lies behind the last record of a smaller or equal one."""
    for _ in range(300):
        epochs = sorted(rng.choices(range(8), k=rng.randrange(1, 12)))
        cache = LeaderEpochCache((epoch, at) for at, epoch in enumerate(epochs))
        for asked in range(epochs[-1] + 1):
            below = [epoch for epoch in epochs if epoch <= asked]
            expected = (max(below, default=asked), len(below))
            assert cache.end_offset_for(asked, len(epochs)) == expected


def test_r3_there_is_one_implementation() -> None:
    assert issubclass(LeaderEpochs, LeaderEpochCache)
    assert {"assign", "end_offset_for", "truncate_from_end"} & set(vars(LeaderEpochs)) == set()


def test_r3_the_cache_of_the_storage_serves_both() -> None:
    """The engine tells it of the same appends and cuts as the core does."""
    epochs = LeaderEpochs(Files(), "f", [(1, 0)])
    part = PartitionReplica(0, ReplicaLog(epochs, 0, 9, 9), brokers(), ReplicaConfig())
    part.become(state(), NOW)
    epochs.assign(5, 9)
    assert epochs.entries == ((1, 0), (5, 9))
    epochs.truncate_from_end(4)
    part.log.truncated(4, 4)
    assert epochs.entries == ((1, 0),)
    assert part.copy().log.epochs.entries == ((1, 0),)


def test_r3_a_follower_takes_the_epochs_of_batches() -> None:
    of = log((1, 0), end=3)
    of.appended(9, ((1, 3), (3, 5), (4, 8), (6, 9)))
    assert of.epochs.entries == ((1, 0), (3, 5), (4, 8))
    assert of.end_offset == 9


CUT: dict[str, tuple[ReplicaLog, int, int, tuple[int, int, int, tuple[tuple[int, int], ...]]]] = {
    "below": (log((1, 0), (3, 5), end=9, shown=8), 4, 4, (0, 4, 4, ((1, 0),))),
    "within a batch": (log((1, 0), (3, 5), end=9, shown=8), 6, 5, (0, 5, 5, ((1, 0),))),
    "at the end: an epoch without records goes": (
        log((1, 0), (3, 9), end=9, shown=8), 9, 9, (0, 8, 9, ((1, 0),))),
    "above the end": (log((1, 0), (3, 9), end=9, shown=8), 12, 9, (0, 8, 9, ((1, 0),))),
    "below the start": (log((1, 3), start=3, end=9, shown=8), 2, 2, (2, 2, 2, ())),
}  # fmt: skip


@pytest.mark.parametrize("name", CUT)
def test_r5_truncation_takes_epochs_high_watermark_and_start_along(name: str) -> None:
    before, target, end, after = CUT[name]
    of = before.copy()
    of.truncated(target, end)
    assert (of.start_offset, of.high_watermark, of.end_offset, of.epochs.entries) == after


def test_r6_a_log_that_starts_over_is_empty() -> None:
    of = log((1, 0), (3, 5), end=9, shown=8)
    of.started_over(40)
    assert (of.start_offset, of.high_watermark, of.end_offset, of.epochs.entries) == (40, 40, 40, ())


def test_a_copy_shares_nothing() -> None:
    of = log((1, 0), end=9)
    made = of.copy()
    made.epochs.assign(2, 9)
    made.end_offset = 12
    assert (of.end_offset, of.epochs.entries) == (9, ((1, 0),))
