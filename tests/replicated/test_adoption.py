"""A store without replicas becomes the first directory of a replicated one, without copying, and back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from plain_stores import filled, held
from replicated_stores import QUICK, Directories, await_in_sync, epochs_of, log_bytes, states
from stores import in_child
from waiting import until

import segstore
from segstore import errors

pytestmark = pytest.mark.kind("replicated stores")

EVERY = [0, 1, 2]


def spread(store: Any, replicas: list[int] | None = None) -> None:
    """Give all partitions replicas in all directories."""
    store.reassign(dict.fromkeys(states(store), replicas or EVERY))
    until(lambda: store.reassignments() == {})
    await_in_sync(store)


def inodes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in directory.glob("*.log")}


@pytest.mark.parametrize("at", EVERY)
def test_a_plain_store_keeps_all_that_it_has(three: Directories, at: int) -> None:
    before = filled(three.paths[at])
    files, data = inodes(three.paths[at] / "t-0"), log_bytes(three.paths[at] / "t-0")
    with three.open(adopt=True) as store:
        assert held(store) == before
        assert {state.replicas for state in states(store).values()} == {(at,)}
        end = store.partition("t", 0).log_end_offset
        assert store.partition("t", 0).append(b"and on") == end
    assert inodes(three.paths[at] / "t-0").items() >= files.items(), "the log was copied"
    assert log_bytes(three.paths[at] / "t-0").startswith(data)
    with three.open() as store:
        spread(store)
        assert store.partition("t", 0).append(b"on all of them", acks="all") == end + 1


def test_it_has_to_be_asked_for(three: Directories) -> None:
    before = filled(three.paths[1])
    with pytest.raises(errors.InvalidArgumentError, match="d1 is a store without replicas: with adopt=True"):
        three.open()
    three.judged = False
    assert not three.paths[0].exists()
    with segstore.open(three.paths[1]) as store:
        assert held(store) == before


def test_adopt_may_be_said_where_there_is_nothing_to_adopt(three: Directories) -> None:
    for _ in range(2):
        with three.open(adopt=True) as store:
            assert store.topics() == {}


def test_two_plain_stores_are_refused(three: Directories) -> None:
    before = [filled(three.paths[number]) for number in (0, 1)]
    with pytest.raises(errors.InvalidArgumentError, match="may be in one of the directories"):
        three.open(adopt=True)
    three.judged = False
    for number in (0, 1):
        with segstore.open(three.paths[number]) as store:
            assert held(store) == before[number]


def test_a_plain_store_in_the_place_of_the_witness_is_refused(two: Directories) -> None:
    assert two.witness is not None
    filled(two.witness)
    with pytest.raises(errors.InvalidArgumentError, match="not in the witness"):
        two.open(adopt=True)
    shutil.rmtree(two.witness)
    two.open(adopt=True)


def test_a_brokers_topic_is_refused_by_name(three: Directories) -> None:
    golden = Path(__file__).parents[1] / "golden/clean/flights-none-1"
    three.paths[0].mkdir()
    shutil.copytree(golden, three.paths[0] / "flights-none-1")
    three.judged = False
    with pytest.raises(errors.InvalidArgumentError, match="'flights-none' is a broker's"):
        three.open(adopt=True)
    with segstore.open(three.paths[0]) as store:
        assert list(store.topics()) == ["flights-none"]


def test_a_topic_of_an_old_broker_has_no_id_also_with_settings(three: Directories) -> None:
    golden = Path(__file__).parents[1] / "golden/old/clean/magic1-gzip-0"
    three.paths[0].mkdir()
    shutil.copytree(golden, three.paths[0] / "old-0")
    three.judged = False
    with segstore.open(three.paths[0]) as store:
        store.alter_topic("old", {"segment.ms": 1_000_000})
    with pytest.raises(errors.InvalidArgumentError, match="'old' has no topic id"):
        three.open(adopt=True)


def test_a_plain_store_that_is_open_is_refused(three: Directories) -> None:
    with segstore.open(three.paths[0]) as store:
        store.create_topic("t")
        with pytest.raises(errors.StoreLockedError):
            three.open(adopt=True)
        store.partition("t", 0).append(b"x")
    assert three.open(adopt=True).partition("t", 0).end_offset == 1


def test_a_plain_store_that_was_killed_is_recovered_first(three: Directories) -> None:
    filled(three.paths[0])

    def run(tell: Any) -> None:
        store = segstore.open(three.paths[0])
        for number in range(10):
            store.partition("t", 1).append(b"more %d" % number)
        os._exit(0)

    in_child(run)
    with open(max((three.paths[0] / "t-1").glob("*.log")), "r+b") as log:
        log.truncate(os.fstat(log.fileno()).st_size - 5)  # the last batch is torn
    with three.open(adopt=True) as store:
        end = store.partition("t", 1).log_end_offset
        assert end == 39
        spread(store)
        store.partition("t", 1).append(b"and on", acks="all")
    epochs = [epochs_of(path / "t-1") for path in three.paths]
    assert epochs[0][-1][0] >= 2, "the recovery's epoch was begun again"
    assert epochs[1:] == epochs[:2]


def test_an_epoch_without_records_is_not_begun_again(three: Directories) -> None:
    """R2: a plain store's recovery has begun an epoch in which nothing is left; it is published."""

    def run(tell: Any) -> None:
        store = segstore.open(three.paths[0])
        if "t" not in store.topics():
            store.create_topic("t")
            store.partition("t", 0).append(b"first")
            store.flush()
        os._exit(0)

    for _ in range(3):
        in_child(run)
    with segstore.open(three.paths[0]) as store:
        latest = store.partition("t", 0).source.epochs.current
    with three.open(adopt=True) as store:
        assert store.describe_partition("t", 0).leader_epoch == latest + 1


