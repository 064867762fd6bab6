"""The files that say which topics there are: judged word by word; what is foreign touches nothing else."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from partitions import GOLDEN
from stores import values

import segstore
from segstore import CorruptCheckpointError, StorageError, UnknownTopicOrPartitionError
from segstore.storage.topic_info import TopicInfo, format_settings, parse_settings

ID = "AAAAAAAAQACAAAAAAAAAAQ"
SOUND = {"version": 1, "topic_id": ID, "partitions": 2, "config": {"segment.bytes": 1000}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store at rest with the topics "t" and "u"."""
    root = tmp_path / "store"
    with segstore.open(root) as store:
        for name in ("t", "u"):
            store.create_topic(name, 2)
            store.partition(name, 0).append(name.encode())
    return root


def settings_file(root: Path, topic: str = "t") -> Path:
    return root / ".segstore" / "topics" / f"{topic}.json"


def alter(root: Path, **changes: object) -> None:
    path = settings_file(root)
    held = {**json.loads(path.read_bytes()), **changes}
    path.write_text(json.dumps({k: v for k, v in held.items() if v is not ...}))


# --- the form -----------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [(0,), (0, 1, 2), (3, 7)], ids=["one", "three", "some of them"])
@pytest.mark.parametrize("deleting", [False, True])
def test_what_is_written_is_taken_back(ids: tuple[int, ...], deleting: bool) -> None:
    info = TopicInfo("t", ids, ID)
    data = format_settings(info, deleting=deleting)
    assert parse_settings("t", data, "t.json") == (info, deleting)


@pytest.mark.parametrize("value", [True, False])
def test_deleting_is_true_or_false(value: bool) -> None:
    assert parse_settings("t", json.dumps({**SOUND, "deleting": value}).encode(), "f")[1] is value


UNSOUND: dict[str, tuple[object, str]] = {
    "deleting in words": ({**SOUND, "deleting": "no"}, "deleting='no'"),
    "deleting as a number": ({**SOUND, "deleting": 1}, "deleting=1"),
    "deleting null": ({**SOUND, "deleting": None}, "deleting=None"),
    "partitions below 0": ({**SOUND, "partitions": -3}, "partitions=-3"),
    "no partitions": ({**SOUND, "partitions": 0}, "partitions=0"),
    "too many partitions": ({**SOUND, "partitions": 2 * 10**9}, "partitions=2000000000"),
    "partitions as a bool": ({**SOUND, "partitions": True}, "partitions=True"),
    "partitions as a float": ({**SOUND, "partitions": 2.0}, "partitions=2.0"),
    "ids of another number": ({**SOUND, "partition_ids": [0]}, "a list of 2"),
    "ids in words": ({**SOUND, "partition_ids": "01"}, "a list of 2"),
    "an id below 0": ({**SOUND, "partition_ids": [-1, 0]}, "partition_ids=-1"),
    "ids twice": ({**SOUND, "partition_ids": [1, 1]}, "rise"),
    "a topic id of another length": ({**SOUND, "topic_id": "x"}, "topic_id='x'"),
    "a topic id as a number": ({**SOUND, "topic_id": 7}, "topic_id=7"),
    "an unknown version": ({**SOUND, "version": 2}, "version 2"),
    "an unknown key": ({**SOUND, "delfting": True}, "delfting"),
    "a missing key": ({k: v for k, v in SOUND.items() if k != "partitions"}, "partitions"),
    "an unknown setting": ({**SOUND, "config": {"segment.byte": 1}}, "segment.byte"),
    "settings that are none": ({**SOUND, "config": [1]}, "settings"),
    "a list": ([], "not list"),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_settings_are_believed_whole_or_not_at_all(name: str) -> None:
    held, shown = UNSOUND[name]
    with pytest.raises(CorruptCheckpointError) as error:
        parse_settings("t", json.dumps(held).encode(), "dir/t.json")
    assert error.value.file == "dir/t.json"
    assert shown in str(error.value)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[" * 100_000, b"\xff", b"9" * 10_000], ids=["empty", "cut", "deep", "bytes", "long"]
)
def test_what_is_no_json(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError, match=r"t\.json"):
        parse_settings("t", data, "t.json")


def test_a_name_that_no_topic_has() -> None:
    with pytest.raises(CorruptCheckpointError, match="can't be a topic's name"):
        parse_settings("a b", json.dumps(SOUND).encode(), "a b.json")


# --- one topic's damage is its own ------------------------------------------------------------

DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleting in words": lambda r: alter(r, deleting="no"),
    "partitions below 0": lambda r: alter(r, partitions=-3),
    "deep": lambda r: settings_file(r).write_text("[" * 100_000),
    "no json": lambda r: settings_file(r).write_text("{"),
    "a directory": lambda r: (settings_file(r).unlink(), settings_file(r).mkdir()),
    "a FIFO": lambda r: (settings_file(r).unlink(), os.mkfifo(settings_file(r))),
}


