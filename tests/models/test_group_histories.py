"""The judge of group histories: it finds each anomaly, and none in a sound history."""

from __future__ import annotations

import pytest
from group_histories import Forwarded, GroupHistory
from histories import Ask, Commit, End, Event, Log, Poll, Send, Take, from_lines, to_line

pytestmark = pytest.mark.kind("models")

P, Q, A, B = ("t", 0), ("t", 1), ("a", 0), ("b", 0)
HOPS = {"a": 0b101, "b": 0b010}
LOOP: Log = {A: {0: "n/0#x", 2: "n/2#z"}, B: {0: "n/1#y"}}
THERE: Log = {P: {0: "a", 1: "b", 2: "c", 4: "d"}, Q: {0: "e"}, **LOOP}


def poll(member: str, generation: int, *records: tuple[int, str], owner: str = "", group: str = "g") -> Poll:
    return Poll(owner or f"{member}/{generation}", P, list(records), True, group, member, generation)


def read(part: tuple[str, int], *records: tuple[int, str]) -> Poll:
    return Poll("reader", part, list(records), True, whole=True)


SOUND: list[Event] = [
    *(Send("s", P, 0, "a", 0, "w"), Send("s", Q, 1, "e", 0, "w"), End("w", "asked"), End("w", "committed")),
    *(Take("r:m/1", P, "g"), poll("r:m", 1, (0, "a"), (1, "b"))),
    *(Ask(P, 2, "g", "r:m", 1), Commit(P, 2, "g", "r:m")),
    *(read(P, (0, "a"), (1, "b"), (2, "c")), read(Q, (0, "e"))),
    *(Take("r:n/2", P, "g"), poll("r:n", 2, (2, "c"), (4, "d")), Ask(P, 5, "g", "r:n", 2)),
    *(Ask(P, 2, "g", "r:m", 1), Commit(P, 5, "g", "r:n")),  # the first of these two is refused
    *(Take("q:m/1", P, "g"), poll("q:m", 1)),  # another process counts generations anew
]


def judged(
    events: list[Event], log: Log = THERE, end: int = 6, starts: dict[tuple[str, int], int] | None = None
) -> set[str]:
    history = GroupHistory(events, log, log, {"g": {P: end}}, starts or {}, HOPS)
    return {found.partition(":")[0] for found in history.anomalies()}


def test_a_sound_history() -> None:
    assert judged(SOUND) == set()
    assert from_lines(b"".join(map(to_line, SOUND)) + b"half a li") == SOUND


AGAIN = [Take("r:o/1", P, "h"), poll("r:o", 1, (0, "a"), (1, "b"), group="h"), Take("r:o/3", P, "h")]


def test_who_had_a_partition_last_may_go_on_where_it_was() -> None:
    there = poll("r:o", 3, (2, "c"), (4, "d"), group="h")
    assert judged([*SOUND, *AGAIN, there]) == set()
    between = [*AGAIN[:2], Take("r:p/2", P, "h"), poll("r:p", 2, (0, "a"), group="h"), AGAIN[2]]
    assert judged([*SOUND, *between, there]) == {"rebalance skip"}


def test_what_was_removed_is_not_missed_and_has_one_value() -> None:
    left = {**THERE, P: {2: "c", 4: "d"}}
    assert judged(SOUND, left, starts={P: 2}) == set()
    assert judged(SOUND, left) == {"lost write", "inconsistent offset"}
    other = Poll("other", P, [(0, "z")], True)
    assert judged([*SOUND, other], left, starts={P: 2}) == {"inconsistent offset"}


def test_a_transaction_that_is_open_holds_back_what_is_behind_it() -> None:
    """What is seen of a transaction in one partition may then not be seen in another one yet."""
    events = [
        *(Send("s", P, 0, "a", 0, "w"), Send("s", P, 1, "b", 1, "v"), Send("s", Q, 2, "e", 0, "v")),
        *(End("w", "asked"), End("v", "committed"), read(Q, (0, "e")), read(P)),
    ]
    assert judged(events, end=0) == set()
    events[0] = Send("s", P, 0, "a", 0)
    assert judged(events, end=0) == {"intermediate read (G1b)"}


