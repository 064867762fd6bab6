"""Bad input of replicated stores, one by one: one error of ours each, and nothing is made or changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replicated_stores import QUICK, Directories, states
from stores import tree

import segstore
from segstore import errors

pytestmark = pytest.mark.kind("replicated stores")

Paths = dict[str, Any]


def _symlink(base: Path) -> Paths:
    (base / "a").mkdir()
    os.symlink(base / "a", base / "b")
    return {"paths": [base / "a", base / "b", base / "c"]}


OPENED: dict[str, tuple[Callable[[Path], Paths], type[Exception]]] = {
    "no directory": (lambda base: {"paths": []}, errors.InvalidArgumentError),
    "one path, no list": (lambda base: {"paths": str(base / "a")}, errors.InvalidTypeError),
    "no paths": (lambda base: {"paths": [1, 2, 3]}, errors.InvalidTypeError),
    "None": (lambda base: {"paths": None}, errors.InvalidTypeError),
    "one twice": (lambda base: {"paths": [base / "a", base / "b", base / "a"]}, errors.InvalidArgumentError),
    "one twice, written otherwise": (
        lambda base: {"paths": [base / "a", base / "x" / ".." / "a"]}, errors.InvalidArgumentError),
    "one twice, by a symbolic link": (_symlink, errors.InvalidArgumentError),
    "nested": (lambda base: {"paths": [base / "a", base / "a" / "b"]}, errors.InvalidArgumentError),
    "a witness that is a directory": (
        lambda base: {"paths": [base / "a", base / "b"], "witness": base / "b"}, errors.InvalidArgumentError),
    "a witness within a directory": (
        lambda base: {"paths": [base / "a", base / "b"], "witness": base / "b" / "w"},
        errors.InvalidArgumentError),
    "a witness that is no path": (
        lambda base: {"paths": [base / "a", base / "b"], "witness": 7}, errors.InvalidTypeError),
    "an unknown setting": (
        lambda base: {"paths": [base / "a"], "config": {"min.insync.replica": 2}}, errors.ConfigError),
    "a wrong value": (
        lambda base: {"paths": [base / "a"], "config": {"min.insync.replicas": 0}}, errors.ConfigError),
    "adopt that is no bool": (lambda base: {"paths": [base / "a"], "adopt": "yes"}, errors.InvalidTypeError),
    "no mapping of settings": (lambda base: {"paths": [base / "a"], "config": [1]}, errors.InvalidTypeError),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in OPENED if "adopt" not in name])
def test_what_can_t_be_made_plain(tmp_path: Path, name: str) -> None:
    make, error = OPENED[name]
    arguments = make(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(error):
        segstore.unreplicate(arguments.pop("paths"), 0, **arguments)
    assert tree(tmp_path) == before


def test_what_is_no_replicated_store_is_not_made_by_the_way_back(tmp_path: Path) -> None:
    with segstore.open(tmp_path / "plain") as plain:
        plain.create_topic("t")
    before = tree(tmp_path)
    for paths in ([tmp_path / "plain"], [tmp_path / "a", tmp_path / "b"]):
        with pytest.raises(errors.InvalidArgumentError, match="no replicated store"):
            segstore.unreplicate(paths, 0)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", OPENED)
def test_a_store_that_can_t_be_opened_so(tmp_path: Path, name: str) -> None:
    make, error = OPENED[name]
    arguments = make(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(error) as caught:
        segstore.open_replicated(arguments.pop("paths"), **arguments)
    assert isinstance(caught.value, segstore.SegstoreError)
    assert tree(tmp_path) == before


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a file")
    for paths in (["a", "b", "c"], ["b", "c", "a"]):
        with pytest.raises(segstore.SegstoreError):
            segstore.open_replicated([tmp_path / name for name in paths])
        assert tree(tmp_path)["a"] == b"a file"
        assert not [*tmp_path.glob("*/meta.properties")], "the others belong to no store"
    with segstore.open(tmp_path / "b") as store:
        assert store.topics() == {}


def test_two_plain_stores_can_t_both_become_the_first_replica(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with segstore.open(tmp_path / name) as store:
            store.create_topic("t")
    before = {name: tree(tmp_path / name) for name in ("a", "b")}
    with pytest.raises(segstore.SegstoreError):
        segstore.open_replicated([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert {name: tree(tmp_path / name) for name in ("a", "b")} == before


CREATED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "factor of zero": ({"replication_factor": 0}, errors.InvalidReplicationFactorError),
    "factor above the directories": ({"replication_factor": 4}, errors.InvalidReplicationFactorError),
    "factor that is no integer": ({"replication_factor": "2"}, errors.InvalidTypeError),
    "an unknown directory": ({"assignments": {0: [0, 3]}}, errors.InvalidReplicaAssignmentError),
    "a directory twice": ({"assignments": {0: [1, 1]}}, errors.InvalidReplicaAssignmentError),
    "a negative directory": ({"assignments": {0: [-1]}}, errors.InvalidReplicaAssignmentError),
    "no replicas": ({"assignments": {0: []}}, errors.InvalidReplicaAssignmentError),
    "no partitions": ({"assignments": {}}, errors.InvalidArgumentError),
    "a partition is missing": ({"assignments": {0: [0], 2: [1]}}, errors.InvalidReplicaAssignmentError),
    "not as many replicas": ({"assignments": {0: [0], 1: [1, 2]}}, errors.InvalidReplicaAssignmentError),
    "no mapping": ({"assignments": [[0, 1]]}, errors.InvalidArgumentError),
    "assignments and a factor": (
        {"assignments": {0: [0]}, "replication_factor": 1}, errors.InvalidArgumentError),
    "too many partitions": ({"partitions": 100_001}, errors.InvalidArgumentError),
    "an unknown setting": ({"config": {"min.insync": 1}}, errors.ConfigError),
    "an internal name": ({"name": "__cluster_metadata"}, errors.InvalidTopicError),
    "a bad name": ({"name": "a/b"}, errors.InvalidTopicError),
    "a name that is there": ({"name": "there"}, errors.TopicAlreadyExistsError),
}  # fmt: skip


@pytest.mark.parametrize("name", CREATED)
def test_a_topic_that_can_t_be_made_so(three: Directories, name: str) -> None:
    arguments, error = CREATED[name]
    store = three.open()
    store.create_topic("there", replication_factor=2)
    before = (store.topics(), states(store))
    with pytest.raises(error):
        store.create_topic(**{"name": "t", **arguments})
    assert [*store.topics()] == [*before[0]]
    assert not [path for directory in three.paths for path in directory.glob("t-*")]
    store.create_topic("t", replication_factor=3)


APPENDED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "another acks": ({"acks": 2}, errors.InvalidArgumentError),
    "a word": ({"acks": "most"}, errors.InvalidArgumentError),
    "None": ({"acks": None}, errors.InvalidArgumentError),
    "true": ({"acks": True}, errors.InvalidArgumentError),
    "a list": ({"acks": []}, errors.InvalidArgumentError),
    "a negative time": ({"timeout_ms": -1}, errors.InvalidArgumentError),
    "no time": ({"timeout_ms": "soon"}, errors.InvalidTypeError),
}


@pytest.mark.parametrize("call", ["append", "append_batch"])
@pytest.mark.parametrize("name", APPENDED)
def test_an_append_that_is_refused(three: Directories, name: str, call: str) -> None:
    arguments, error = APPENDED[name]
    store = three.open()
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    with pytest.raises(error):
        getattr(log, call)(b"x" if call == "append" else [b"x"], **arguments)
    assert log.log_end_offset == 0
    assert log.append(b"x") == 0


ASKED: dict[str, Callable[[Any], object]] = {
    "describe an unknown topic": lambda store: store.describe_partition("u", 0),
    "describe an unknown partition": lambda store: store.describe_partition("t", 5),
    "a log of an unknown partition": lambda store: store.partition("t", 5),
    "move an unknown partition": lambda store: store.reassign({("t", 5): [0]}),
    "delete an unknown topic": lambda store: store.delete_topic("u"),
    "alter an unknown topic": lambda store: store.alter_topic("u", {"retention.ms": 1}),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_not_there(three: Directories, name: str) -> None:
    store = three.open()
    store.create_topic("t", replication_factor=2)
    before = states(store)
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        ASKED[name](store)
    assert states(store).keys() == before.keys()


class Fails:
    """Its value is asked for in vain."""

    def __index__(self) -> int:
        raise ZeroDivisionError("of the caller's object")


MISUSED: dict[str, tuple[Callable[[Any], object], type[Exception]]] = {
    "move to lists": (lambda store: store.reassign({("t", 0): [[1]]}), errors.InvalidTypeError),
    "move to a number": (lambda store: store.reassign({("t", 0): 1}), errors.InvalidTypeError),
    "move to bytes": (lambda store: store.reassign({("t", 0): b"\0"}), errors.InvalidTypeError),
    "move to True": (lambda store: store.reassign({("t", 0): [True]}), errors.InvalidTypeError),
    "move to a fraction": (lambda store: store.reassign({("t", 0): [1.0]}), errors.InvalidTypeError),
    "move two, one wrongly": (
        lambda store: store.reassign({("t", 0): [2], ("t", 1): ["2"]}), errors.InvalidTypeError),
    "move to what fails": (lambda store: store.reassign({("t", 0): [Fails()]}), ZeroDivisionError),
    "make one on what fails": (
        lambda store: store.create_topic("u", assignments={0: [Fails()]}), ZeroDivisionError),
    "make one with a factor that fails": (
        lambda store: store.create_topic("u", replication_factor=Fails()), ZeroDivisionError),
    "make one on released memory": (
        lambda store: store.create_topic("u", assignments={0: released()}), errors.InvalidTypeError),
    "elect for no time": (
        lambda store: store.elect_leaders("preferred", timeout_ms="soon"), errors.InvalidTypeError),
    "heal and tell a number": (lambda store: store.heal(progress=7), errors.InvalidTypeError),
    "describe an array": (
        lambda store: store.describe_partition("t", np.array([0, 1])), errors.InvalidTypeError),
}  # fmt: skip


def released() -> memoryview:
    view = memoryview(b"\0")
    view.release()
    return view


@pytest.mark.parametrize("name", MISUSED)
def test_what_is_refused_stops_no_controller_and_begins_nothing(three: Directories, name: str) -> None:
    """A list among the replicas, or an object that fails, stopped the controller of the store for good."""
    call, error = MISUSED[name]
    store = three.open()
    store.create_topic("t", partitions=2, replication_factor=2)
    before = states(store)
    with pytest.raises(error):
        call(store)
    assert (states(store), store.reassignments()) == (before, {})
    store.create_topic("u", replication_factor=3)
    assert store.partition("u").append(b"x") == 0


@pytest.mark.parametrize("acks", [0, 1, "all", -1, "0", "1", "-1"])
def test_all_ways_to_write_acks(three: Directories, acks: Any) -> None:
    store = three.open()
    store.create_topic("t", replication_factor=3)
    assert store.partition("t", 0).append(b"x", acks=acks) == 0


def test_a_closed_store_says_so(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    log.append(b"x")
    store.close()
    store.close()
    for call in (
        lambda: log.append(b"y"),
        lambda: store.describe_partition("t", 0),
        lambda: store.create_topic("u"),
        lambda: store.elect_leaders("preferred"),
        lambda: store.reassign({("t", 0): [0]}),
        store.reassignments,
    ):
        with pytest.raises(errors.StoreClosedError):
            call()


def test_settings_are_those_that_a_plain_store_takes(tmp_path: Path) -> None:
    """They stand in files of Kafka's; a plain store ignores them."""
    with segstore.open(tmp_path / "plain", config=QUICK) as store:
        store.create_topic("t", config={"min.insync.replicas": 2, "unclean.leader.election.enable": True})
        assert store.partition("t").append(b"x") == 0
        with segstore.Producer(store, acks="all") as producer:
            assert producer.send("t", b"y").get(timeout=60).offset == 1
    assert segstore.check(tmp_path / "plain") == []
