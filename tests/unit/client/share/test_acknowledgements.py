"""What the application says of records: which notes are taken, in which batches they are sent, and what
becomes of them where a send is interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from consumers import tp
from share_consumers import ACCEPT, REJECT, RELEASE, RENEW

from segstore.client.consumer.records import DeliveredRecord
from segstore.client.share.acknowledgements import Acknowledgements, HeldRecords, batches
from segstore.client.share.deliveries import At
from segstore.coordinator.share.core.values import AckBatch, AcknowledgeType
from segstore.errors import (
    IllegalStateError,
    InvalidArgumentError,
    InvalidRecordStateError,
    InvalidTypeError,
    SegstoreError,
)

AT, OTHER = ("id", 0), ("id", 1)


def record(offset: int, partition: int = 0) -> DeliveredRecord:
    return DeliveredRecord("t", partition, 0, offset, 0, 0, None, b"", [], None, -1, 0, -1, 1)


class Taker:
    """Takes acknowledgements as a coordinator does. `errors` by partition; `strikes` raises once, when the
    next ones are taken, before or after.
    """

    def __init__(self) -> None:
        self.taken: list[dict[At, list[AckBatch]]] = []
        self.errors: dict[At, SegstoreError] = {}
        self.strikes = ""

    def __call__(self, acks: Mapping[At, Sequence[AckBatch]]) -> dict[At, SegstoreError | None]:
        strikes, self.strikes = self.strikes, ""
        if strikes == "before":
            raise KeyboardInterrupt
        self.taken.append({at: list(each) for at, each in acks.items()})
        if strikes == "after":
            raise KeyboardInterrupt
        return {at: self.errors.get(at) for at in acks}


@pytest.fixture
def taker() -> Taker:
    return Taker()


@pytest.fixture
def acks(taker: Taker) -> Acknowledgements:
    """With records 0 to 9 of two partitions in the application's hands."""
    made = Acknowledgements(taker, lambda: 30_000.0)
    for partition, at in enumerate((AT, OTHER)):
        held = {offset: record(offset, partition) for offset in range(10)}
        made.held[tp(partition)] = HeldRecords(at, dict(held), 1e12)
    return made


BATCHES: dict[str, tuple[dict[int, AcknowledgeType], list[AckBatch]]] = {
    "one": ({5: ACCEPT}, [AckBatch(5, 5, [ACCEPT])]),
    "neighbours that are alike": ({1: ACCEPT, 2: ACCEPT, 3: ACCEPT}, [AckBatch(1, 3, [ACCEPT])]),
    "in another order": ({3: ACCEPT, 1: ACCEPT, 2: ACCEPT}, [AckBatch(1, 3, [ACCEPT])]),
    "neighbours that differ": ({1: ACCEPT, 2: RELEASE}, [AckBatch(1, 2, [ACCEPT, RELEASE])]),
    "a hole": ({1: ACCEPT, 3: ACCEPT}, [AckBatch(1, 1, [ACCEPT]), AckBatch(3, 3, [ACCEPT])]),
    "holes and types": (
        {9: RENEW, 1: REJECT, 2: REJECT, 5: ACCEPT, 6: RELEASE},
        [AckBatch(1, 2, [REJECT]), AckBatch(5, 6, [ACCEPT, RELEASE]), AckBatch(9, 9, [RENEW])],
    ),
}


@pytest.mark.parametrize(("notes", "expected"), BATCHES.values(), ids=BATCHES)
def test_notes_become_batches_that_rise(notes: dict[int, int], expected: list[AckBatch]) -> None:
    assert batches(notes) == expected


def test_q1_only_records_of_the_last_poll_are_acknowledged(acks: Acknowledgements) -> None:
    for topic, partition, offset in (("t", 0, 10), ("t", 2, 0), ("u", 0, 0)):
        with pytest.raises(IllegalStateError, match=f"{topic}-{partition}, offset {offset}"):
            acks.note(topic, partition, offset, ACCEPT)


def test_q1_all_records_must_be_acknowledged(acks: Acknowledgements) -> None:
    for partition in (0, 1):
        for offset in range(10):
            assert acks.has_unacknowledged
            acks.note("t", partition, offset, ACCEPT)
    assert not acks.has_unacknowledged


def test_q2_a_note_may_be_changed_until_it_is_sent(acks: Acknowledgements, taker: Taker) -> None:
    acks.note("t", 0, 3, ACCEPT)
    acks.note("t", 0, 3, REJECT)
    assert taker.taken == []
    assert acks.send() == {tp(0): None}
    assert taker.taken == [{AT: [AckBatch(3, 3, [REJECT])]}]
    with pytest.raises(IllegalStateError, match="was sent already"):
        acks.note("t", 0, 3, ACCEPT)
    assert acks.send() == {}


