"""Promise: only directories that belong together are opened together, a majority of them, and each refusal
says why; nothing is changed by it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import segstore
from segstore.errors import (
    CorruptCheckpointError,
    InvalidArgumentError,
    InvalidTypeError,
    QuorumLostError,
    StaleDirectoryError,
    StoreLockedError,
)
from segstore.files import Files
from segstore.replication.metadata.properties import MetaProperties, write_properties
from segstore.replication.metadata.quorum_state import QuorumState
from segstore.replication.metadata.voters import FoundDirectory, check_paths, decide, look, plan

CLUSTER, OTHER = "Q" + "A" * 21, "g" + "A" * 21


def own(number: int, cluster: str = CLUSTER) -> MetaProperties:
    return MetaProperties(cluster, number, f"{number}D" + "A" * 20)


def member(number: int, **more: Any) -> FoundDirectory:
    return FoundDirectory(f"/d{number}", **{"properties": own(number), "has_metadata": True, **more})


MEMBERS = [member(0), member(1), member(2)]
EMPTY = [FoundDirectory(f"/d{number}") for number in range(3)]


def replaced(found: list[FoundDirectory], number: int, **more: Any) -> list[FoundDirectory]:
    return [each._replace(**more) if n == number else each for n, each in enumerate(found)]


# --- the first open ------------------------------------------------------------------------------


def test_the_first_open_formats_all() -> None:
    made = decide([*EMPTY[:2], FoundDirectory("/d2", exists=False)], witness=True)
    assert [place.id for place in made.places] == [0, 1, 2]
    assert all(place.new and place.properties.node_id == place.id for place in made.places)
    assert len({place.properties.cluster_id for place in made.places}) == 1
    assert len({place.properties.directory_id for place in made.places}) == 3
    assert (made.offline, made.witness, made.total, made.plain) == ({}, 2, 3, -1)


@pytest.mark.parametrize("done", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_a_format_that_a_crash_has_stopped_goes_on(done: tuple[int, ...]) -> None:
    found = [each._replace(properties=own(n)) if n in done else each for n, each in enumerate(EMPTY)]
    made = decide(found, witness=False)
    assert [place.new for place in made.places] == [n not in done for n in range(3)]
    assert {place.properties.cluster_id for place in made.places} == {CLUSTER}
    assert all(made.places[n].properties == own(n) for n in done)


@pytest.mark.parametrize("begun", [False, True])
def test_one_plain_store_becomes_the_first_replica(begun: bool) -> None:
    more = {"properties": own(1)} if begun else {}
    assert decide(replaced(EMPTY, 1, topics=("t",), **more), witness=False).plain == 1


def test_two_plain_stores_or_one_in_the_witness_are_refused() -> None:
    two = replaced(replaced(EMPTY, 1, topics=("t",)), 0, topics=("u",))
    for found, witness in ((two, False), (replaced(EMPTY, 2, topics=("t",)), True)):
        with pytest.raises(InvalidArgumentError, match="topics without replicas"):
            decide(found, witness)


def test_the_first_open_needs_all() -> None:
    with pytest.raises(PermissionError):
        decide(replaced(EMPTY, 2, error=PermissionError(13, "no")), witness=False)
    with pytest.raises(StoreLockedError):
        decide(replaced(EMPTY, 2, holder=7), witness=False)
    with pytest.raises(StaleDirectoryError, match="no meta"):
        decide(replaced(EMPTY, 2, has_metadata=True), witness=False)


# --- later ones ----------------------------------------------------------------------------------


def test_all_that_belong_together_take_part() -> None:
    made = decide(MEMBERS, witness=True)
    assert [(place.id, place.properties, place.new) for place in made.places] == [
        (n, own(n), False) for n in range(3)
    ]
    assert (made.offline, made.witness, made.total, made.plain) == ({}, 2, 3, -1)


AWAY: dict[str, dict[str, Any]] = {
    "missing": {"exists": False, "properties": None, "has_metadata": False},
    "holds no topics": {"properties": None, "has_metadata": False},
    "it holds t": {"properties": None, "has_metadata": False, "topics": ("t",)},
    "can't be read: .*no": {"error": PermissionError(13, "no"), "properties": None, "has_metadata": False},
    "meta.properties: line 1|damaged": {
        "error": CorruptCheckpointError("meta.properties", 1, "damaged"),
        "properties": None,
    },
    "open in process 7": {"holder": 7},
    "open in another process": {"holder": 0},
}


@pytest.mark.parametrize("reason", AWAY)
def test_one_that_is_away_is_offline_and_two_are_too_many(reason: str) -> None:
    one = replaced(MEMBERS, 1, **AWAY[reason])
    made = decide(one, witness=False)
    assert [place.id for place in made.places] == [0, 2]
    assert list(made.offline) == [1]
    with pytest.raises((QuorumLostError, StoreLockedError)) as raised:
        decide(replaced(one, 2, **AWAY[reason]), witness=False)
    assert isinstance(raised.value, StoreLockedError) == ("open in" in reason)
    if isinstance(raised.value, QuorumLostError):
        assert raised.match("2 of the 3 directories are needed, and 1 can be opened")
        assert raised.match(reason)


def test_half_is_no_majority() -> None:
    four = [*MEMBERS, member(3, **AWAY["missing"])]
    assert len(decide(four, witness=False).places) == 3
    with pytest.raises(QuorumLostError, match="3 of the 4"):
        decide(replaced(four, 0, **AWAY["missing"]), witness=False)


def test_foreign_swapped_and_copied_directories_are_stale() -> None:
    with pytest.raises(StaleDirectoryError, match="different stores"):
        decide(replaced(MEMBERS, 1, properties=own(1, OTHER)), witness=False)
    with pytest.raises(StaleDirectoryError, match="/d0 is directory 1 of its store"):
        decide([MEMBERS[1]._replace(path="/d0"), MEMBERS[0], MEMBERS[2]], witness=False)
    copied = own(1)._replace(directory_id=own(0).directory_id)
    with pytest.raises(StaleDirectoryError, match="copies of one directory"):
        decide(replaced(MEMBERS, 1, properties=copied), witness=False)


def of_three(number: int, epoch: int = 7, **more: Any) -> FoundDirectory:
    return member(number, quorum=QuorumState(epoch, (0, 1, 2)), **more)


NAMED: dict[str, tuple[list[FoundDirectory], bool]] = {
    "one of three": ([of_three(0)], False),
    "two of three": ([of_three(0), of_three(1)], False),
    "one of three, and a witness": ([of_three(0), FoundDirectory("/w")], True),
    "two that were to be": ([*map(of_three, range(3)), FoundDirectory("/d3"), FoundDirectory("/d4")], False),
    "one, of which an older copy knows more": (
        [of_three(0), member(1, quorum=QuorumState(3, (0, 1)))],
        False,
    ),
    "a witness that has replicas": ([of_three(0), of_three(1), of_three(2, topics=("t",))], True),
}


@pytest.mark.parametrize("name", NAMED)
def test_r31_who_names_others_than_the_voters_gets_no_majority(name: str) -> None:
    found, witness = NAMED[name]
    with pytest.raises(InvalidArgumentError, match=r"the store has 3 directories|/d2, has replicas: t"):
        decide(found, witness)


def test_a_place_more_may_be_named() -> None:
    made = decide([*map(of_three, range(3)), FoundDirectory("/d3", exists=False)], witness=False)
    assert ([place.id for place in made.places], list(made.offline), made.total) == ([0, 1, 2], [3], 4)


# --- paths ---------------------------------------------------------------------------------------


def test_paths_that_are_the_same_or_nested_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    files, a, b = Files(), str(tmp_path / "a"), str(tmp_path / "b")
    assert check_paths(files, [a, b], None) == [a, b]
    assert check_paths(files, [tmp_path / "a", b], str(tmp_path / "ab")) == [a, b, str(tmp_path / "ab")]
    for paths, witness in (
        ([a, a], None),
        ([a, b, a + "/."], None),
        ([a, tmp_path / "link"], None),
        ([a, b], b),
    ):
        with pytest.raises(InvalidArgumentError, match="the same directory"):
            check_paths(files, paths, witness)
    for paths, witness in (
        ([a, a + "/in"], None),
        ([a + "/in", a], None),
        ([a, b], str(tmp_path / "link" / "w")),
    ):
        with pytest.raises(InvalidArgumentError, match="within the other"):
            check_paths(files, paths, witness)
    with pytest.raises(InvalidArgumentError, match="at least one"):
        check_paths(files, [], a)
    for wrong in (a, None, 3, [3]):
        with pytest.raises(InvalidTypeError):
            check_paths(files, wrong, None)
    assert sorted(os.listdir(tmp_path)) == ["a", "link"]


def test_what_lies_at_a_path_is_told(tmp_path: Path) -> None:
    files, root = Files(), tmp_path / "s"
    assert look(files, str(root)) == FoundDirectory(str(root), exists=False)
    with segstore.open(root) as store:
        store.create_topic("t", 2)
        assert look(files, str(root)).holder is not None
    assert look(files, str(root)) == FoundDirectory(str(root), topics=("t",))
    write_properties(files, str(root), own(0))
    (root / "__cluster_metadata-0").mkdir()
    assert look(files, str(root)) == FoundDirectory(str(root), True, own(0), True, ("t",))
    assert plan(files, [str(root)], witness=False).places[0].properties == own(0)
    (root / "meta.properties").write_text("x")
    assert isinstance(look(files, str(root)).error, CorruptCheckpointError)
    (root / "__cluster_metadata-0").rmdir()
    assert segstore.check(root) == []