def test_the_first_open_has_to_have_all_directories(three: Directories) -> None:
    """Else the topics of the one that is missing were taken for deleted ones when it came back."""
    before = filled(three.paths[2])

    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segstore.replication.opening.find_adopted", stop)
        with pytest.raises(Stop):
            three.open(adopt=True)
    with pytest.raises(errors.InvalidArgumentError, match="is a directory of a replicated store"):
        segstore.open(three.paths[2])
    three.lose(2)
    with pytest.raises(errors.QuorumLostError, match="first open has not come to its end"):
        three.open(adopt=True)
    three.bring_back()
    assert held(three.open()) == before


def test_a_directory_with_topics_that_are_not_the_stores_loses_none(three: Directories) -> None:
    """It got its `meta.properties` by a first open that was killed, and went on as a plain store."""
    with three.open() as store:
        store.create_topic("t", assignments={0: [0, 1]})
        await_in_sync(store)
    shutil.rmtree(three.paths[2] / "__cluster_metadata-0")
    for path in (three.paths[2] / ".segstore/topics").glob("__cluster_metadata.*"):
        path.unlink()
    with segstore.open(three.paths[2]) as plain:
        plain.create_topic("mine")
        plain.partition("mine", 0).append(b"x")
    three.judged = False
    with three.open() as store:
        assert list(store.topics()) == ["t"]
    with segstore.open(three.paths[2]) as plain:
        assert plain.partition("mine", 0).end_offset == 1


# --- and back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", EVERY)
def test_a_directory_that_has_all_becomes_a_plain_store(three: Directories, at: int) -> None:
    filled(three.paths[0])
    with three.open(adopt=True) as store:
        spread(store)
        store.partition("t", 0).append(b"on all of them")
        before = held(store)
        epoch = store.describe_partition("t", 0).leader_epoch
    files = inodes(three.paths[at] / "t-0")
    three.judged = False
    assert segstore.unreplicate(three.paths, at, config=QUICK) == str(three.paths[at])
    with segstore.open(three.paths[at], mode="r") as reader:
        assert held(reader) == before
    assert segstore.check(three.paths[at]) == []
    with segstore.open(three.paths[at]) as store:
        assert held(store) == before
        assert store.recovered == ()
        assert store.partition("t", 0).append(b"and on") == before["ends"]["t", 0]
    assert inodes(three.paths[at] / "t-0").items() >= files.items(), "the log was copied"
    assert epochs_of(three.paths[at] / "t-0")[-1][0] > epoch
    assert not (three.paths[at] / "meta.properties").exists()
    assert segstore.check(three.paths[at]) == []
    for other in {*EVERY} - {at}:
        with pytest.raises(errors.InvalidArgumentError, match="directory of a replicated store"):
            segstore.open(three.paths[other])
    for asked in (True, False):
        with pytest.raises(errors.StaleDirectoryError, match=f"directory {at} .*became a store without"):
            three.open(adopt=asked)
    with pytest.raises(errors.StaleDirectoryError):
        segstore.unreplicate(three.paths, at)


def test_there_and_back_again(tmp_path: Path) -> None:
    before = filled(tmp_path / "plain")
    for round_ in range(2):
        paths = [tmp_path / "plain", tmp_path / f"new-{round_}"]
        with segstore.open_replicated(paths, adopt=True, config=QUICK) as store:
            assert held(store) == before
            spread(store, [1, 0])
        segstore.unreplicate(paths, 0, config=QUICK)
        assert segstore.check(tmp_path / "plain") == []
    with segstore.open(tmp_path / "plain") as plain:
        assert held(plain) == before


def test_a_directory_that_lacks_partitions_stays_and_they_are_named(three: Directories) -> None:
    store = three.open()
    store.create_topic("here", assignments={0: [0, 1], 1: [1, 0]})
    store.create_topic("elsewhere", assignments={0: [0, 1], 1: [1, 2]})
    store.close()
    with pytest.raises(
        errors.InvalidArgumentError, match=r"directory 0, .*: elsewhere-1 has replicas in \[1, 2\]$"
    ):
        segstore.unreplicate(three.paths, 0, config=QUICK)
    with pytest.raises(errors.InvalidArgumentError, match=r"here-0 has.*; here-1 has"):
        segstore.unreplicate(three.paths, 2, config=QUICK)
    with three.open() as store:
        assert store.partition("elsewhere", 1).append(b"goes on") == 0


def test_a_replica_that_is_not_in_sync_is_named(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", replication_factor=3)
    store.close()
    three.lose(2)
    with three.open() as store:
        until(lambda: 2 not in store.describe_partition("t", 0).isr)
        store.partition("t", 0).append(b"not there")
    with pytest.raises(errors.InvalidArgumentError, match=r"directory 2, .*it is offline"):
        segstore.unreplicate(three.paths, 2, config=QUICK)
    three.bring_back()


@pytest.mark.parametrize("directory", [-1, 3, "0", True, None])
def test_bad_directories_are_refused(three: Directories, directory: Any) -> None:
    three.open().close()
    with pytest.raises((errors.InvalidArgumentError, errors.InvalidTypeError)):
        segstore.unreplicate(three.paths, directory)
