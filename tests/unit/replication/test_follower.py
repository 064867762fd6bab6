"""R7, R8, R10 to R13, R36: what a follower asks, and what it does with the answer."""

from __future__ import annotations

import pytest
from replication import NOW, brokers, following, leading, log, state

from segstore.errors import OffsetOutOfRangeError
from segstore.leader_epochs import EpochEnd
from segstore.replication.core.config import ReplicaConfig
from segstore.replication.core.effects import (
    Append,
    GoOnAt,
    SetHighWatermark,
    SetLogStartOffset,
    Truncate,
    TruncateFullyAndStartAt,
)
from segstore.replication.core.follower import Follower
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.messages import FetchAnswer, FetchedSpan, FetchRequest
from segstore.replication.core.partition import PartitionReplica


def test_r8_a_fetch_says_where_the_log_ends_and_under_which_epoch() -> None:
    _, follower = following(log((1, 0), (3, 5), start=2, end=9))
    assert follower.fetch(71) == FetchRequest(1, 71, 5, 9, 3, 2)
    _, empty = following(log())
    assert empty.fetch(71) == FetchRequest(1, 71, 5, 0, -1, 0)


def test_r7_a_follower_gives_itself_no_epoch() -> None:
    part, follower = following(log((1, 0), end=9))
    follower.on_append(12, FetchAnswer(None, 0, 0, 12), FetchedSpan(12, ((1, 9),)))
    assert part.log.epochs.entries == ((1, 0),)


TRUNCATED = {
    "the leader's end of a known epoch": (((1, 0), (3, 5)), EpochEnd(3, 7), 7),
    "its own end of that epoch, if lower": (((1, 0), (3, 5), (4, 6)), EpochEnd(3, 8), 6),
    "the leader's end beyond its own log": (((1, 0), (3, 5)), EpochEnd(3, 12), 9),
    "the leader's epoch is not known: its largest below, and it asks again": (
        ((1, 0), (4, 5)), EpochEnd(3, 8), 5),
    "the leader's epoch is below all": (((3, 5), (4, 6)), EpochEnd(1, 4), 4),
    "no epoch is known": ((), EpochEnd(3, 7), 7),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUNCATED)
def test_r10_where_a_diverging_log_is_cut(name: str) -> None:
    epochs, diverging, cut = TRUNCATED[name]
    _, follower = following(log(*epochs, end=9, shown=9))
    answer = FetchAnswer(diverging, 100, 4, 200)
    assert follower.on_answer(follower.fetch(71), answer, None) == (Truncate(cut),)


def test_r10_after_the_cut_the_next_fetch_asks_again() -> None:
    part, follower = following(log((1, 0), (4, 5), end=9, shown=2))
    part.log.truncated(5, 5)
    assert follower.fetch(71) == FetchRequest(1, 71, 5, 5, 1, 0)
    assert part.log.high_watermark == 2


def test_r10_a_diverging_answer_moves_neither_high_watermark_nor_start() -> None:
    part, follower = following(log((1, 0), end=9, shown=3))
    follower.on_answer(follower.fetch(71), FetchAnswer(EpochEnd(1, 8), 7, 5, 20), None)
    assert (part.log.start_offset, part.log.high_watermark) == (0, 3)


def _appended(part: PartitionReplica) -> None:
    part.log.appended(10, ((1, 9),))


def _truncated(part: PartitionReplica) -> None:
    part.log.truncated(8, 8)


STALE = {
    "appended since": _appended,
    "truncated since": _truncated,
    "another epoch": lambda part: part.become(state(leader_epoch=6, partition_epoch=11), NOW),
    "another epoch and leader": lambda part: part.become(
        state(leader=2, leader_epoch=6, partition_epoch=11), NOW),
}  # fmt: skip


