"""The file tree over a compacted topic: changes, what a kill leaves, compaction, the past, a model."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_store import CHUNK, QUIET, SMALL, held, held_by, random_bytes
from faults import CountingFiles, FailingFiles
from stores import Clock, killed, killed_at_each_call, tree

import segstore
from segstore import errors
from segstore.filetree import FileTree, file_tree, floor, history, restore, snapshot


def opened(path: Path, **options: object) -> segstore.Store:
    return segstore.open(path, clock=Clock(step=1), **options)


def files(store: segstore.Store, config: dict | None = None) -> FileTree:
    return file_tree(store, "ck", {**QUIET, **(config or {})})


# --- changes -----------------------------------------------------------------------------------------

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 5 * CHUNK + 7]


@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_read_back_now_and_after_reopening(store_dir: Path, size: int) -> None:
    data = random_bytes(size)
    with opened(store_dir) as store:
        files(store, SMALL).write("/a/b", data)
        assert held(files(store)) == {"/": None, "/a": None, "/a/b": data}
    with opened(store_dir) as store:
        found = files(store)
        assert held(found) == {"/": None, "/a": None, "/a/b": data}
        for start, length in [(0, 1), (1, size), (CHUNK - 1, 2), (CHUNK, CHUNK), (size - 1, 5), (size, 1)]:
            if start >= 0:
                assert b"".join(found.read("/a/b", start, length)) == data[start : start + length]


def test_a_rename_is_two_small_records_in_one_batch(store_dir: Path) -> None:
    with opened(store_dir) as store:
        found = files(store)
        found.write("/a", random_bytes(1 << 20))
        before = found.log.end_offset
        found.rename("/a", "/b")
        records = found.log.read(before)
        assert len(records) == 2
        assert len(records.batches) == 1
        assert sum(records.values.lengths.clip(0)) < 200


WRONG: dict[str, tuple[Callable[[FileTree], object], int]] = {
    "create over a file": (lambda t: t.write("/d/f", b""), errno.EEXIST),
    "create over a directory": (lambda t: t.write("/d", b"", overwrite=True), errno.EISDIR),
    "create below a file": (lambda t: t.write("/d/f/x", b""), errno.ENOTDIR),
    "create at the root": (lambda t: t.write("/", b"", overwrite=True), errno.EISDIR),
    "mkdirs over a file": (lambda t: t.mkdirs("/d/f"), errno.EEXIST),
    "mkdirs below a file": (lambda t: t.mkdirs("/d/f/x"), errno.ENOTDIR),
    "rename of nothing": (lambda t: t.rename("/no", "/x"), errno.ENOENT),
    "rename onto a file": (lambda t: t.rename("/d/f", "/d/g"), errno.EEXIST),
    "rename into no directory": (lambda t: t.rename("/d/f", "/no/f"), errno.ENOENT),
    "rename below a file": (lambda t: t.rename("/d/f", "/d/g/x"), errno.ENOENT),
    "rename into itself": (lambda t: t.rename("/d", "/d/e"), errno.EINVAL),
    "rename of the root": (lambda t: t.rename("/", "/x"), errno.EINVAL),
    "rename of a file over a directory": (lambda t: t.rename("/d/f", "/e", True), errno.EISDIR),
    "rename of a directory over a file": (lambda t: t.rename("/e", "/d/f", True), errno.ENOTDIR),
    "rename over a full directory": (lambda t: t.rename("/e", "/d", True), errno.ENOTEMPTY),
    "delete of a full directory": (lambda t: t.delete("/d"), errno.ENOTEMPTY),
    "read of a directory": (lambda t: t.read("/d"), errno.EISDIR),
    "read of nothing": (lambda t: t.read("/no"), errno.ENOENT),
    "list of nothing": (lambda t: t.listing("/no"), errno.ENOENT),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_file_systems_refuse(store_dir: Path, name: str) -> None:
    run, number = WRONG[name]
    with opened(store_dir) as store:
        found = files(store)
        found.write("/d/f", b"f")
        found.write("/d/g", b"g")
        found.mkdirs("/e")
        before, end = held(found), found.log.end_offset
        with pytest.raises(OSError) as raised:
            run(found)
        assert raised.value.errno == number
        assert (held(found), found.log.end_offset) == (before, end)


@pytest.mark.parametrize("path", ["/a/../b", "/a/./b", "/a\0", "/\ud800"])
def test_bad_paths(store_dir: Path, path: str) -> None:
    with opened(store_dir) as store, pytest.raises(errors.InvalidArgumentError):
        files(store).write(path, b"")


def test_topics_that_hold_no_files(store_dir: Path) -> None:
    with opened(store_dir) as store:
        store.create_topic("plain")
        store.create_topic("two", partitions=2, config={"cleanup.policy": "compact"})
        store.create_topic("other", config={"cleanup.policy": "compact"})
        store.partition("other").append(b"v", key=b"not a path")
        for topic, error in [
            ("plain", errors.ConfigError),
            ("two", errors.ConfigError),
            ("other", errors.InvalidRecordError),
        ]:
            with pytest.raises(error, match=r"topic 'plain'|topic 'two'|offset 0: b'not a path'"):
                file_tree(store, topic)
        store.delete_topic("two")
        first = files(store)
        first.write("/a", b"a")
        assert files(store) is first
        store.delete_topic("ck")
        assert held(files(store)) == {"/": None}


def test_a_failed_append_changes_nothing(store_dir: Path) -> None:
    failing = FailingFiles({"pwrite", "pwritev"}, OSError(errno.ENOSPC, "full"), nth=0)
    with opened(store_dir, files=failing) as store:
        found = files(store)
        found.write("/a", b"a")
        before = held(found)
        for change in (
            lambda: found.write("/b", b"b"),
            lambda: found.rename("/a", "/c"),
            lambda: found.delete("/a"),
            lambda: found.mkdirs("/d"),
        ):
            failing.arm()
            with pytest.raises(errors.StorageError):
                change()
            assert held(found) == before
        found.rename("/a", "/c")
        assert held(found) == {"/": None, "/c": b"a"}


def test_what_came_of_a_broken_upload_is_deleted(store_dir: Path) -> None:
    with opened(store_dir) as store:
        found = files(store, SMALL)
        with found.create("/a") as upload:
            upload.write(random_bytes(3 * CHUNK))
        assert held(found) == {"/": None}
        assert snapshot(found.log).orphans == []
        upload = found.create("/a")
        upload.write(random_bytes(3 * CHUNK))
        copy = killed(store_dir, store_dir.parent / "copy")
    with opened(copy) as store:
        assert len(snapshot(store.partition("ck")).orphans) == 2
        found = files(store)
        assert snapshot(found.log).orphans == []
        found.write("/a", b"a")
        assert held(found) == {"/": None, "/a": b"a"}


# --- kills -------------------------------------------------------------------------------------------


def workload(found: FileTree, tell: Callable[[str], object]) -> None:
    """Spark's own pattern, with a directory that moves and one that goes."""
    for name in ("offsets/0", "state/0/1.delta", "commits/0"):
        directory, _, last = name.rpartition("/")
        found.write(f"/q/{directory}/.{last}.tmp", random_bytes(2 * CHUNK))
        tell(f"/q/{directory}/.{last}.tmp")
        found.rename(f"/q/{directory}/.{last}.tmp", f"/q/{name}")
        tell(f"/q/{name}")
    found.rename("/q/state", "/q/old")
    tell("moved")
    found.delete("/q/offsets", recursive=True)
    tell("deleted")
    found.write("/q/commits/0", b"anew", overwrite=True)
    tell("anew")