BEHIND: dict[str, tuple[str, list[Event]]] = {
    "two members of one generation": ("shared partition", [poll("r:o", 2, owner="o")]),
    "a commit of an old generation": ("zombie commit", [Commit(P, 5, "g", "r:m")]),
    "a lower commit": ("commit goes back", [Ask(P, 4, "g", "r:n", 2), Commit(P, 4, "g", "r:n")]),
    "an acknowledged commit is gone": ("lost commit", [Ask(P, 7, "g", "r:n", 2), Commit(P, 7, "g", "r:n")]),
    "a new owner begins too early": (
        "rebalance rewind",
        [Take("o", P, "g"), poll("r:o", 3, (4, "d"), owner="o")],
    ),
    "a new owner leaves out": (
        "rebalance skip",
        [Take("o", P, "h"), poll("r:o", 3, (1, "b"), owner="o", group="h")],
    ),
    "a poll leaves out": ("poll skip", [Poll("o", P, [(0, "a"), (2, "c")], True)]),
    "a poll goes back": ("nonmonotonic poll", [Poll("r:n/2", P, [(2, "c")], True)]),
    "sends change places": ("nonmonotonic send", [Send("s", P, 1, "b", 1), Send("s", P, 2, "a", 0)]),
    "two records at one offset": ("duplicated offset", [Send("z", P, 0, "z", 0, "never ended")]),
    "an acknowledged record is gone": ("lost write", [Send("z", P, 0, "z", 3)]),
    "two values at one offset": ("inconsistent offset", [Poll("o", P, [(1, "z")], True)]),
    "a record of an aborted transaction": (
        "aborted read",
        [Send("z", P, 0, "f", 5, "y"), End("y", "aborted"), Poll("o", P, [(5, "f")], True)],
    ),
    "a record of an open transaction": ("precommitted read", [Send("z", P, 0, "c", 2, "y")]),
}  # fmt: skip


@pytest.mark.parametrize("name", BEHIND)
def test_each_anomaly_is_seen(name: str) -> None:
    anomaly, events = BEHIND[name]
    log = {**THERE, P: {**THERE[P], 5: "f"}} if anomaly == "aborted read" else THERE
    assert judged([*SOUND, *events], log, end=5) == {anomaly}


LOGS: dict[str, tuple[str, Log]] = {
    "a record that no member was given": ("unseen", {P: {**THERE[P], 5: "z"}}),
    "one value twice": ("duplicate", {Q: {0: "e", 1: "b"}}),
    "forwarded twice": ("not once", {B: {0: "n/1#y", 1: "n/1#v"}}),
    "not forwarded": ("not once", {B: {}}),
    "forwarded once too often": ("not once", {B: {0: "n/1#y", 1: "n/3#v"}}),
    "each of two has read the other's": ("circular information flow (G1c)", {A: {0: "n/0#y", 2: "n/2#y"}}),
    "three in a ring": (
        "circular information flow (G1c)",
        {
            A: {0: "n/0#x", 1: "n/2#z", 2: "m/0#z", 3: "m/2#x", 4: "o/0#y", 5: "o/2#x"},
            B: {0: "n/1#y", 1: "m/1#w", 2: "o/1#v"},
        },
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_each_anomaly_of_a_log_is_seen(name: str) -> None:
    anomaly, log = LOGS[name]
    assert judged(SOUND, {**THERE, **log}) == {anomaly}


def test_a_forwarded_value() -> None:
    assert Forwarded.parse("w0:feed-3/12#w0:exact1/1.2/a/0") == ("w0:feed-3", 12, "w0:exact1/1.2/a/0")
    assert str(Forwarded("n", 1, "x")) == "n/1#x"
