"""The metadata as other processes follow it, which write nothing: news, restarts, older directories."""

from __future__ import annotations

import os
import shutil

import pytest
from replicated_stores import Directories, await_in_sync

import segstore
from segstore.replication.observer import Observer

pytestmark = pytest.mark.kind("replicated stores")


def test_news_are_taken_as_they_come(three: Directories) -> None:
    """Also when the store is closed and opened anew, under another epoch of the metadata."""
    with Observer([str(path) for path in three.paths]) as observer:
        with three.open() as store:
            store.create_topic("a")
            image = observer.look()
            assert [*image.topics] == ["a"]
            assert observer.look() is image
            store.create_topic("b")
            assert [*observer.look().topics] == ["a", "b"]
        with three.open() as store:
            store.delete_topic("a")
            assert observer.look() is image
            assert [*image.topics] == ["b"]


def test_older_copies_of_all_directories(three: Directories) -> None:
    """What was written after the copies were made is forgotten, though the metadata's epochs are the same."""
    with three.open() as store:
        store.create_topic("a")
    before = three.base / "before"
    for path in three.paths:
        shutil.copytree(path, before / path.name)
    with Observer([str(path) for path in three.paths]) as observer:
        with three.open() as store:
            store.create_topic("cut")
        image = observer.look()
        assert [*image.topics] == ["a", "cut"]
        for path in three.paths:
            shutil.rmtree(path)
            os.rename(before / path.name, path)
        with three.open() as store:
            for name in ("x", "y", "z"):
                store.create_topic(name)
            assert [*observer.look().topics] == ["a", "x", "y", "z"]


def test_a_directory_that_was_away_is_not_believed(three: Directories) -> None:
    with three.open() as store:
        store.create_topic("a", replication_factor=3)
        await_in_sync(store)
    three.lose(0)
    with three.open() as store:
        store.create_topic("b")
    three.bring_back()
    with Observer([str(path) for path in three.paths]) as observer:
        assert [*observer.look().topics] == ["a", "b"]
        assert sorted(observer.stores) == [0, 1, 2]
        three.lose(1)
        assert [*observer.look().topics] == ["a", "b"]
        assert sorted(observer.stores) == [0, 2]
        assert str(three.paths[1]) in observer.failed
        three.bring_back()
        observer.look()
        assert sorted(observer.stores) == [0, 1, 2]


def test_no_directory_is_there(three: Directories) -> None:
    observer = Observer([str(path) for path in three.paths])
    with pytest.raises(segstore.StorageError, match="no directory of a replicated store"):
        observer.look()