def expected(acknowledged: int) -> dict[str, bytes | None]:
    """What must be there after so many steps."""
    told: list[str] = []

    class Plain(dict):
        def parents(self, path: str) -> None:
            while path:
                path = path.rpartition("/")[0]
                self[path or "/"] = None

        def write(self, path: str, data: bytes, overwrite: bool = False) -> None:
            self.parents(path)
            self[path] = data

        def rename(self, source: str, target: str) -> None:
            for path in [p for p in self if p == source or p.startswith(source + "/")]:
                self[target + path[len(source) :]] = self.pop(path)

        def delete(self, source: str, recursive: bool) -> None:
            for path in [p for p in self if p == source or p.startswith(source + "/")]:
                del self[path]

    plain = Plain({"/": None})

    def tell(name: str) -> None:
        told.append(name)
        if len(told) == acknowledged:
            raise StopIteration

    if acknowledged:
        with contextlib.suppress(StopIteration):
            workload(plain, tell)
    return dict(plain)


@pytest.mark.kind("kills")
def test_kills_at_each_call(tmp_path: Path) -> None:
    """What was acknowledged is there; what was going on is there whole, or not at all."""
    base = tmp_path / "base"
    with segstore.open(base) as store:
        files(store, SMALL)

    def run(files_: segstore.files.Files, path: Path) -> None:
        with segstore.open(path, files=files_) as store:
            found = files(store)
            with open(path.parent / f"{path.name}.told", "w", buffering=1) as out:
                workload(found, lambda name: out.write(name + "\n"))

    rounds = 0
    for nth, path in killed_at_each_call(base, tmp_path, run):
        rounds = nth
        note = path.parent / f"{path.name}.told"
        told = note.read_text().splitlines() if note.exists() else []
        with segstore.open(path) as store:
            found = files(store)
            assert held(found) in (expected(len(told)), expected(len(told) + 1)), nth
            assert snapshot(found.log).orphans == []
            found.write("/after", b"x")
        with segstore.open(path) as store:
            assert held(files(store))["/after"] == b"x"
        assert list(segstore.check(path)) == []
    assert rounds > 20


# --- the past ----------------------------------------------------------------------------------------