@pytest.mark.parametrize("name", STALE)
def test_r11_an_answer_to_what_is_no_longer_asked_changes_nothing(name: str) -> None:
    part, follower = following(log((1, 0), end=9, shown=9))
    request = follower.fetch(71)
    STALE[name](part)
    now = part.role
    assert isinstance(now, Follower)
    assert now.on_answer(request, FetchAnswer(None, 9, 0, 20), FetchedSpan(12, ((1, 9),))) == ()
    assert now.on_answer(request, FetchAnswer(EpochEnd(0, 0), 9, 0, 20), None) == ()
    assert now.on_out_of_range(request, 0, 3) == ()


LATER = {
    "none is later": (((3, 9), (5, 11)), (Append(12),)),
    "the last ones are": (((5, 9), (6, 11)), (Append(11),)),
    "all are": (((6, 9),), ()),
    "all are, and the leader's log has a gap before them": (((6, 11),), ()),
}


@pytest.mark.parametrize("name", LATER)
def test_r11_batches_of_a_later_epoch_are_not_appended(name: str) -> None:
    epochs, effects = LATER[name]
    _, follower = following(log((1, 0), end=9))
    answer = FetchAnswer(None, 0, 0, 12)
    assert follower.on_answer(follower.fetch(71), answer, FetchedSpan(12, epochs)) == effects


RANGES = {
    "the leader ends below: cut there": ((0, 4), (Truncate(4),)),
    "the leader starts above: start over": ((20, 30), (TruncateFullyAndStartAt(20),)),
    "the leader starts where this log ends": ((9, 30), ()),
    "it is in range now": ((0, 30), ()),
}


@pytest.mark.parametrize("name", RANGES)
def test_r12_out_of_range(name: str) -> None:
    offsets, effects = RANGES[name]
    _, follower = following(log((1, 0), end=9))
    assert follower.on_out_of_range(follower.fetch(71), *offsets) == effects


def test_r12_a_log_that_started_over_fetches_from_there() -> None:
    part, follower = following(log((1, 0), end=9))
    part.log.started_over(20)
    assert follower.fetch(71) == FetchRequest(1, 71, 5, 20, -1, 20)


KEPT_UP = {
    "up to its own end": ((12, 0), (SetHighWatermark(10),), (0, 10)),
    "back": ((4, 0), (SetHighWatermark(4),), (0, 4)),
    "the start follows": ((8, 5), (SetHighWatermark(8), SetLogStartOffset(5)), (5, 8)),
    "the start stays at the high watermark": ((4, 9), (SetHighWatermark(4), SetLogStartOffset(4)), (4, 4)),
    "nothing is new": ((6, 0), (), (0, 6)),
}


@pytest.mark.parametrize("name", KEPT_UP)
def test_r13_after_the_append_the_high_watermark_then_the_start(name: str) -> None:
    (shown, start), effects, after = KEPT_UP[name]
    part, follower = following(log((1, 0), end=9, shown=6))
    answer = FetchAnswer(None, shown, start, 30)
    assert follower.on_append(10, answer, FetchedSpan(10, ((1, 9),))) == effects
    assert (part.log.start_offset, part.log.high_watermark, part.log.end_offset) == (*after, 10)


def test_r13_an_answer_without_records_moves_the_high_watermark_too() -> None:
    _, follower = following(log((1, 0), end=9, shown=6))
    assert follower.on_answer(follower.fetch(71), FetchAnswer(None, 9, 0, 9), None) == (SetHighWatermark(9),)


def test_r13_the_start_never_goes_back() -> None:
    part, follower = following(log((1, 3), start=3, end=9, shown=6))
    assert follower.on_answer(follower.fetch(71), FetchAnswer(None, 1, 0, 9), None) == (SetHighWatermark(3),)
    assert part.log.start_offset == 3


