"""`importing`: all records are there at once or none, and so are the topic and store that were made for
them.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults import MUTATING, FailingFiles
from staging import inbox, left_in_inbox, rows
from stores import tree, values

import segstore
from segstore import errors, names
from segstore.files import Files
from segstore.storage.bulk_import import importing
from segstore.storage.meta.directory_safety import remove_unused
from segstore.storage.staging import Stager
from segstore.storage.staging.seal import adopt


class Stopped(BaseException):
    """As the user's interrupt."""


def bring(
    path: Path,
    partitions: int | None = None,
    fail: BaseException | None = None,
    files: Files | None = None,
    n: int = 50,
) -> None:
    with importing(str(path), "t", partitions, files=files) as (info, stager):
        for each in info.partition_ids:
            stager.append_batch("t", each, rows(f"p{each}", n), batch_bytes=300)
        if fail is not None:
            raise fail


def held(path: Path) -> list[list[bytes | None]]:
    with segstore.open(path, mode="r") as store:
        return [values(store.partition("t", n)) for n in store.topics()["t"].partition_ids]


@pytest.mark.parametrize("made", [True, False])
def test_all_of_it(made: bool, store_dir: Path) -> None:
    if not made:
        with segstore.open(store_dir) as store:
            store.create_topic("t", 2)
            store.partition("t", 1).append(b"before")
    bring(store_dir, 2 if made else None)
    assert held(store_dir) == [rows("p0", 50), [b"before"] * (not made) + rows("p1", 50)]
    assert left_in_inbox(store_dir) == []


def test_nothing_at_all_makes_the_topic(store_dir: Path) -> None:
    bring(store_dir, 2, n=0)
    assert held(store_dir) == [[], []]


@pytest.mark.parametrize(
    "fail", [Stopped(), errors.InvalidRecordError("x"), OSError(errno.EIO, "x")], ids=repr
)
@pytest.mark.parametrize("there", ["nothing", "a directory", "a store", "a topic"])
def test_nothing_of_it(there: str, fail: BaseException, store_dir: Path) -> None:
    if there == "a directory":
        store_dir.mkdir(0o750)
    elif there != "nothing":
        with segstore.open(store_dir) as store:
            store.create_topic("other")
            store.partition("other").append(b"x")
            if there == "a topic":
                store.create_topic("t", 2)
    before = tree(store_dir)
    with pytest.raises(type(fail)):
        bring(store_dir, None if there == "a topic" else 2, fail)
    assert store_dir.exists() == (there != "nothing")
    if "store" in there or "topic" in there:
        with segstore.open(store_dir, mode="r") as store:
            assert list(store.topics()) == ["other", "t"][: 1 + (there == "a topic")]
            assert [log.end_offset for log in map(store.partition, store.topics())][1:] in ([], [0])
        assert inbox(store_dir) == []
    else:
        assert tree(store_dir) == before


@pytest.mark.parametrize(
    ("partitions", "error"),
    [
        (None, errors.UnknownTopicOrPartitionError),
        (3, errors.TopicAlreadyExistsError),
    ],
    ids=["not there", "there already"],
)
def test_topics_of_others(partitions: int | None, error: type[Exception], store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t" if partitions else "u", 2)
    before = list(tree(store_dir))
    with pytest.raises(error):
        bring(store_dir, partitions)
    assert list(tree(store_dir)) == before


WRONG = {"a name": ("..", 1, {}), "a setting": ("t", 1, {"retention.ms": "x"}), "a number": ("t", 0, {})}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_makes_nothing(case: str, store_dir: Path) -> None:
    topic, partitions, config = WRONG[case]
    with pytest.raises(errors.SegstoreError), importing(str(store_dir), topic, partitions, config):
        pass
    assert not store_dir.exists()


def test_another_s_store_is_left_alone(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        with pytest.raises(errors.StoreLockedError):
            bring(store_dir, 2)
        store.create_topic("t")


@pytest.mark.parametrize("by", ["has it open", "has a topic there"])
def test_a_store_that_somebody_uses_meanwhile_stays(by: str, store_dir: Path) -> None:
    """It was made for an import that has failed, and was let go of."""
    with segstore.open(store_dir) as store:
        if by == "has it open":
            with pytest.raises(BlockingIOError):
                remove_unused(Files(), str(store_dir))
        store.create_topic("theirs")
    assert not remove_unused(Files(), str(store_dir))
    with segstore.open(store_dir) as store:
        assert list(store.topics()) == ["theirs"]


def test_unused_is_without_anything(store_dir: Path, tmp_path: Path) -> None:
    """Links go, and what they lead to stays."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    segstore.open(store_dir).close()
    (store_dir / "link").symlink_to(outside)
    (store_dir / "deep" / "er").mkdir(parents=True)
    (store_dir / "deep" / "er" / "file").write_bytes(b"x")
    assert remove_unused(Files(), str(store_dir))
    assert list(store_dir.iterdir()) == []
    assert (outside / "kept").read_bytes() == b"kept"
    store_dir.rmdir()


def test_what_fails_first_is_told(store_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The disk is full from the first staged byte on: what is made to undo it finds no room either."""
    full = []

    def write(name: str, args: tuple[Any, ...]) -> None:
        full.extend([True] * args[0].path.endswith(names.BATCHES))
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), args[0].path)

    with pytest.raises(errors.StorageError) as caught:
        bring(store_dir, 1, files=FailingFiles({"pwrite"}, write, 1, 1 << 30))
    assert (caught.value.errno, str(caught.value.filename).endswith(names.BATCHES)) == (errno.ENOSPC, True)
    assert "can't be removed" in caplog.text
    assert held(store_dir) == [[]]


@pytest.mark.parametrize("nth", range(1, 23))
def test_a_failed_adoption_is_never_tried_again(nth: int, store_dir: Path) -> None:
    """Each call of it fails in turn, but for the last, which is none."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"before")
    with Stager(store_dir) as stager:
        stager.append_batch("t", 0, rows("a", 50), batch_bytes=100)
        message = stager.finish()
    files, adopted = FailingFiles(MUTATING, OSError(errno.EIO, os.strerror(errno.EIO)), nth=0), False
    with segstore.open(store_dir, files=files) as store:
        files.arm(nth)
        with suppress(errors.StorageError):
            adopted = adopt(store, "one", [message]).offsets == {("t", 0): (1, 51)}
        assert (adopted, files.hits) == (nth > 14, nth < 22)
        files.arm(0)
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [b"before"] + rows("a", 50) * adopted
    assert adopted or inbox(store_dir) == []


def test_staged_files_go_where_the_inbox_can_not_be_read(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
    with Stager(store_dir) as stager:
        stager.append_batch("t", 0, rows("a", 50), batch_bytes=100)
        message = stager.finish()
    files = FailingFiles({"listdir"}, OSError(errno.EIO, os.strerror(errno.EIO)), nth=0)
    with segstore.open(store_dir, files=files) as store:
        files.arm()
        with pytest.raises(errors.StorageError):
            adopt(store, "one", [message])
    assert inbox(store_dir) == []


def test_a_store_opened_to_read_adopts_nothing(store_dir: Path) -> None:
    segstore.open(store_dir).close()
    with segstore.open(store_dir, mode="r") as store, pytest.raises(errors.ReadOnlyError):
        adopt(store, "one", [])
    assert names.ADOPTED not in os.listdir(store_dir / names.OURS)