def test_the_past_until_compaction_reaches_it(store_dir: Path) -> None:
    with opened(store_dir, config={"log.cleaner.threads": 0}) as store:  # none but what is asked for
        found = files(store, SMALL | {"file.delete.delay.ms": 0})
        past = {found.log.end_offset: held(found)}
        for n in range(12):
            found.write(f"/q/.{n}", random_bytes(2 * CHUNK, n))
            found.rename(f"/q/.{n}", f"/q/{n}")
            past[found.log.end_offset] = held(found)
            if n >= 3:
                found.delete(f"/q/{n - 3}")
            past[found.log.end_offset] = held(found)
        assert floor(found.log) == 0
        for offset, was in past.items():
            assert held_by(found.log, snapshot(found.log, offset)) == was
        before = found.log.size
        store.sweep()
        assert found.log.size < before
        lowest = floor(found.log)
        assert 0 < lowest < found.log.end_offset
        for offset, was in past.items():
            if offset < lowest:
                with pytest.raises(errors.OffsetOutOfRangeError, match=f"offset {offset} of ck"):
                    snapshot(found.log, offset)
            else:
                assert held_by(found.log, snapshot(found.log, offset)) == was
        now = past[found.log.end_offset]
        with pytest.raises(errors.OffsetOutOfRangeError):
            snapshot(found.log, found.log.end_offset + 1)
    # Without the checkpoint of the cleaner the batches tell.
    (store_dir / "cleaner-offset-checkpoint").unlink()
    with opened(store_dir) as store:
        found = files(store)
        assert held(found) == now
        assert floor(found.log) >= lowest


def test_history(store_dir: Path) -> None:
    with opened(store_dir) as store:
        found = files(store, SMALL)
        found.write("/q/.a.tmp", random_bytes(CHUNK + 1))
        found.rename("/q/.a.tmp", "/q/a")
        found.write("/q/a", b"new", overwrite=True)
        found.rename("/q", "/r")
        found.delete("/r", recursive=True)
        changes = list(history(found.log))
        assert [(c.what, c.path, c.source, c.size, c.replaced) for c in changes] == [
            ("mkdir", "/q", "", 0, False),
            ("create", "/q/.a.tmp", "", CHUNK + 1, False),
            ("rename", "/q/a", "/q/.a.tmp", CHUNK + 1, False),
            ("create", "/q/a", "", 3, True),
            ("rename", "/r", "/q", 0, False),
            ("rename", "/r/a", "/q/a", 3, False),
            ("delete", "/r/a", "", 3, False),
            ("delete", "/r", "", 0, False),
        ]
        assert changes[-1].offset == found.log.end_offset
        assert [c.path for c in history(found.log, "/q/a", start=changes[2].offset)] == ["/q/a", "/r/a"]
        assert [c.path for c in history(found.log, "/r/a", end=changes[5].offset)] == ["/r/a"]
        seen = [{p for p, _ in snapshot(found.log, c.offset).nodes.walk("/q")} for c in changes]
        assert seen == [
            {"/q", "/q/.a.tmp"},
            {"/q", "/q/.a.tmp"},
            {"/q", "/q/a"},
            {"/q", "/q/a"},
            *[set()] * 4,
        ]


def test_restore_to_a_plain_directory(store_dir: Path, tmp_path: Path) -> None:
    with opened(store_dir) as store:
        found = files(store, SMALL)
        found.write("/q/state/0/1.delta", random_bytes(3 * CHUNK))
        found.write("/q/offsets/0", b"zero")
        then = found.log.end_offset
        found.delete("/q/offsets/0")
        done = restore(found.log, snapshot(found.log, then), "/q", tmp_path / "out")
        assert done == (2, 4, 3 * CHUNK + 4)
        assert tree(tmp_path / "out") == {
            "offsets": None,
            "offsets/0": b"zero",
            "state": None,
            "state/0": None,
            "state/0/1.delta": random_bytes(3 * CHUNK),
        }
        with pytest.raises(FileExistsError):
            restore(found.log, snapshot(found.log), "/q", tmp_path / "out")
        with pytest.raises(FileNotFoundError):
            restore(found.log, snapshot(found.log), "/no", tmp_path / "out2")
        restore(found.log, snapshot(found.log, then), "/q/offsets/0", tmp_path / "one")
        assert tree(tmp_path / "one") == {"0": b"zero"}


def test_a_reader_beside_the_writer(store_dir: Path) -> None:
    with opened(store_dir) as store:
        found = files(store)
        found.write("/a", b"a")
        with segstore.open(store_dir, mode="r") as other:
            log = other.partition("ck")
            assert held_by(log, snapshot(log)) == held(found)
            with pytest.raises(errors.ReadOnlyError):
                file_tree(other, "ck")


def test_counts(store_dir: Path) -> None:
    """A file that Spark writes is two appends, and nothing is synced."""
    counting = CountingFiles()
    with opened(store_dir, files=counting) as store:
        found = files(store)
        found.mkdirs("/q/offsets")
        counting.clear()
        found.write("/q/offsets/.0.tmp", b"x" * 1200)
        found.rename("/q/offsets/.0.tmp", "/q/offsets/0")
        assert counting.count("pwrite", "pwritev") == 2
        assert counting.count("sync", "sync_dir") == 0
