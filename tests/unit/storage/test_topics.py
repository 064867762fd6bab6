"""The settings files of topics: every field is checked, and an invalid one affects no other topic."""

from __future__ import annotations

import copy
import errno
import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import waiting
from faults import MUTATING, CountingFiles, FailingFiles
from partitions import GOLDEN
from stores import values

import segstore
from segstore import (
    CorruptCheckpointError,
    InvalidTopicError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from segstore.storage.meta.topic_info import TopicInfo, format_settings, parse_settings
from segstore.storage.repair import repair

ID = "AAAAAAAAQACAAAAAAAAAAQ"
SOUND = {"version": 1, "topic_id": ID, "partitions": 2, "config": {"segment.bytes": 1000}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store at rest with the topics "t" and "u"."""
    root = tmp_path / "store"
    with segstore.open(root) as store:
        for name in ("t", "u"):
            store.create_topic(name, 2, {"segment.bytes": 9999})
            store.partition(name, 0).append(name.encode())
    return root


def settings_file(root: Path, topic: str = "t") -> Path:
    return root / ".segstore" / "topics" / f"{topic}.json"


def alter(root: Path, **changes: object) -> None:
    path = settings_file(root)
    held = {**json.loads(path.read_bytes()), **changes}
    path.write_text(json.dumps({k: v for k, v in held.items() if v is not ...}))


def both(root: Path, damage: Callable[[Path], object]) -> None:
    """Damage the settings of "t" in both copies."""
    path = settings_file(root)
    damage(root)
    path.with_suffix(".copy").write_bytes(path.read_bytes() if path.is_file() else b"{")


def id_of(root: Path) -> str:
    return str(json.loads(settings_file(root).read_bytes())["topic_id"])


def another(topic_id: str) -> str:
    return topic_id[:5] + ("B" if topic_id[5] == "A" else "A") + topic_id[6:]


# --- the form -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_a_name_like_a_partitions_makes_no_topic(tmp_path: Path, mode: str) -> None:
    """As /etc/dbus-1: nothing is written there either."""
    for name in ("dbus-1", "t-0"):
        (tmp_path / name).mkdir()
    (tmp_path / "dbus-1" / "session.conf").touch()
    (tmp_path / "t-0" / "00000000000000000000.log").touch()
    for _ in range(2):
        with segstore.open(tmp_path, mode) as store:
            assert list(store.topics()) == ["t"]
    assert os.listdir(tmp_path / "dbus-1") == ["session.conf"]


def test_a_topic_takes_over_no_directory_of_others(tmp_path: Path) -> None:
    """A topic's deletion removes what its directories hold, also beyond its number of partitions."""
    (tmp_path / "backup-2024").mkdir()
    note = tmp_path / "backup-2024" / "readme.md"
    note.write_text("mine")
    with segstore.open(tmp_path) as store:
        with pytest.raises(InvalidTopicError, match=r"backup-2024 is no partition, and holds 'readme.md'"):
            store.create_topic("backup")
        with pytest.raises(InvalidTopicError, match="backup-2024"):
            store.ensure_topic("backup")
        assert note.read_text() == "mine"
        note.rename(tmp_path / "readme.md")
        store.create_topic("backup")
        store.delete_topic("backup")
    assert (tmp_path / "readme.md").read_text() == "mine"


@pytest.mark.parametrize("ids", [(0,), (0, 1, 2), (3, 7)], ids=["one", "three", "some of them"])
@pytest.mark.parametrize("deleting", [False, True])
def test_what_is_written_is_taken_back(ids: tuple[int, ...], deleting: bool) -> None:
    info = TopicInfo("t", ids, ID)
    data = format_settings(info, deleting=deleting)
    assert parse_settings("t", data, "t.json") == ((info, deleting), True)


@pytest.mark.parametrize("value", [True, False])
def test_deleting_is_true_or_false(value: bool) -> None:
    assert parse_settings("t", json.dumps({**SOUND, "deleting": value}).encode(), "f")[0].deleting is value


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
        assert [values(store.partition(t, 0)) for t in "tu"] == [[b"t"], [b"u"]]
        assert store.topics()["t"].config == {"segment.bytes": 9999}
        if mode == "rw":
            assert [one.path for one in store.mended] == [str(settings_file(root))]
            with pytest.raises(segstore.TopicAlreadyExistsError):
                store.create_topic("t")
            assert store.partition("t", 0).append(b"more") == 1
    assert bool(segstore.check(root)) == (mode == "r")


@pytest.mark.parametrize("mode", ["r", "rw"])
@pytest.mark.parametrize("name", DAMAGE)
def test_settings_that_are_lost_hide_no_log_and_delete_none(root: Path, name: str, mode: str) -> None:
    """Both copies are damaged, or the one that an older segstore has written."""
    topic_id = id_of(root)
    both(root, DAMAGE[name])
    assert any("t.json" in str(finding) for finding in segstore.check(root))
    with segstore.open(root, mode) as store:
        info = store.topics()["t"]
        assert (info.partition_ids, info.topic_id, info.ours) == ((0, 1), topic_id, False)
        assert (info.settings.retention_ms, info.settings.flush_messages) == (-1, 1)
        assert "t.json" in str(info.lost)
        assert [values(store.partition(t, 0)) for t in "tu"] == [[b"t"], [b"u"]]
        if mode == "rw":
            assert store.partition("t", 0).append(b"more") == 1
            assert [one.path for one in store.mended] == [str(settings_file(root))]
            store.sweep()
            with pytest.raises(segstore.TopicAlreadyExistsError):
                store.create_topic("t")
    assert segstore.check(root) != []
    assert any(one.path == str(settings_file(root)) for one in repair(root))
    assert segstore.check(root) == []
    with segstore.open(root) as store:
        assert (store.topics()["t"].lost, store.topics()["t"].topic_id) == (None, topic_id)
        assert values(store.partition("t", 0))[:1] == [b"t"]
        assert store.mended == ()


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_settings_that_are_lost_with_the_logs_are_refused_for_that_topic_alone(root: Path, mode: str) -> None:
    both(root, DAMAGE["no json"])
    for directory in root.glob("t-*"):
        shutil.rmtree(directory)
    with segstore.open(root, mode) as store:
        assert values(store.partition("u", 0)) == [b"u"]
        with pytest.raises(CorruptCheckpointError, match=r"restore the file from a backup, or"):
            store.partition("t", 0)


def test_a_topic_id_that_flipped_loses_no_committed_offsets(root: Path) -> None:
    """The group's offsets are of another id: none was shown, and consumers began anew."""
    tp = segstore.TopicPartition("t", 0)
    with segstore.open(root) as store, segstore.Consumer(store, group_id="g") as consumer:
        consumer.assign([tp])
        consumer.commit({tp: segstore.OffsetAndMetadata(1, "", -1)})
    topic_id = id_of(root)
    data = settings_file(root).read_bytes()
    settings_file(root).write_bytes(data.replace(topic_id.encode(), another(topic_id).encode()))
    for mode in ("r", "rw"):
        with segstore.open(root, mode) as store:
            assert store.topics()["t"].topic_id == topic_id
            if mode == "rw":
                with segstore.Consumer(store, group_id="g") as consumer:
                    assert consumer.committed(tp) == 1
    assert segstore.check(root) == []


@pytest.mark.parametrize("damage", ["sound", "flipped id"])
def test_settings_of_an_older_segstore_are_upgraded(root: Path, damage: str) -> None:
    """It wrote one copy, without a checksum: there the partitions' metadata outvote the settings."""
    topic_id, path = id_of(root), settings_file(root)
    held = json.loads(path.read_bytes())
    del held["crc32c"]
    if damage != "sound":
        held["topic_id"] = another(topic_id)
    path.write_text(json.dumps(held))
    path.with_suffix(".copy").unlink()
    if damage == "sound":
        assert segstore.check(root) == []
    with segstore.open(root) as store:
        assert store.topics()["t"].topic_id == topic_id
        assert (store.mended == ()) == (damage == "sound")
    assert path.read_bytes() == path.with_suffix(".copy").read_bytes()
    assert b'"crc32c"' in path.read_bytes()
    assert segstore.check(root) == []


def test_retention_that_a_flipped_digit_shortens_deletes_nothing(root: Path) -> None:
    with segstore.open(root) as store:
        store.alter_topic("t", {"retention.ms": 10**15, "segment.bytes": 1000})
        for n in range(20):
            store.partition("t", 0).append(b"%d" % n * 200, timestamp=1)
    data = settings_file(root).read_bytes()
    for digits in (b"1", b"1000000000000001"):
        settings_file(root).write_bytes(data.replace(b"1000000000000000", digits))
        with segstore.open(root) as store:
            store.sweep()
            assert store.partition("t", 0).start_offset == 0
            assert store.topics()["t"].config["retention.ms"] == 10**15
            assert len(store.mended) == 1


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
        waiting.told()
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


def test_a_topic_that_could_neither_be_made_nor_taken_back_is_made_anew(store_dir: Path) -> None:
    """What the first try has left has another topic id: the second one must not take it for its own."""
    files = FailingFiles(MUTATING, OSError(errno.ENOSPC, "full"), 0)
    tries = 0
    with segstore.open(store_dir, files=files) as store:
        refused = True
        while refused:
            tries += 1
            files.arm(tries, 1 << 30)  # that call, and all behind it
            with suppress(StorageError):
                store.create_topic(f"t{tries}", 3)
                refused = files.hits > 0
            files.arm(0)
            if refused:
                store.create_topic(f"t{tries}", 2)
            assert list(segstore.check(store_dir)) == []
    assert tries > 10
    with segstore.open(store_dir) as store:
        assert len(store.topics()) == tries
        for topic, info in store.topics().items():
            assert [store.partition(topic, n).append(b"x") for n in range(info.partitions)] == [
                0
            ] * info.partitions


COLLIDING = {"a dot": ("a_b", "a.b"), "an underscore": ("a.b", "a_b"), "both": ("a.b_c", "a_b.c")}


@pytest.mark.parametrize(("there", "name"), COLLIDING.values(), ids=COLLIDING)
def test_a_name_that_differs_in_dots_and_underscores_only_is_refused(
    store: segstore.Store, there: str, name: str
) -> None:
    store.create_topic(there)
    with pytest.raises(segstore.InvalidTopicError, match="collides with"):
        store.create_topic(name)
    assert list(store.topics()) == [there]
    store.delete_topic(there)
    store.create_topic(name)


def test_a_list_of_policies(store: segstore.Store) -> None:
    info = store.create_topic("t", config={"cleanup.policy": ["compact", "delete"]})
    assert info.config == {"cleanup.policy": "compact,delete"}
    for wrong in (["compact", 1], ["none"], {"compact"}):
        with pytest.raises(segstore.ConfigError):
            store.create_topic("u", config={"cleanup.policy": wrong})


def test_a_setting_of_topics_given_to_a_store(tmp_path: Path) -> None:
    with pytest.raises(segstore.ConfigError, match="give it to create_topic"):
        segstore.open(tmp_path / "s", config={"retention.ms": 1})
    assert not (tmp_path / "s").exists()


def test_a_store_is_not_pickled(store: segstore.Store) -> None:
    for use in (pickle.dumps, copy.copy):
        with pytest.raises(segstore.InvalidTypeError, match="give its path to the other process"):
            use(store)


@pytest.mark.parametrize("partitions", [1, 40])
def test_a_new_topic_waits_for_the_disk_as_rarely_as_it_can(store_dir: Path, partitions: int) -> None:
    """Settings are durable before a partition's directory is there. Of the contents, all are on their way
    before the first is waited for, in at most 32 partitions at a time; each directory is synced once.
    """
    files = CountingFiles()
    with segstore.open(store_dir, files=files) as store:
        files.clear()
        store.create_topic("t", partitions)
        counts, steps = files.counts(), [name for name, _ in files.calls]
        assert counts["sync"] == counts["start_sync"] == 2 + 2 * partitions
        assert counts["sync_dir"] == 1 + partitions + 1  # of settings, each partition, the root
        assert steps.index("sync_dir") < steps.index("mkdir")
        begun = [n for n, name in enumerate(steps) if name == "start_sync"]
        waited = [n for n, name in enumerate(steps) if name == "sync"]
        assert begun[1] < waited[0]
        assert begun[2 + 2 * min(partitions, 32) - 1] < waited[2]