@pytest.mark.parametrize("mode", ["r", "rw"])
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_settings_file(root: Path, name: str, mode: str) -> None:
    DAMAGE[name](root)
    assert any("t.json" in str(finding) for finding in segstore.check(root))
    with segstore.open(root, mode) as store:
        assert list(store.topics()) == ["t", "u"]
        assert values(store.partition("u", 0)) == [b"u"]
        with pytest.raises((CorruptCheckpointError, StorageError), match=r"t\.json"):
            store.partition("t", 0)
        if mode == "rw":
            with pytest.raises(segstore.TopicAlreadyExistsError):
                store.create_topic("t")
            with pytest.raises((CorruptCheckpointError, StorageError), match=r"t\.json"):
                store.delete_topic("t")
    assert (root / "t-0" / "00000000000000000000.log").stat().st_size > 0


def test_settings_that_are_mended_bring_the_topic_back(root: Path) -> None:
    sound = settings_file(root).read_bytes()
    settings_file(root).write_text("{")
    with segstore.open(root) as store:
        store.partition("u", 0).append(b"more")
    settings_file(root).write_bytes(sound)
    with segstore.open(root) as store:
        assert values(store.partition("t", 0)) == [b"t"]
        assert store.partition("t", 0).append(b"more") == 1
    assert segstore.check(root) == []


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_a_foreign_topic_with_junk_for_metadata(root: Path, mode: str) -> None:
    (root / "other-0").mkdir()
    (root / "other-0" / "partition.metadata").write_text("junk")
    assert any("other-0/partition.metadata" in str(finding) for finding in segstore.check(root))
    with segstore.open(root, mode) as store:
        assert values(store.partition("u", 0)) == [b"u"]
        with pytest.raises(CorruptCheckpointError, match=r"other-0/partition\.metadata"):
            store.partition("other", 0)


@pytest.mark.parametrize("mode", ["r", "rw"])
@pytest.mark.parametrize("name", ["notes-2024", "u-7"], ids=["of no topic", "of a topic"])
def test_a_file_named_like_a_partition_is_none(root: Path, name: str, mode: str) -> None:
    (root / name).write_text("mine")
    assert segstore.check(root) == []
    with segstore.open(root, mode) as store:
        assert list(store.topics()) == ["t", "u"]
        assert values(store.partition("u", 0)) == [b"u"]
        if mode == "rw":
            store.delete_topic("u")
    assert (root / name).read_text() == "mine"


# --- graves -------------------------------------------------------------------------------


def test_what_lies_in_a_deleted_partition_and_is_not_ours_stays(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "t-0" / "backup").mkdir()
    (root / "t-0" / "backup" / "file").write_text("mine")
    with segstore.open(root) as store, caplog.at_level(logging.WARNING, "segstore"):
        store.delete_topic("t")
        assert list(store.topics()) == ["u"]
        assert store.create_topic("t").partitions == 1
    assert "backup" in caplog.text
    (grave,) = root.glob("t-0.*-delete")
    assert [str(p.relative_to(grave)) for p in sorted(grave.rglob("*"))] == ["backup", "backup/file"]
    with segstore.open(root) as store:
        assert values(store.partition("u", 0)) == [b"u"]
    assert any("backup" in str(finding) for finding in segstore.check(root))
    (grave / "backup").rename(root.parent / "backup")
    with segstore.open(root):
        assert not grave.exists()
    assert segstore.check(root) == []


def test_a_linked_partition_is_another_s_and_its_target_survives_a_delete(root: Path) -> None:
    elsewhere = root.parent / "elsewhere"
    (root / "t-0").rename(elsewhere)
    (root / "t-0").symlink_to(elsewhere)
    with segstore.open(root) as store:
        with pytest.raises(StorageError, match="symbolic link"):
            store.partition("t", 0).append(b"more")
        store.delete_topic("t")
    assert [p.name for p in root.glob("t-*")] == []
    assert (elsewhere / "00000000000000000000.log").exists()


def test_a_file_named_like_a_grave_stays(root: Path) -> None:
    path = root / ("x-0." + "0" * 32 + "-delete")
    path.write_text("mine")
    with segstore.open(root):
        pass
    assert path.read_text() == "mine"
    assert segstore.check(root) == []


# --- looking up -----------------------------------------------------------------------------


def test_an_unknown_topic_is_told_what_is_there(root: Path) -> None:
    with segstore.open(root, "r") as store:
        with pytest.raises(UnknownTopicOrPartitionError, match="t, u"):
            store.partition("x", 0)
        with pytest.raises(UnknownTopicOrPartitionError, match=r"\[0, 1\]"):
            store.partition("t", 2)


def test_topics_of_a_broker_have_the_id_of_their_metadata() -> None:
    with segstore.open(GOLDEN / "clean", "r") as store:
        for info in store.topics().values():
            held = (
                GOLDEN / "clean" / f"{info.name}-{info.partition_ids[0]}" / "partition.metadata"
            ).read_text()
            assert info.topic_id in held
            assert not info.ours
