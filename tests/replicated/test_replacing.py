"""R26, R27, R32: a directory takes the place of one that has failed: a new one, or the same one again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from replicated_stores import Directories, Writer, await_in_sync, found, retrying
from stores import tree
from waiting import until

import segstore
from segstore import errors

pytestmark = pytest.mark.kind("replicated stores")


def one_failed(three: Directories, who: int = 1) -> tuple[segstore.ReplicatedStore, Writer]:
    """A store whose directory `who` was taken away, with records of before and after."""
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", partitions=3, replication_factor=3)
    with Writer(store.partition("t", 0)) as writer:
        writer.more()
        three.lose(who)
        until(lambda: who in store.describe_partition("t", 0).offline)
        writer.more()
    return store, writer


def test_r32_a_new_directory_takes_the_place_of_a_lost_one(three: Directories, tmp_path: Path) -> None:
    store, writer = one_failed(three)
    new = tmp_path / "new"
    store.replace_directory(1, new)
    await_in_sync(store)
    state = store.describe_partition("t", 0)
    assert {each.directory for each in state.replica_states} == {
        str(three.paths[0]),
        str(new),
        str(three.paths[2]),
    }
    writer.assert_kept(store.partition("t", 0))
    store.close()
    (tmp_path / "lost-1").rename(tmp_path / "gone")
    three.paths[1] = new
    with three.open() as again:
        await_in_sync(again)
        writer.assert_kept(again.partition("t", 0))


def test_r26_the_same_directory_comes_back(three: Directories) -> None:
    store, writer = one_failed(three)
    three.bring_back()
    store.replace_directory(1, three.paths[1])
    await_in_sync(store)
    writer.assert_kept(store.partition("t", 0))
    with Writer(store.partition("t", 0), prefix=b"later") as later:
        later.more()


def test_a_directory_that_was_missing_at_the_open_is_replaced(three: Directories, tmp_path: Path) -> None:
    with three.open() as store:
        store.create_topic("t", replication_factor=3)
        store.partition("t", 0).append(b"kept")
    three.lose(2)
    store = three.open()
    store.create_topic("u", replication_factor=2)
    store.replace_directory(2, tmp_path / "new")
    await_in_sync(store)
    assert found(store.partition("t", 0)) == {0: b"kept"}
    assert store.describe_partition("t", 0).isr == (0, 1, 2)
    store.close()
    (tmp_path / "lost-2").rename(tmp_path / "gone")
    three.paths[2] = tmp_path / "new"


@pytest.mark.parametrize("when", ["before the open", "while it is open"])
@pytest.mark.parametrize("place", ["w2", "witness"])
def test_a_witness_that_was_lost_is_replaced(two: Directories, when: str, place: str) -> None:
    """It stays a witness: without it the store has no directory more."""
    with two.open() as store:
        store.create_topic("t", replication_factor=2)
    assert two.witness is not None
    store = two.open() if when == "while it is open" else None
    shutil.rmtree(two.witness)
    store = store or two.open()
    assert (store.directories, store.witness) == (tuple(map(str, two.paths)), str(two.witness))
    two.witness = two.base / place
    for number, path in ((3, two.witness), (2, two.paths[0]), (0, two.witness)):
        with pytest.raises(errors.InvalidArgumentError):
            store.replace_directory(number, path)
    assert not two.witness.exists()
    store.replace_directory(2, two.witness)
    assert (store.directories, store.witness) == (tuple(map(str, two.paths)), str(two.witness))
    with pytest.raises(errors.InvalidArgumentError, match="works"):
        store.replace_directory(2, two.base / "w3")
    with pytest.raises(errors.InvalidReplicationFactorError):
        store.create_topic("u", replication_factor=3)
    two.lose(1)  # with the new witness there is a majority
    until(lambda: store.describe_partition("t", 0).isr == (0,))
    assert retrying(lambda: store.partition("t", 0).append(b"x")) == 0
    store.close()
    with two.open() as store:
        until(lambda: store.describe_partition("t", 0).leader == 0)
        assert found(store.partition("t", 0)) == {0: b"x"}
    assert segstore.check(two.witness) == []


def test_what_is_refused_changes_nothing(three: Directories, tmp_path: Path) -> None:
    store, _ = one_failed(three)
    other, plain = tmp_path / "other", tmp_path / "plain"
    segstore.open_replicated([other]).close()
    with segstore.open(plain) as made:
        made.create_topic("t")
    before = {path: tree(path) for path in (other, plain)}
    refused: list[tuple[int, str | os.PathLike[str], type[Exception]]] = [
        (0, tmp_path / "new", errors.InvalidArgumentError),  # it works
        (3, tmp_path / "new", errors.InvalidArgumentError),
        (1, three.paths[0], errors.InvalidArgumentError),
        (1, three.paths[0] / "within", errors.InvalidArgumentError),
        (1, other, errors.StaleDirectoryError),
        (1, plain, errors.InvalidArgumentError),
    ]
    for directory, path, error in refused:
        with pytest.raises(error):
            store.replace_directory(directory, path)
    assert {path: tree(path) for path in (other, plain)} == before
    assert not (tmp_path / "new").exists()
    assert store.describe_partition("t", 0).offline == (1,)


def test_r6_an_empty_replica_follows_a_log_that_starts_within_a_batch(
    three: Directories, tmp_path: Path
) -> None:
    """Its directory went offline: the first batch begins below where its log begins."""
    store = three.open()
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    log.append_batch([b"%d" % number for number in range(10)])
    await_in_sync(store)
    log.delete_records(3)
    three.lose(1)
    until(lambda: 1 in store.describe_partition("t", 0).offline)
    store.replace_directory(1, tmp_path / "new")
    (tmp_path / "lost-1").rename(tmp_path / "gone")
    three.paths[1] = tmp_path / "new"
    await_in_sync(store)
    assert store.describe_partition("t", 0).offline == ()
    assert [*found(log)] == list(range(3, 10))