WRONG: dict[str, tuple[Any, type[Exception]]] = {
    "a gap": (AcknowledgeType.GAP, InvalidArgumentError),
    "a number of no type": (5, InvalidArgumentError),
    "a bool": (True, InvalidTypeError),
    "a name": ("ACCEPT", InvalidTypeError),
    "nothing": (None, InvalidTypeError),
}


@pytest.mark.parametrize(("kind", "error"), WRONG.values(), ids=WRONG)
def test_other_types_are_refused(acks: Acknowledgements, kind: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="type"):
        acks.note("t", 0, 0, kind)
    assert acks.send() == {}


def test_a_number_is_a_type(acks: Acknowledgements, taker: Taker) -> None:
    acks.note("t", 0, 0, 2)
    acks.send()
    assert taker.taken == [{AT: [AckBatch(0, 0, [RELEASE])]}]


def test_q3_renewed_records_wait_for_the_next_poll(acks: Acknowledgements) -> None:
    acks.note("t", 0, 1, RENEW)
    acks.note("t", 0, 2, ACCEPT)
    acks.note("t", 0, 4, RENEW)
    acks.send()
    (made,) = acks.renewed
    assert (made.tp, [each.offset for each in made.records]) == (tp(0), [1, 4])


def test_q3_a_refused_renewal_brings_nothing_back(acks: Acknowledgements, taker: Taker) -> None:
    taker.errors[AT] = error = InvalidRecordStateError("gone")
    acks.note("t", 0, 1, RENEW)
    assert acks.send() == {tp(0): error}
    assert not acks.renewed


def test_q4_errors_are_by_partition(acks: Acknowledgements, taker: Taker) -> None:
    taker.errors[OTHER] = error = InvalidRecordStateError("gone")
    acks.note_all()
    assert acks.send() == {tp(0): None, tp(1): error}
    assert (acks.sent, acks.failed) == (10, 10)


def test_q4_the_callback_gets_the_offsets_that_were_sent(acks: Acknowledgements, taker: Taker) -> None:
    told: list[Any] = []
    acks.callback = lambda offsets, error: told.append((offsets, repr(error)))
    taker.errors[OTHER] = InvalidRecordStateError("gone")
    for partition, offset in ((0, 1), (0, 5), (1, 2)):
        acks.note("t", partition, offset, ACCEPT)
    acks.send()
    assert told == []
    acks.run_callbacks()
    assert told == [({tp(0): {1, 5}}, "None"), ({tp(1): {2}}, "InvalidRecordStateError('gone')")]


def test_what_a_callback_raises_leaves_the_others_for_the_next_time(acks: Acknowledgements) -> None:
    told: list[Any] = []

    def callback(offsets: Any, error: Any) -> None:
        told.append(offsets)
        if len(told) == 1:
            raise ZeroDivisionError

    acks.callback = callback
    acks.note_all()
    acks.send()
    with pytest.raises(ZeroDivisionError):
        acks.run_callbacks()
    assert not acks.is_calling_back
    acks.run_callbacks()
    assert [*map(list, told)] == [[tp(0)], [tp(1)]]


@pytest.mark.parametrize("when", ["before", "after"])
def test_q8_what_an_interrupt_leaves_is_sent_again_apart(
    acks: Acknowledgements, taker: Taker, when: str
) -> None:
    acks.note("t", 0, 1, ACCEPT)
    taker.strikes = when
    with pytest.raises(KeyboardInterrupt):
        acks.send()
    acks.note("t", 0, 2, ACCEPT)
    acks.send()
    again, new = {AT: [AckBatch(1, 1, [ACCEPT])]}, {AT: [AckBatch(2, 2, [ACCEPT])]}
    assert taker.taken == ([again] if when == "after" else []) + [again, new]
    assert acks.send() == {}


def test_implicit_notes_leave_others_alone(acks: Acknowledgements, taker: Taker) -> None:
    acks.note("t", 0, 1, RELEASE)
    acks.note_all()
    acks.send()
    assert taker.taken[0][AT] == [AckBatch(0, 9, [ACCEPT, RELEASE, *[ACCEPT] * 8])]
    assert acks.held == {}


def test_what_is_given_back_has_no_notes(acks: Acknowledgements, taker: Taker) -> None:
    acks.note("t", 0, 1, ACCEPT)
    first, second = acks.give_back()
    assert [each.offset for each in first.records] == [0, *range(2, 10)]
    assert [each.offset for each in second.records] == [*range(10)]
    acks.send()
    assert taker.taken == [{AT: [AckBatch(1, 1, [ACCEPT])]}]


def test_a_record_that_could_not_be_made_is_known(acks: Acknowledgements) -> None:
    held = acks.hold(tp(0), AT, 20, None, 5.0)
    held.notes[20] = RELEASE
    assert acks.is_failed("t", 0, 20)
    assert [acks.is_failed("t", *place) for place in ((0, 1), (0, 21), (2, 0))] == [False] * 3
    assert held.until == 5.0