def test_r41_a_log_ends_where_its_leaders_does_that_has_no_batch_before() -> None:
    part, follower = following(log((1, 0), end=9, shown=6))
    request, answer = follower.fetch(71), FetchAnswer(None, 60, 0, 60)
    effect = follower.on_nothing(request, answer)
    assert effect == GoOnAt(60, 5)
    assert part.log.end_offset == 9, "it is not done yet"
    assert follower.on_gone_on(effect, answer) == (SetHighWatermark(60),)
    assert follower.fetch(71) == FetchRequest(1, 71, 5, 60, 5, 0)


def test_r41_the_high_watermark_may_lie_in_the_gap() -> None:
    part, follower = following(log((1, 0), end=9, shown=6))
    assert follower.on_gone_on(GoOnAt(60, 5), FetchAnswer(None, 9, 0, 60)) == (SetHighWatermark(9),)
    assert (part.log.high_watermark, part.log.end_offset) == (9, 60)


@pytest.mark.parametrize("name", STALE)
def test_r41_what_is_no_longer_asked_makes_no_gap(name: str) -> None:
    part, follower = following(log((1, 0), end=9, shown=9))
    request = follower.fetch(71)
    STALE[name](part)
    assert isinstance(part.role, Follower)
    assert part.role.on_nothing(request, FetchAnswer(None, 9, 0, 60)) is None


BEFORE_A_GAP = {
    "the epoch before": log((3, 0), end=9),
    "an empty log": log(),
    "a record of an epoch that the leader never had": log((3, 0), (4, 9), end=10),
    "an epoch of which the leader has nothing left": log((2, 0), (4, 6), end=12),
}


@pytest.mark.parametrize("name", BEFORE_A_GAP)
@pytest.mark.parametrize("epochs", [((3, 0),), ((2, 0), (3, 7), (4, 20)), ()], ids=str)
def test_r41_behind_a_gap_no_log_diverges(name: str, epochs: tuple[tuple[int, int], ...]) -> None:
    """Of the leader's epochs below its own the records may be gone: where the follower's last epoch ends in
    the leader's log, the follower would have to be cut again and again.
    """
    led, _ = leading(log(*epochs, end=60, shown=60))
    part, follower = following(BEFORE_A_GAP[name].copy())
    for _ in range(5):
        request = follower.fetch(71)
        try:
            answer, _ = led.on_fetch(request, NOW)
        except OffsetOutOfRangeError:
            (cut,) = follower.on_out_of_range(request, 0, 60) or (Truncate(0),)
            assert isinstance(cut, Truncate)
            part.log.truncated(cut.offset, min(cut.offset, part.log.end_offset))
            continue
        if answer.diverging is not None:
            (cut,) = follower.on_answer(request, answer, None)
            assert isinstance(cut, Truncate)
            part.log.truncated(cut.offset, min(cut.offset, 9, part.log.end_offset))
            continue
        if (effect := follower.on_nothing(request, answer)) is not None:
            follower.on_gone_on(effect, answer)
    assert (part.log.end_offset, part.log.high_watermark, part.log.epochs.current) == (60, 60, 5)
    assert led.leader.remotes[1].end_offset == 60


WITHOUT_EPOCHS = {
    "is cut at the high watermark": (log(end=9, shown=6), (Truncate(6),)),
    "nothing to cut": (log(end=9, shown=9), ()),
    "with epochs it is not": (log((1, 0), end=9, shown=6), ()),
}


@pytest.mark.parametrize("name", WITHOUT_EPOCHS)
def test_r36_a_log_without_epochs(name: str) -> None:
    of, effects = WITHOUT_EPOCHS[name]
    part = PartitionReplica(1, of.copy(), brokers(), ReplicaConfig())
    assert part.become(state(), NOW) == effects


def test_r36_the_checkpoint_of_the_high_watermark_is_a_hint() -> None:
    assert ReplicaLog(log((1, 0)).epochs, 3, 9, 20).high_watermark == 9
    assert ReplicaLog(log((1, 0)).epochs, 3, 9, 0).high_watermark == 3
