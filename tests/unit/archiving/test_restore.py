"""`segstore.restore`: a store out of an archive, as it was at its newest moment, or earlier."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from archived_history import ArchivedHistory
from faulty import FaultyFiles
from made_archive import CLAIM, make_archive
from stores import START_MS, Clock, killed_at_each_call, records, transact_and_consume, value_of

import segstore
from segstore import names
from segstore.archiving.object_names import COMMIT, STATE, CommitName
from segstore.archiving.remote import RemoteFiles
from segstore.errors import (
    ArchiveError,
    CorruptArchiveError,
    InvalidArgumentError,
    InvalidTopicError,
    InvalidTypeError,
    StorageError,
)
from segstore.files import Files

SMALL = {"segment.bytes": 1000}


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Path]:
    """Where a store is restored; it must be sound, and alone."""
    path = tmp_path / "restored"
    yield path
    left = [each.name for each in tmp_path.iterdir() if names.RESTORING in each.name]
    assert left == []
    if path.exists():
        assert segstore.check(path) == []


def content(path: Path) -> dict[tuple[str, int], tuple[int, int, list[segstore.Record]]]:
    """Return start, end and records of all partitions."""
    found = {}
    with segstore.open(path, mode="r") as store:
        for name, info in store.topics().items():
            for number in info.partition_ids:
                log = store.partition(name, number)
                found[name, number] = log.start_offset, log.end_offset, list(records(log))
    return found


def logs(path: Path) -> dict[str, bytes]:
    """Return the content of all logs by partition: the bytes of their segments, one after the other."""
    found: dict[str, bytes] = {}
    for each in sorted(path.glob("*-*/*.log")):
        found[each.parent.name] = found.get(each.parent.name, b"") + each.read_bytes()
    return found


def fill(store: segstore.Store, topic: str, n: int, partition: int = 0) -> None:
    for i in range(n):
        store.partition(topic, partition).append(value_of(i, 100), key=b"k%d" % i)


def test_a_restored_store_is_the_archived_one(store_dir: Path, restored: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", 2, {**SMALL, "compression.type": "zstd"})
        store.create_topic("empty", 3)
        fill(store, "t", 40)
        fill(store, "t", 3, 1)
        store.partition("t").delete_records(12)
        transact_and_consume(store)
    archive = make_archive(store_dir, tmp_path / "archive")
    sizes: list[int] = []
    made = segstore.restore(archive.uri, restored, progress=sizes.append)
    assert content(restored) == content(store_dir)
    assert logs(restored) == logs(store_dir)
    assert (made.bytes, made.time) == (sum(map(len, logs(store_dir).values())), 1_000)
    assert sum(sizes) == made.bytes
    with segstore.open(restored) as store, segstore.open(store_dir) as source:
        assert {n: (t.topic_id, t.config) for n, t in store.topics().items()} == {
            n: (t.topic_id, t.config) for n, t in source.topics().items()
        }
        assert store.partition("t").append(b"goes on") == 40


def test_a_file_system_in_place_of_that_of_the_uri(archive: RemoteFiles, restored: Path) -> None:
    from pyarrow import fs

    base, _, name = archive.uri.rpartition("/")
    segstore.restore(name, restored, filesystem=fs.SubTreeFileSystem(base, fs.LocalFileSystem()))
    with segstore.open(restored, mode="r") as store:
        assert set(store.topics()) == {"t", "u"}


# --- what goes wrong ---------------------------------------------------------------------------


@pytest.fixture
def archive(store_dir: Path, tmp_path: Path) -> RemoteFiles:
    """An archive of two topics, with sealed segments and pieces."""
    with segstore.open(store_dir, clock=Clock()) as store:
        for name in ("t", "u"):
            store.create_topic(name, config=SMALL)
            fill(store, name, 30)
    return make_archive(store_dir, tmp_path / "archive")


def objects_of(remote: RemoteFiles) -> list[str]:
    """Return one object of each kind that a restore reads."""
    there = sorted(name for name, size in remote.list("topics/t/").items() if size)
    kinds = (names.LOG, names.TIME_INDEX, names.SNAPSHOT, ".segments")
    found = [next(name for name in there if name.endswith(kind)) for kind in kinds]
    return [*found, *(str(CommitName(CLAIM, n, kind)) for n, kind in ((1, STATE), (2, COMMIT)))]


LAST = 5


DAMAGED = [(kind, damage) for damage in ("missing", "cut", "flipped") for kind in range(LAST + 1)]
DAMAGED.remove((LAST, "missing"))  # the last commit may not have been written yet


@pytest.mark.parametrize(("kind", "damage"), DAMAGED)
def test_a_damaged_object_is_told_by_name(
    archive: RemoteFiles, restored: Path, kind: int, damage: str
) -> None:
    name = objects_of(archive)[kind]
    data = bytearray(archive.read(name))
    archive.delete([name])
    if damage == "cut":
        archive.write(name, [data[:-1]])
    elif damage == "flipped":
        data[-2] ^= 1
        archive.write(name, [data])
    with pytest.raises(ArchiveError) as caught:
        segstore.restore(archive.uri, restored)
    if (damage, kind) == ("missing", LAST - 1):  # the only state of the claim
        assert "no state before them" in str(caught.value)
    else:
        assert isinstance(caught.value, CorruptArchiveError)
        assert caught.value.object == name
    assert not restored.exists()


def test_a_topic_whose_objects_are_sound_is_restored(archive: RemoteFiles, restored: Path) -> None:
    archive.delete([name for name in archive.list("topics/t/") if name.endswith(names.LOG)])
    segstore.restore(archive.uri, restored, topics="u")
    with segstore.open(restored, mode="r") as store:
        assert list(store.topics()) == ["u"]


def test_an_archive_that_is_not_there(restored: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"):
        segstore.restore(str(tmp_path / "none"), restored)
    assert not restored.exists()


@pytest.mark.parametrize(
    ("topics", "error", "said"),
    [
        ("x", ArchiveError, "topic 'x' is not there; there are: t, u"),
        ([], InvalidArgumentError, "at least one topic"),
        (7, InvalidTypeError, "must be names of topics, not int"),
        ("a/b", InvalidTopicError, "'a/b'"),
    ],
)
def test_topics_that_can_not_be(
    archive: RemoteFiles, restored: Path, topics: object, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        segstore.restore(archive.uri, restored, topics=topics)
    assert not restored.exists()


def test_a_target_that_exists(archive: RemoteFiles, restored: Path) -> None:
    restored.mkdir()
    segstore.restore(archive.uri, restored)
    with pytest.raises(StorageError, match="exists already"):
        segstore.restore(archive.uri, restored)


def test_one_restore_at_a_time(archive: RemoteFiles, restored: Path) -> None:
    told: list[str] = []

    def again(_: int) -> None:
        if not told:
            with pytest.raises(StorageError, match="is making another restored store here") as caught:
                segstore.restore(archive.uri, restored)
            told.append(str(caught.value))

    segstore.restore(archive.uri, restored, progress=again)
    assert told


def test_an_error_of_progress_ends_it(archive: RemoteFiles, restored: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        segstore.restore(archive.uri, restored, progress=stop)
    assert not restored.exists()
    assert threading.active_count() == before


def test_a_disk_that_refuses(archive: RemoteFiles, restored: Path) -> None:
    class Full(Files):
        def pwrite(self, handle: Any, data: Any, position: int) -> int:
            if handle.path.endswith(names.LOG):
                raise OSError(errno.ENOSPC, "No space left on device", handle.path)
            return super().pwrite(handle, data, position)

    with pytest.raises(StorageError, match="No space left"):
        segstore.restore(archive.uri, restored, files=Full())
    assert not restored.exists()


def test_an_archiver_may_remove_objects_meanwhile(
    store_dir: Path, restored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = ArchivedHistory(tmp_path / "archive")
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", config=SMALL)
        fill(store, "t", 30)
    history.take(store_dir, START_MS)
    old = str(CommitName(CLAIM, 1, STATE))
    read_into = RemoteFiles.read_into

    def removing(self: RemoteFiles, name: str, at: int, buffer: Any) -> int:
        if name == old and history.sequence == 1:
            history.take(store_dir, START_MS + 100)
            history.remote.delete([old])
        return read_into(self, name, at, buffer)

    monkeypatch.setattr(RemoteFiles, "read_into", removing)
    segstore.restore(history.uri, restored)
    assert history.sequence == 2
    assert content(restored) == content(store_dir)


def test_a_power_cut_behind_a_restore(
    archive: RemoteFiles, store_dir: Path, tmp_path: Path, rng: random.Random
) -> None:
    files = FaultyFiles(tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    segstore.restore(archive.uri, tmp_path / "disk" / "restored", files=files)
    files.power_cut("none", rng)
    assert content(tmp_path / "disk" / "restored") == content(store_dir)
    assert logs(tmp_path / "disk" / "restored") == logs(store_dir)
    segstore.open(tmp_path / "disk" / "restored").close()  # the published ends are made anew
    assert segstore.check(tmp_path / "disk" / "restored") == []


@pytest.mark.kind("kills")
def test_killed_at_each_call(store_dir: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", config={"segment.bytes": 1000})
        fill(store, "t", 12)
    make_archive(store_dir, tmp_path / "state" / "archive")

    def run(files: Files, path: Path) -> None:
        segstore.restore(str(path / "archive"), path / "restored", files=files)

    expected = content(store_dir)
    for nth, path in killed_at_each_call(tmp_path / "state", tmp_path, run, every=3):
        if (path / "restored").exists():  # all but the lock was done
            (path / "restored.restoring.lock").unlink(missing_ok=True)
        else:
            run(Files(), path)
        assert content(path / "restored") == expected, nth
        assert segstore.check(path / "restored") == []
        assert sorted(each.name for each in path.iterdir()) == ["archive", "restored"], nth
