"""Share sessions; rules by their numbers in docs/queues.md."""

from __future__ import annotations

from typing import Any

import pytest

from segstore.coordinator.share.core.sessions import LAST, SharedResult, ShareSession, ShareSessions
from segstore.errors import (
    InvalidRequestError,
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)

NOTHING, RECORDS, ERROR = SharedResult(), SharedResult(has_records=True), SharedResult(has_error=True)
ACKNOWLEDGED = SharedResult(acknowledged=True)


def opened(sessions: ShareSessions[str], member: str = "m", connection: int = 1) -> ShareSession[str]:
    return sessions.fetch("g", member, 0, connection, acknowledges=False)


def test_q88_no_more_sessions_than_the_limit() -> None:
    sessions: ShareSessions[str] = ShareSessions(2)
    first = opened(sessions)
    opened(sessions, "n")
    with pytest.raises(ShareSessionLimitReachedError, match="2 share sessions"):
        opened(sessions, "o")
    assert sessions.is_current(first), "none is evicted"
    assert opened(sessions) is not first, "one that is replaced is not counted"
    sessions.fetch("g", "n", -1, 1, acknowledges=False)
    opened(sessions, "o")
    assert len(sessions) == 2


def test_q88_a_session_is_of_one_member_of_one_group() -> None:
    sessions: ShareSessions[str] = ShareSessions(9)
    opened(sessions)
    with pytest.raises(ShareSessionNotFoundError):
        sessions.fetch("other", "m", 1, 1, acknowledges=False)


def test_q89_epochs_rise_with_each_request() -> None:
    sessions: ShareSessions[str] = ShareSessions(9)
    session = opened(sessions)
    for epoch in (1, 2, 3):
        assert sessions.fetch("g", "m", epoch, 1, acknowledges=epoch == 2) is session
    assert sessions.acknowledge("g", "m", 4) is session
    session.next_epoch = LAST
    sessions.fetch("g", "m", LAST, 1, acknowledges=False)
    assert session.next_epoch == 1


@pytest.mark.parametrize("epoch", [0, 1, 3, LAST, -2])
@pytest.mark.parametrize("how", ["fetch", "acknowledge"])
def test_q89_another_epoch_is_refused_and_the_session_stays(how: str, epoch: int) -> None:
    sessions: ShareSessions[str] = ShareSessions(9)
    session = opened(sessions)
    sessions.fetch("g", "m", 1, 1, acknowledges=False)
    call: Any = sessions.acknowledge if how == "acknowledge" else sessions.fetch
    more = () if how == "acknowledge" else (1, True)
    with pytest.raises(InvalidRequestError if more and epoch == 0 else InvalidShareSessionEpochError):
        call("g", "m", epoch, *more)
    assert sessions.is_current(session)
    assert session.next_epoch == 2


@pytest.mark.parametrize("epoch", [1, -1])
def test_q89_without_a_session(epoch: int) -> None:
    sessions: ShareSessions[str] = ShareSessions(9)
    with pytest.raises(ShareSessionNotFoundError, match="member m of group g"):
        sessions.fetch("g", "m", epoch, 1, acknowledges=False)
    with pytest.raises(ShareSessionNotFoundError):
        sessions.acknowledge("g", "m", epoch)


def test_q89_the_final_epoch_ends_a_session_whatever_its_next_one_is() -> None:
    sessions: ShareSessions[str] = ShareSessions(9)
    session = opened(sessions)
    assert sessions.fetch("g", "m", -1, 1, acknowledges=True) is session
    assert not sessions.is_current(session)
    assert sessions.disconnected(1) == []


def test_q90_partitions_are_added_and_forgotten() -> None:
    session = opened(ShareSessions(9))
    session.change(["a", "b"], [])
    session.change(["c", "a"], ["b", "x"])
    assert session.in_turn(0) == ["a", "c"]
    assert ("a" in session, "b" in session, len(session)) == (True, False, 2)
    session.change(["b"], ["b"])
    assert "b" not in session, "named for its acknowledgements, and forgotten"


def test_q91_later_answers_have_what_is_worth_telling() -> None:
    session = opened(ShareSessions(9))
    session.change("abcd", [])
    assert session.answered(dict.fromkeys("abcd", NOTHING)) == ["a", "b", "c", "d"]
    session.change("e", [])
    results = {"a": NOTHING, "b": RECORDS, "c": ERROR, "d": ACKNOWLEDGED, "e": NOTHING, "f": ACKNOWLEDGED}
    assert session.answered(results) == ["b", "c", "d", "e", "f"]
    assert session.answered(dict.fromkeys("abcde", NOTHING)) == ["c"], "its error is over"
    assert session.answered(dict.fromkeys("abcde", NOTHING)) == []


def test_q27_each_partition_is_the_first_in_turn() -> None:
    session = opened(ShareSessions(9))
    assert session.in_turn(3) == []
    session.change("abc", [])
    assert ["".join(session.in_turn(epoch)) for epoch in range(5)] == ["abc", "bca", "cab", "abc", "bca"]


def test_q93_all_sessions_of_a_connection_end_with_it() -> None:
    sessions: ShareSessions[str] = ShareSessions(9)
    first, second, other = opened(sessions), opened(sessions, "n"), opened(sessions, "o", connection=2)
    first.change("ab", [])
    assert sessions.partitions() == 2
    sessions.fetch("g", "n", -1, 1, acknowledges=False)
    opened(sessions, "p")
    assert {each.member for each in sessions.disconnected(1)} == {"m", "p"}
    assert [sessions.is_current(each) for each in (first, second, other)] == [False, False, True]
    assert sessions.disconnected(1) == []


def test_q93_a_session_that_moved_to_another_connection_outlives_the_old_one() -> None:
    sessions: ShareSessions[str] = ShareSessions(9)
    old = opened(sessions)
    new = opened(sessions, connection=2)
    assert sessions.disconnected(1) == []
    assert [sessions.is_current(each) for each in (old, new)] == [False, True]
    assert sessions.get("g", "m") is new
