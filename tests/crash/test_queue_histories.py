"""What `queue_histories` finds in histories of share groups, and what it lets pass, case by case."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from queue_events import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Answered,
    Asked,
    Ended,
    Event,
    Got,
    Granted,
    Released,
    TakenBack,
    Told,
    from_lines,
    to_line,
)
from queue_histories import Left, QueueHistory, Terms

PART = "t", 0
LOCK_MS = 1000


def grant(
    at: float, count: int = 1, member: str = "a", life: int = 1, token: int = 0, took: float = 0.01
) -> Granted:
    """Offset 5 is acquired."""
    return Granted(life, member, PART, [(5, 5, count)], token, at, at + took, LOCK_MS)


def ack(
    at: float, kind: int, member: str = "a", life: int = 1, error: str | None = "", call: int | None = None
) -> list[Event]:
    """Offset 5 is acknowledged; None: nobody knows how that ended."""
    number = int(at * 1000) if call is None else call
    asked = Asked(life, number, member, PART, [(5, 5, [kind])], at)
    return [asked] if error is None else [asked, Answered(life, number, PART, error, at + 0.01)]


KILLED = Ended(1, True, 9.0)
ACCEPTED: list[Event] = [grant(1), *ack(1.5, ACCEPT)]

SOUND: dict[str, list[Event]] = {
    "accepted": ACCEPTED,
    "rejected": [grant(1), *ack(1.5, REJECT)],
    "released": [grant(1), *ack(1.1, RELEASE), grant(1.2, 2, "b"), *ack(1.3, ACCEPT, "b")],
    "lock over": [grant(1), grant(2.0, 2, "b"), *ack(2.3, ACCEPT, "b")],
    "session over": [
        grant(1),
        Released(1, "a", [PART], 1.1, 1.3),
        grant(1.2, 2, "b"),
        *ack(1.5, ACCEPT, "b"),
    ],
    "renewed": [grant(1), *ack(1.9, RENEW), grant(2.91, 2, "b"), *ack(3, ACCEPT, "b")],
    "renewed too late, without effect": [
        grant(1),
        grant(2.1, 2, "b"),
        *ack(2.15, ACCEPT, "b"),
        *ack(2.2, RENEW),
    ],
    "taken back": [
        grant(1),
        TakenBack(1, PART, 0, 1.1, 1.15),
        grant(1.2, 1, "b", token=1),
        *ack(1.3, ACCEPT, "b"),
    ],
    "taken back behind a lock": [
        *(grant(1), TakenBack(1, PART, 0, 2.5, 2.6), grant(2.2, 2, "b", token=1)),
        *ack(2.3, ACCEPT, "b"),
    ],
    "taken back, granted to the same, and released": [
        *(grant(1), TakenBack(1, PART, 0, 1.1, 1.15), grant(1.2, token=1), *ack(1.3, RELEASE)),
        *(grant(1.4, 2, "b", token=2), *ack(1.5, ACCEPT, "b")),
    ],
    "limit reached": [grant(1), grant(2.1, 2), grant(3.2, 3)],
    "killed, and the count is repeated": [grant(8), KILLED, grant(9.5, 1, life=2), *ack(9.6, ACCEPT, life=2)],
    "killed behind a lock that ran out": [
        *(grant(6), grant(7.1, 2), grant(8.2, 3), KILLED, grant(9.5, 1, life=2)),
        *ack(9.6, ACCEPT, life=2),
    ],
    "killed before the answer, done": [grant(8), *ack(8.5, ACCEPT, error=None), KILLED],
    "killed before the answer, not done": [
        *(grant(8), *ack(8.5, ACCEPT, error=None), KILLED, grant(9.5, life=2)),
        *ack(9.6, ACCEPT, life=2),
    ],
    "refused, and accepted": [grant(1), *ack(1.1, ACCEPT, error="full"), *ack(1.2, ACCEPT)],
    "told": [*ACCEPTED, Got("c", PART, [(5, 1, "v")], 1.1), Told("c", PART, [5], "", 1.6)],
}

WRONG: dict[str, tuple[str, list[Event]]] = {
    "two at once": ("held twice", [grant(1), grant(1.5, 2, "b"), *ack(1.7, ACCEPT, "b")]),
    "two at once, calls overlap": (
        "held twice",
        [grant(1, took=0.5), grant(1.1, 2, "b"), *ack(1.7, ACCEPT, "b")],
    ),
    "the same member again": ("held twice", [grant(1), grant(1.5, 2), *ack(1.7, ACCEPT)]),
    "within a renewal": (
        "held twice",
        [grant(1), *ack(1.9, RENEW), grant(2.5, 2, "b"), *ack(2.6, ACCEPT, "b")],
    ),
    "a refused release ends nothing": (
        "held twice",
        [grant(1), *ack(1.1, RELEASE, error="full"), grant(1.5, 2, "b"), *ack(1.6, ACCEPT, "b")],
    ),
    "again": ("delivered again", [*ACCEPTED, grant(3, 2), *ack(3.1, ACCEPT)]),
    "again behind a crash": (
        "delivered again",
        [grant(1), *ack(1.5, REJECT), KILLED, grant(9.5, life=2), *ack(9.6, ACCEPT, life=2)],
    ),
    "not counted": ("count after 1 is 1", [grant(1), grant(2.1, 1, "b"), *ack(2.2, ACCEPT, "b")]),
    "counted twice": ("count after 1 is 3", [grant(1), grant(2.1, 3, "b"), *ack(2.2, ACCEPT, "b")]),
    "counted from 2": ("first delivery", [grant(1, 2), *ack(1.2, ACCEPT)]),
    "a release forgotten by a crash": (
        "count after 1 is 1",
        [grant(1), *ack(1.1, RELEASE), KILLED, grant(9.5, life=2), *ack(9.6, ACCEPT, life=2)],
    ),
    "counted though it was taken back": (
        "count after 1 is 2",
        [grant(1), TakenBack(1, PART, 0, 1.1, 1.15), grant(1.2, 2, "b", token=1), *ack(1.3, ACCEPT, "b")],
    ),
    "above the limit": ("above the limit", [grant(1), grant(2.1, 2), grant(3.2, 3), grant(4.3, 4)]),
    "never delivered": ("lost, never delivered", []),
    "taken back only": ("lost, never delivered", [grant(1), TakenBack(1, PART, 0, 1.1, 1.15)]),
    "not delivered again": ("lost", [grant(1)]),
    "not delivered again behind a release": ("lost", [grant(1), *ack(1.1, RELEASE)]),
    "taken for a gap": ("lost", [grant(1), *ack(1.1, GAP)]),
    "told too early": ("told too early", [*ACCEPTED, Told("c", PART, [5], "", 1.4)]),
    "told of nothing": ("told too early", [grant(1), Told("c", PART, [5], "", 1.4)]),
    "another value": ("strange value", [*ACCEPTED, Got("c", PART, [(5, 1, "w")], 1.1)]),
    "given to two": (
        "given to",
        [*ACCEPTED, Got("c", PART, [(5, 1, "v")], 1.1), Got("d", PART, [(5, 1, "v")], 1.1)],
    ),
    "given though taken back": (
        "given to",
        [*SOUND["taken back"], Got("c", PART, [(5, 1, "v")], 1.1), Got("d", PART, [(5, 1, "v")], 1.3)],
    ),
}


def found(
    events: Sequence[Event],
    letters: Sequence[tuple[int, str | None]] = (),
    terms: Terms = Terms(3, 3),  # noqa: B008 - immutable
    start: int = 0,
    visible: bool = True,
) -> list[str]:
    """What the judge finds, behind a way through the file."""
    read = from_lines(b"".join(map(to_line, events)))
    log = {PART: {5: "v"}}
    sent = {(PART, 5): list(letters)} if letters else {}
    return QueueHistory(
        read, Left(log, log if visible else {PART: {}}, {PART: start}, sent), terms
    ).anomalies()


@pytest.mark.parametrize("events", SOUND.values(), ids=SOUND)
def test_a_sound_history(events: list[Event]) -> None:
    assert found(events) == []


@pytest.mark.parametrize(("words", "events"), WRONG.values(), ids=WRONG)
def test_an_anomaly_is_found(words: str, events: list[Event]) -> None:
    anomalies = found(events)
    assert anomalies
    assert any(words in each for each in anomalies), anomalies


def test_records_below_the_log_start_may_be_gone() -> None:
    assert found([grant(1)], start=6) == []


def test_aborted_records_need_no_end_and_may_not_be_given() -> None:
    assert found([], visible=False) == []
    (anomaly,) = found([grant(1), Got("c", PART, [(5, 1, "v")], 1.1)], visible=False)
    assert "aborted" in anomaly


LETTERS = Terms(3, 3, has_letters=True, copies=True)
REJECTED: list[Event] = [grant(1), *ack(1.5, REJECT)]
AT_THE_LIMIT: list[Event] = [grant(1), grant(2.1, 2), grant(3.2, 3)]
SENT: dict[str, tuple[list[Event], list[tuple[int, str | None]], str]] = {
    "rejected": (REJECTED, [(1, "v")], ""),
    "rejected, gone before the copy": (REJECTED, [(1, None)], ""),
    "none": (REJECTED, [], "no dead letter"),
    "another value": (REJECTED, [(1, "w")], "dead letter x1 with w"),
    "another count": (REJECTED, [(2, "v")], "dead letter x2"),
    "twice without a crash": (REJECTED, [(1, "v"), (1, "v")], "2 dead letters"),
    "twice behind a crash": ([*REJECTED, KILLED], [(1, "v"), (1, "v")], ""),
    "at the limit": (AT_THE_LIMIT, [(3, "v")], ""),
    "none at the limit": (AT_THE_LIMIT, [], "no dead letter"),
    "accepted": (ACCEPTED, [(1, "v")], "accepted, and a dead letter"),
    "accepted too late": ([*AT_THE_LIMIT, *ack(4.5, ACCEPT)], [(3, "v")], ""),
}


@pytest.mark.parametrize(("events", "letters", "words"), SENT.values(), ids=SENT)
def test_dead_letters(events: list[Event], letters: list[tuple[int, str | None]], words: str) -> None:
    anomalies = found(events, letters, LETTERS)
    assert bool(anomalies) == bool(words)
    assert any(words in each for each in anomalies) or not words, anomalies


def test_a_group_without_a_topic_for_them_sends_no_dead_letters() -> None:
    (anomaly,) = found(REJECTED, [(1, None)])
    assert "sends none" in anomaly
