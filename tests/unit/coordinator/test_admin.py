"""Groups: lists, descriptions and lag, resets and deletions, in the writer's process and beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from consumers import append
from group_records import at, end, member, offsets_of, opened, record, tp
from stores import START_MS, Clock
from waiting import until

import segstore
from segstore.coordinator.consumer_protocol import encode_assignment, encode_subscription
from segstore.coordinator.group.admin import Groups, Reset
from segstore.coordinator.group.assignors import MemberSubscription
from segstore.coordinator.offsets.group_offsets import TOPIC
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import (
    GroupNotFoundError,
    InvalidArgumentError,
    InvalidGroupIdError,
    InvalidTypeError,
    NonEmptyGroupError,
    ReadOnlyError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture
def store(store_dir: Path) -> Any:
    """Topic "t" with 10, 11, 12, 13 records, a second apart; group "g" has committed 5 in 0 and 1."""
    with opened(store_dir, Clock()) as made:
        for partition in range(4):
            log = made.partition("t", partition)
            stamps = [START_MS + 1000 * i for i in range(10 + partition)]
            log.append_batch([b"x"] * len(stamps), timestamps=stamps)
        offsets_of(made).commit("g", {tp(0): at(5, "note", 2), tp(1): at(5)})
        yield made


def live(store: segstore.Store, **settings: Any) -> segstore.Consumer:
    """A consumer of group "g" that has its partitions."""
    consumer = segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest", **settings)
    until(lambda: consumer.poll(10) is not None and consumer.assignment())
    return consumer


# --- looking -------------------------------------------------------------------------------------------


def test_lag_is_what_lies_between_the_committed_offset_and_the_end(store: segstore.Store) -> None:
    assert Groups(store).lag("g") == {tp(0): 5, tp(1): 6}
    append(store, 3)
    assert Groups(store).lag("g") == {tp(0): 8, tp(1): 6}
    offsets_of(store).commit("g", {tp(0): at(13)})
    assert Groups(store).lag("g") == {tp(0): 0, tp(1): 6}
    found = Groups(store).describe("g")
    assert (found.state, found.lag, found.members, found.generation) == ("Empty", 6, (), -1)


@pytest.mark.parametrize(
    ("deleted", "unread"),
    [
        pytest.param(0, 5, id="nothing is removed"),
        pytest.param(4, 5, id="only what was read"),
        pytest.param(8, 2, id="some that was not read"),
        pytest.param(10, 0, id="all"),
    ],
)
def test_unread_leaves_out_what_retention_has_removed(
    store: segstore.Store, deleted: int, unread: int
) -> None:
    store.partition("t").delete_records(deleted)
    found = Groups(store).describe("g")
    assert (found.partitions[0].lag, found.partitions[0].unread) == (5, unread)
    assert (found.lag, found.unread) == (11, 6 + unread)


def test_a_description_says_all_that_is_known(store: segstore.Store) -> None:
    offsets_of(store).commit_transactional("g", {tp(2): at(1)}, 3, 0)
    first, _, last = Groups(store).describe("g").partitions
    assert (first.partition, first.committed) == (tp(0), OffsetAndMetadata(5, "note", 2))
    assert (first.start, first.end, first.lag, first.pending) == (0, 10, 5, False)
    assert (last.partition, last.committed, last.lag, last.pending) == (tp(2), None, None, True)
    end(store, "g", 3, True)
    assert Groups(store).lag("g") == {tp(0): 5, tp(1): 6, tp(2): 11}


def test_an_offset_behind_the_end_is_no_negative_lag(store: segstore.Store) -> None:
    offsets_of(store).commit("g", {tp(0): at(99)})
    assert Groups(store).lag("g") == {tp(0): 0, tp(1): 6}


def test_members_and_what_they_have(store: segstore.Store) -> None:
    with live(store) as consumer:
        found = Groups(store).describe("g")
        assert (found.state, found.protocol_type) == ("Stable", "consumer")
        (one,) = found.members
        assert set(one.assignment) == consumer.assignment() == {tp(p) for p in range(4)}
        assert {part.member_id for part in found.partitions} == {one.member_id}
        assert [listing.state for listing in Groups(store).list()] == ["Stable"]
        with segstore.open(store.path, mode="r") as reader:
            assert Groups(reader).describe("g").members == found.members
            assert Groups(reader).describe("g").state == "Stable"
    assert Groups(store).describe("g").state == "Empty"


def test_beside_the_writer_and_after_it(store_dir: Path, store: segstore.Store) -> None:
    told = encode_subscription(MemberSubscription(("t",)))
    offsets_of(store).write_group(record("g", member("m", told, encode_assignment([tp(0)]))))
    with segstore.open(store_dir, mode="r") as reader:
        beside = Groups(reader)
        assert [m.member_id for m in beside.describe("g").members] == ["m"]
        offsets_of(store).commit("g", {tp(0): at(7)})
        assert beside.lag("g")[tp(0)] == 3  # read anew
        store.close()
        assert (beside.describe("g").state, beside.describe("g").members) == ("Empty", ())
        assert beside.reset("g", Reset.to_earliest(), dry_run=True)[0].after == 0
        for change in (
            lambda: beside.reset("g", Reset.to_earliest()),
            lambda: beside.delete("g"),
            lambda: beside.delete_offsets("g", ["t"]),
        ):
            with pytest.raises(ReadOnlyError):
                change()
    with pytest.raises(StoreClosedError):
        beside.list()


def test_nothing_was_ever_committed(store_dir: Path) -> None:
    with opened(store_dir) as made:
        assert Groups(made).list() == ()
        with pytest.raises(GroupNotFoundError, match="there are none"):
            Groups(made).describe("g")
        assert TOPIC not in made.topics()


def test_the_groups_of_a_store_are_listed_by_name(store: segstore.Store) -> None:
    offsets_of(store).commit("é", {tp(): at(0)})
    offsets_of(store).commit("a", {tp(): at(0)})
    assert [listing.group_id for listing in Groups(store).list()] == ["a", "g", "é"]
    with pytest.raises(GroupNotFoundError, match="no group 'x'; there are 'a', 'g', 'é'"):
        Groups(store).lag("x")
    with pytest.raises(InvalidGroupIdError):
        Groups(store).describe("")
    assert shared(store, Groups) is shared(store, Groups)


# --- resets --------------------------------------------------------------------------------------------

RESETS = {
    "earliest": (Reset.to_earliest(), [2, 0]),
    "latest": (Reset.to_latest(), [10, 11]),
    "current": (Reset.to_current(), [5, 5]),
    "an offset": (Reset.to_offset(7), [7, 7]),
    "an offset before the start": (Reset.to_offset(0), [2, 0]),
    "an offset behind the end": (Reset.to_offset(1 << 62), [10, 11]),
    "on": (Reset.shift_by(3), [8, 8]),
    "back": (Reset.shift_by(-2), [3, 3]),
    "back beyond the start": (Reset.shift_by(-99), [2, 0]),
    "on beyond the end": (Reset.shift_by(99), [10, 11]),
    "a time": (Reset.to_datetime(START_MS + 3001), [4, 4]),
    "a time before all": (Reset.to_datetime(0), [2, 0]),
    "a time after all": (Reset.to_datetime(START_MS + 10_000), [10, 10]),
    "long ago": (Reset.by_duration(1 << 50), [2, 0]),
    "now": (Reset.by_duration(0), [2, 0]),
}


@pytest.mark.parametrize("name", RESETS)
def test_a_reset(store: segstore.Store, name: str) -> None:
    to, expected = RESETS[name]
    store.partition("t", 0).delete_records(2)
    planned = Groups(store).reset("g", to, dry_run=True)
    assert Groups(store).lag("g") == {tp(0): 5, tp(1): 6}
    moved = Groups(store).reset("g", to)
    assert moved == planned
    assert [(m.partition, m.before, m.after) for m in moved] == [(tp(p), 5, expected[p]) for p in range(2)]
    assert offsets_of(store).fetch("g") == {tp(p): at(expected[p]) for p in range(2)}


CHOICES = {
    "all that was committed": (None, [0, 1]),
    "a topic": (["t"], [0, 1, 2, 3]),
    "partitions": ([tp(3), tp(0), (tp(0))], [0, 3]),
    "both": (["t", tp(1)], [0, 1, 2, 3]),
}


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_reset(store: segstore.Store, name: str) -> None:
    which, expected = CHOICES[name]
    moved = Groups(store).reset("g", Reset.to_current(), which)
    assert [m.partition for m in moved] == [tp(p) for p in expected]
    assert [m.after for m in moved] == [5 if p < 2 else 10 + p for p in expected]


WRONG: dict[str, tuple[Any, Any, type[Exception]]] = {
    "no such topic": (Reset.to_latest(), ["x"], UnknownTopicOrPartitionError),
    "no such partition": (Reset.to_latest(), [tp(4)], UnknownTopicOrPartitionError),
    "nothing": (Reset.to_latest(), [], InvalidArgumentError),
    "a bare name": (Reset.to_latest(), "t", InvalidTypeError),
    "no reset": ("earliest", None, InvalidTypeError),
    "nothing to count from": (Reset.shift_by(1), ["t"], InvalidArgumentError),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_reset_changes_nothing(store: segstore.Store, name: str) -> None:
    to, which, error = WRONG[name]
    before = offsets_of(store).fetch("g")
    with pytest.raises(error):
        Groups(store).reset("g", to, which)
    assert offsets_of(store).fetch("g") == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: Reset.to_offset(-1),
        lambda: Reset.to_datetime(-1),
        lambda: Reset.by_duration(-1),
        lambda: Reset.shift_by("x"),  # type: ignore[arg-type]
    ],
)
def test_resets_that_make_no_sense(make: Any) -> None:
    with pytest.raises((InvalidArgumentError, InvalidTypeError)):
        make()


def test_a_group_that_is_not_there_can_be_placed_before_it_begins(store: segstore.Store) -> None:
    with pytest.raises(GroupNotFoundError):
        Groups(store).reset("new", Reset.to_latest())
    Groups(store).reset("new", Reset.to_latest(), [tp(2)])
    assert offsets_of(store).fetch("new") == {tp(2): at(12)}


def test_a_group_with_members_is_neither_reset_nor_deleted(store: segstore.Store) -> None:
    with live(store, enable_auto_commit=False):
        for change in (
            lambda: Groups(store).reset("g", Reset.to_earliest()),
            lambda: Groups(store).delete("g"),
            lambda: Groups(store).delete_offsets("g", ["t"]),
        ):
            with pytest.raises(NonEmptyGroupError, match="'g'"):
                change()
        assert Groups(store).reset("g", Reset.to_earliest(), dry_run=True)[0].after == 0
        Groups(store).reset("other", Reset.to_latest(), ["t"])
    assert offsets_of(store).fetch("g") == {tp(0): OffsetAndMetadata(5, "note", 2), tp(1): at(5)}
    Groups(store).reset("g", Reset.to_earliest())
    with live(store, enable_auto_commit=False) as consumer:
        assert {consumer.committed(tp(p)) for p in range(2)} == {0}


# --- deletions ------------------------------------------------------------------------------------------


def test_a_deleted_group_is_gone_for_good(store_dir: Path, store: segstore.Store) -> None:
    live(store).close()
    Groups(store).delete("g")
    assert Groups(store).list() == ()
    with pytest.raises(GroupNotFoundError):
        Groups(store).delete("g")
    store.close()
    with opened(store_dir) as again:
        assert Groups(again).list() == ()


def test_offsets_can_be_forgotten_one_by_one(store: segstore.Store) -> None:
    assert Groups(store).delete_offsets("g", [tp(0), tp(3), TopicPartition("gone", 0)]) == {tp(0)}
    assert Groups(store).lag("g") == {tp(1): 6}
    with pytest.raises(UnknownTopicOrPartitionError):
        Groups(store).delete_offsets("g", ["gone"])
