"""Members of consumer groups (KIP-848) that subscribe by regular expressions."""

from __future__ import annotations

import re
import sys

import pytest
from consumer_groups import clock as clock
from consumer_groups import found as found
from consumer_groups import joined, settle
from consumer_groups import store as store
from group_members import Classic, Member, id_of
from groups import offsets

import segstore
from segstore.coordinator import linear_pattern
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.consumer_schema import GroupRecordType, RecordKey
from segstore.errors import InvalidRegularExpressionError


def test_members_subscribe_by_regular_expressions(store: segstore.Store, found: GroupCoordinator) -> None:
    store.create_topic("t2", 2)
    (a,) = joined(store, "a", topic_names=(), topic_regex="t[0-9]|x.*")
    assert a.given == {id_of(store, "t2"): {0, 1}}
    store.create_topic("x1")
    store.create_topic("y1")
    settle(store, a)
    assert a.given.keys() == {id_of(store, "t2"), id_of(store, "x1")}
    kept = offsets(store).consumer("g")
    assert kept[RecordKey(GroupRecordType.REGEX, "t[0-9]|x.*")].topics == {"t2", "x1"}  # type: ignore[union-attr]
    b = Member(store, "b", topic_names=(), topic_regex="t.*").join()
    settle(store, a, b)
    assert b.has
    b.leave()
    a.beat(topic_regex="")
    settle(store, a)
    assert a.given == {}
    assert not any(key.kind is GroupRecordType.REGEX for key in offsets(store).consumer("g"))


def test_an_expression_has_the_topics_that_its_member_may_describe(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    """New topics are judged when they come; whoever may describe all sees all."""
    store.create_topic("secret")
    may = {"may_describe": lambda topic: topic != "secret" and not topic.startswith("x")}
    a = Member(store, "a", topic_names=(), topic_regex="[^_].*", **may).join()
    a.beat(**may)
    assert a.given.keys() == {id_of(store)}
    for name in ("u", "x1"):
        store.create_topic(name)
    a.beat(**may)
    assert a.given.keys() == {id_of(store), id_of(store, "u")}
    assert offsets(store).consumer("g")[RecordKey(GroupRecordType.REGEX, "[^_].*")].topics == {"t", "u"}  # type: ignore[union-attr]


def test_a_classic_member_looks_for_no_topics_of_expressions(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    """Else those would be assigned that the members with the expression may not describe."""
    may = {"may_describe": lambda topic: topic != "secret"}
    a = Member(store, "a", topic_names=(), topic_regex="[^_].*", **may).join()
    old = Classic(store, "o")
    for name in ("secret", "u"):
        store.create_topic(name)
    old.join()
    key = RecordKey(GroupRecordType.REGEX, "[^_].*")
    assert offsets(store).consumer("g")[key].topics == {"t"}  # type: ignore[union-attr]
    a.beat(**may)
    assert offsets(store).consumer("g")[key].topics == {"t", "u"}  # type: ignore[union-attr]


def test_an_expression_that_is_no_longer_understood_keeps_its_topics(
    store: segstore.Store, found: GroupCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was accepted while google-re2 was installed; other members must go on."""
    with monkeypatch.context() as patched:
        patched.setattr(linear_pattern, "_by_re2", lambda pattern: re.compile(pattern).fullmatch)
        a = Member(store, "a", topic_names=(), topic_regex="(?i)T.*").join()
    monkeypatch.setitem(sys.modules, "re2", None)
    b = Member(store, "b", topic_names=(), topic_regex="x.*").join()
    store.create_topic("x1")
    store.create_topic("t2")
    settle(store, a, b)
    assert a.given.keys() == {id_of(store)}
    assert b.given.keys() == {id_of(store, "x1")}
    with pytest.raises(InvalidRegularExpressionError, match="google-re2"):
        Member(store, "c", topic_regex="(?i)X").join()


def test_names_and_an_expression_add_up(store: segstore.Store, found: GroupCoordinator) -> None:
    store.create_topic("u")
    (a,) = joined(store, "a", topic_regex="u")
    assert a.given.keys() == {id_of(store), id_of(store, "u")}


def test_a_wrong_expression_is_refused_and_nothing_is_kept(
    store: segstore.Store, found: GroupCoordinator
) -> None:
    with pytest.raises(InvalidRegularExpressionError, match="not understood"):
        Member(store, "a", topic_regex="(").join()
    assert not found.exists("g")
    assert found.ids() == set()
    assert offsets(store).groups() == set()
